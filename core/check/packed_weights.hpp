// Weights that formats spread over several entries, as the tools of the field write them.
#pragma once

#include "core/check/guarded_memory.hpp"

#include <luna/abi/quant.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// One entry of a packed weight.
struct PackedPart {
  std::string_view name;  ///< behind "layer."
  std::uint32_t type;     ///< LUNA_DTYPE_*
  std::vector<std::uint64_t> dims;
  enum class Content { any, scales, groups } content;
};

/// A way to pack one: its parts, and what the container says of it.
struct PackedLayout {
  std::string_view name;    ///< for messages
  std::string_view method;  ///< quantization_config.quant_method
  std::int64_t bits;
  std::int64_t group;
  std::vector<PackedPart> parts;
};

/// GPTQ of 4 and 8 bits, AWQ, and signed bytes with a scale a row.
std::span<const PackedLayout> packed_layouts();

/// One packed weight "layer.weight" as a table. A resource; the table points into it.
class PackedWeight {
 public:
  /// Contents are drawn from `random`: any codes, small scales, groups in their order.
  PackedWeight(const PackedLayout& layout, std::mt19937_64& random);
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  [[nodiscard]] const luna_tensor_table& table() const { return table_; }
  [[nodiscard]] std::span<luna_tensor_entry> entries() { return entries_; }
  /// The entry that is called "layer.weight"; UINT64_MAX: none is.
  [[nodiscard]] std::uint64_t entry() const { return entry_; }
  /// Gives part i so many bytes of any content, which end at the end of a page.
  void resize(std::size_t i, std::uint64_t n_bytes, std::mt19937_64& random);

 private:
  void add_metadata(std::string key, std::string value);
  void add_metadata(std::string key, std::int64_t value);
  std::deque<std::string> texts_;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
  std::vector<luna_tensor_entry> entries_;
  std::vector<luna_kv> metadata_;
  std::uint64_t entry_ = UINT64_MAX;
  luna_tensor_table table_{};
};

}  // namespace luna::check
