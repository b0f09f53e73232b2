#include "core/check/packed_weights.hpp"

#include <luna/plugin.hpp>

#include <array>
#include <cstring>

namespace luna::check {
namespace {

using Content = PackedPart::Content;

constexpr std::uint64_t kRows = 128;
constexpr std::uint64_t kCols = 256;
constexpr std::uint64_t kGroup = 64;
constexpr std::uint64_t kGroups = kCols / kGroup;

PackedLayout gptq(std::string_view name, std::uint64_t bits) {
  return {name,
          "gptq",
          static_cast<std::int64_t>(bits),
          kGroup,
          {{"qweight", LUNA_DTYPE_I32, {kCols * bits / 32, kRows}, Content::any},
           {"qzeros", LUNA_DTYPE_I32, {kGroups, kRows * bits / 32}, Content::any},
           {"scales", LUNA_DTYPE_F16, {kGroups, kRows}, Content::scales},
           {"g_idx", LUNA_DTYPE_I32, {kCols}, Content::groups}}};
}

std::uint64_t type_bytes(std::uint32_t type) {
  if (type == LUNA_DTYPE_F16) return 2;
  return type == LUNA_DTYPE_I8 ? 1 : 4;
}

void fill(std::span<std::byte> bytes, Content content, std::mt19937_64& random) {
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  // FP16 from 2^-8 to 2^-4: what scales are.
  for (std::size_t at = 0; content == Content::scales && at + 2 <= bytes.size(); at += 2) {
    const auto scale = static_cast<std::uint16_t>(0x1C00U + random() % 0x1000U);
    std::memcpy(&bytes[at], &scale, sizeof(scale));
  }
  for (std::size_t at = 0; content == Content::groups && at + 4 <= bytes.size(); at += 4) {
    const auto group = static_cast<std::uint32_t>(at / 4 / kGroup);
    std::memcpy(&bytes[at], &group, sizeof(group));
  }
}

}  // namespace

std::span<const PackedLayout> packed_layouts() {
  static const std::array<PackedLayout, 4> layouts = {
      gptq("GPTQ of 4 bits", 4),
      gptq("GPTQ of 8 bits", 8),
      PackedLayout{"AWQ",
                   "awq",
                   4,
                   kGroup,
                   {{"qweight", LUNA_DTYPE_I32, {kCols, kRows / 8}, Content::any},
                    {"qzeros", LUNA_DTYPE_I32, {kGroups, kRows / 8}, Content::any},
                    {"scales", LUNA_DTYPE_F16, {kGroups, kRows}, Content::scales}}},
      PackedLayout{"INT8",
                   "compressed-tensors",
                   8,
                   -1,
                   {{"weight", LUNA_DTYPE_I8, {kRows, kCols}, Content::any},
                    {"weight_scale", LUNA_DTYPE_F16, {kRows, 1}, Content::scales}}}};
  return layouts;
}

PackedWeight::PackedWeight(const PackedLayout& layout, std::mt19937_64& random) {
  for (const PackedPart& part : layout.parts) {
    luna_tensor_entry entry{};
    std::uint64_t n_bytes = type_bytes(part.type);
    for (std::size_t i = 0; i < part.dims.size(); ++i) {
      entry.dims[i] = part.dims[i];
      n_bytes *= part.dims[i];
    }
    if (part.name == "weight") entry_ = entries_.size();
    entry.name = to_abi(texts_.emplace_back("layer." + std::string(part.name)));
    entry.container = LUNA_CONTAINER_SAFETENSORS;
    entry.type = part.type;
    entry.rank = static_cast<std::uint32_t>(part.dims.size());
    memory_.push_back(std::make_unique<GuardedMemory>(n_bytes));
    fill(memory_.back()->bytes(), part.content, random);
    memory_.back()->make_read_only();
    entry.bytes = memory_.back()->bytes().data();
    entry.n_bytes = n_bytes;
    entries_.push_back(entry);
  }
  add_metadata("quantization_config.quant_method", std::string(layout.method));
  add_metadata("quantization_config.bits", layout.bits);
  if (layout.group > 0) add_metadata("quantization_config.group_size", layout.group);
  table_.struct_size = sizeof(table_);
  table_.entry_stride = sizeof(luna_tensor_entry);
  table_.n_entries = entries_.size();
  table_.entries = entries_.data();
  table_.n_metadata = metadata_.size();
  table_.metadata = metadata_.data();
}

void PackedWeight::resize(std::size_t i, std::uint64_t n_bytes, std::mt19937_64& random) {
  memory_[i] = std::make_unique<GuardedMemory>(n_bytes);
  fill(memory_[i]->bytes(), Content::any, random);
  memory_[i]->make_read_only();
  entries_[i].bytes = memory_[i]->bytes().data();
  entries_[i].n_bytes = n_bytes;
}

void PackedWeight::add_metadata(std::string key, std::string value) {
  const std::string& kept_key = texts_.emplace_back(std::move(key));
  const std::string& kept_value = texts_.emplace_back(std::move(value));
  metadata_.push_back({to_abi(kept_key), LUNA_TYPE_STRING, 0, 0, 0.0, to_abi(kept_value)});
}

void PackedWeight::add_metadata(std::string key, std::int64_t value) {
  const std::string& kept_key = texts_.emplace_back(std::move(key));
  metadata_.push_back({to_abi(kept_key), LUNA_TYPE_INT, 0, value, 0.0, {nullptr, 0}});
}

}  // namespace luna::check
