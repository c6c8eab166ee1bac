#pragma once

#include <cstddef>

namespace sluice {

/// `models/vocab/clip/bpe_simple_vocab_16e6.txt.gz`, byte for byte (openai/CLIP, MIT). Written by cmake/EmbedFile.cmake.
extern const std::size_t clip_vocabulary_gz_size;
extern const unsigned char clip_vocabulary_gz[];

}  // namespace sluice
