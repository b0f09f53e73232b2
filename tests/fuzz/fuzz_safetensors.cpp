// Headers of safetensors: whatever the bytes, an answer, never a crash.
#include "core/model/safetensors_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = luna::model::SafetensorsFile::parse(std::as_bytes(std::span(data, size)));
  if (!file) return 0;
  std::size_t n_bytes = 0;
  for (const auto& tensor : file->tensors())
    n_bytes += tensor.bytes.size();
  if (n_bytes > size) __builtin_trap();
  return 0;
}
