// KV blocks as numbers: which are free, and how many sequences share each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::engine {

/// Counts references to the blocks of a model's KV cache; their memory lies on the devices.
/// Allocates at construction only. [engine], owned by the engine.
class KvPool {
 public:
  explicit KvPool(std::uint32_t n_blocks);

  /// A free block with one reference, or nothing. The block freed last comes first.
  [[nodiscard]] std::optional<std::uint32_t> allocate();
  /// One more sequence shares the block.
  void share(std::uint32_t block);
  /// One reference less; at none the block is free.
  void release(std::uint32_t block);

  [[nodiscard]] std::uint32_t n_references(std::uint32_t block) const { return references_[block]; }
  [[nodiscard]] std::uint32_t n_blocks() const {
    return static_cast<std::uint32_t>(references_.size());
  }
  [[nodiscard]] std::uint32_t n_free() const { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] std::uint32_t n_used() const { return n_blocks() - n_free(); }
  [[nodiscard]] std::span<const std::uint32_t> free_blocks() const { return free_; }

 private:
  std::vector<std::uint32_t> references_;  // by block
  std::vector<std::uint32_t> free_;        // a stack
};

}  // namespace luna::engine
