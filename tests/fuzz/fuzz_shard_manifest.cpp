// Manifests of shard folders: whatever the text, a manifest that holds together or a refusal.
#include "core/model/shard_manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using luna::model::parse_shard_manifest;
  const auto manifest = parse_shard_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  std::uint64_t next_layer = 0;
  for (const auto& shard : manifest->shards) {
    if (!luna::model::is_shard_name(shard.file)) __builtin_trap();  // leads to no other folder
    if (shard.layers.first != next_layer) __builtin_trap();
    next_layer = shard.layers.end();
    std::uint64_t n_bytes = 0;
    for (const auto& tensor : shard.tensors)
      n_bytes += tensor.n_bytes;
    if (n_bytes > shard.n_bytes) __builtin_trap();
  }
  if (next_layer != manifest->n_layers) __builtin_trap();
  const auto again = parse_shard_manifest(luna::model::to_json(*manifest));
  if (!again || !(*again == *manifest)) __builtin_trap();
  return 0;
}
