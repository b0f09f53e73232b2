// Model files: whatever the bytes, a file that is whole or a refusal, never a crash.
#include "core/model/gguf_file.hpp"
#include "core/model/gguf_writer.hpp"
#include "core/model/model_config.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

/// What was read can be written, and is then read as the same.
void check_rewrite(const luna::model::GgufFile& file) {
  luna::model::GgufLayout layout;
  for (const auto& entry : file.metadata())
    if (!layout.add_key(entry)) __builtin_trap();
  for (const auto& tensor : file.tensors())
    if (!layout.add_tensor(tensor.name, tensor.type, {tensor.dims.data(), tensor.rank}))
      __builtin_trap();
  std::vector<std::byte> out;
  luna::model::GgufWriter writer(layout, [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return luna::Result<void>{};
  });
  if (!writer.write_header()) __builtin_trap();
  for (const auto& tensor : file.tensors())
    if (!writer.append(tensor.bytes)) __builtin_trap();
  const auto again = luna::model::GgufFile::parse(out);
  if (!writer.finish() || !again || again->metadata().size() != file.metadata().size())
    __builtin_trap();
  for (const auto& tensor : file.tensors()) {
    const auto* found = again->find_tensor(tensor.name);
    if (found == nullptr || found->type != tensor.type || found->dims != tensor.dims ||
        !std::ranges::equal(found->bytes, tensor.bytes))
      __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = luna::model::GgufFile::parse(std::as_bytes(std::span(data, size)));
  if (!file) return 0;
  for (const auto& tensor : file->tensors()) {  // first and last byte lie in the file
    if (tensor.bytes.empty()) __builtin_trap();
    volatile auto sum =
        std::to_integer<int>(tensor.bytes.front()) + std::to_integer<int>(tensor.bytes.back());
    (void)sum;
  }
  check_rewrite(*file);
  (void)luna::model::read_vocabulary(*file);
  if (const auto config = luna::model::read_model_config(*file))
    (void)luna::model::check_weights(*config, *file);
  return 0;
}
