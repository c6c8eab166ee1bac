#include <cstdlib>

#include "io/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::ImageText text;
  const auto image = sluice::decode_png(std::as_bytes(std::span(data, size)), &text);
  if (image && image->rgb.size() != static_cast<std::size_t>(image->width) * static_cast<std::size_t>(image->height) * 3)
    std::abort();
  return 0;
}
