// KV blocks that leave a device or come to it: the checks and the copies of backends whose blocks
// lie in host memory as layers one after the other.
#pragma once

#include <luna/backend_blocks.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace luna {

/// The memory of a KV buffer. A view.
struct KvMemory {
  std::byte* base = nullptr;
  std::uint64_t n_bytes = 0;
  std::uint64_t block_bytes = 0;  // all layers of the part's layout
};

/// What a part says, whatever the backend: that it is whole, and its layers exist. [any]
inline Result<void> check_kv_part(const luna_kv_part* part, const void* bytes) {
  if (!LUNA_HAS(part, luna_kv_part, n_bytes) || bytes == nullptr ||
      (part->blocks == nullptr && part->n_blocks != 0))
    return Error{Code::invalid_argument, "the part of the KV is incomplete"};
  LUNA_TRY(check_kv_layout(part->layout));
  if (part->n_layers == 0 || part->first_layer >= part->layout->n_layers ||
      part->n_layers > part->layout->n_layers - part->first_layer)
    return Error{Code::invalid_argument,
                 "KV layers " + std::to_string(part->first_layer) + " + " +
                     std::to_string(part->n_layers) + " of " +
                     std::to_string(part->layout->n_layers)};
  return {};
}

/// Copies of a part, layer by layer of each block. Made for one call. [any]
class KvCopier {
 public:
  /// part    has passed check_kv_part()
  KvCopier(const KvMemory& memory, const luna_kv_part& part)
      : memory_(memory),
        part_(part),
        layer_bytes_(memory.block_bytes / part.layout->n_layers),
        own_bytes_(layer_bytes_ * part.n_layers) {}

  Result<void> to(void* bytes) const {
    LUNA_TRY(check());
    auto* at = static_cast<std::byte*>(bytes);
    for (std::uint32_t i = 0; i < part_.n_blocks; ++i, at += own_bytes_)
      std::memcpy(at, place(i), own_bytes_);
    return {};
  }
  Result<void> from(const void* bytes) const {
    LUNA_TRY(check());
    const auto* at = static_cast<const std::byte*>(bytes);
    for (std::uint32_t i = 0; i < part_.n_blocks; ++i, at += own_bytes_)
      std::memcpy(place(i), at, own_bytes_);
    return {};
  }

 private:
  [[nodiscard]] Result<void> check() const {
    const std::uint64_t n_blocks = memory_.n_bytes / memory_.block_bytes;
    for (std::uint32_t i = 0; i < part_.n_blocks; ++i)
      if (part_.blocks[i] >= n_blocks)
        return Error{
            Code::invalid_argument,
            "KV block " + std::to_string(part_.blocks[i]) + " of " + std::to_string(n_blocks)};
    if (part_.n_bytes != own_bytes_ * part_.n_blocks)
      return Error{Code::invalid_argument,
                   "KV part of " + std::to_string(part_.n_bytes) +
                       " bytes: " + std::to_string(part_.n_blocks) + " blocks take " +
                       std::to_string(own_bytes_ * part_.n_blocks)};
    return {};
  }
  [[nodiscard]] std::byte* place(std::uint32_t i) const {
    return memory_.base + part_.blocks[i] * memory_.block_bytes + part_.first_layer * layer_bytes_;
  }

  const KvMemory memory_;
  const luna_kv_part& part_;  // outlives the copier
  const std::uint64_t layer_bytes_;
  const std::uint64_t own_bytes_;  // of one block
};

}  // namespace luna
