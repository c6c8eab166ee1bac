#include "io/gguf.h"

#include "tensor_file_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::use_tensor_file(data, size, [](auto file) { return sluice::open_gguf(std::move(file)); });
  return 0;
}
