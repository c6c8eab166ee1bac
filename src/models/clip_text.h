#pragma once

#include <optional>
#include <span>

#include "models/names.h"
#include "nn/model.h"

namespace sluice {

/// CLIP-L's text encoder (Radford et al., arXiv:2103.00020; Hugging Face names: CLIPTextModel).
struct ClipTextConfig {
  std::int64_t hidden = 768, intermediate = 3072, vocabulary = 49408, positions = 77;
  std::int64_t projection = 0;  ///< width of text_projection; 0 where the file has none
  int layers = 12, heads = 12;  ///< heads = hidden / 64
};

/// Which results the model computes. Layers that none of them needs are no part of it.
struct ClipTextOutputs {
  bool last_hidden = true;  ///< last layer after the final layer norm
  bool skipped = false;     ///< output of layer `layers - skip`, without norm
  bool skipped_ln = false;  ///< the same after the final layer norm (what SD1.x takes with clip skip `skip` + 1)
  bool projected = false;   ///< text_projection of last_hidden, at every position
  int skip = 1;             ///< layers left out by `skipped` and `skipped_ln`: 0 … layers - 1
};

/// The model and its handles. Lanes: one per chunk of at most `positions` tokens.
struct ClipText {
  Model model;
  Value embedded;  ///< input [hidden, T] f32, every sweep: rows of the token table, without positions
  std::optional<Value> last_hidden, skipped, skipped_ln;  ///< [hidden, T] f32
  std::optional<Value> projected;                         ///< [projection, T] f32
};

/// The token table's name in the component: rows are gathered on the host, so no block has it.
inline constexpr std::string_view kClipTokenTable = "text_model.embeddings.token_embedding.weight";

/// Reads the dimensions off the tensors. Errors: not_found, corrupt, unsupported (width not a multiple of 64).
Result<ClipTextConfig> read_clip_text_config(const Names& names);

/// Errors: invalid_argument (skip out of range, projection asked for where the file has none).
Result<ClipText> clip_text(const ClipTextConfig& config, const ClipTextOutputs& outputs);

/// Where a row's pooled state is taken: its first end token, or 0 if it has none (as Hugging Face's argmax gives).
std::size_t clip_pooled_position(std::span<const std::int32_t> ids, std::int32_t end_token);

}  // namespace sluice
