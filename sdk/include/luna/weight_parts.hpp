// For formats that spread a weight over several entries: "blk.0.attn_q.qweight", "....scales" and
// so on are parts of the weight "blk.0.attn_q.weight".
#pragma once

#include <luna/float16.hpp>
#include <luna/float8.hpp>
#include <luna/quant.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace luna {

/// Numbers of a float entry by their place, row-major; bytes need not be aligned.
class FloatEntry {
 public:
  FloatEntry() = default;
  /// The entry is of a type that is_float() knows and has all its bytes.
  explicit FloatEntry(const luna_tensor_entry& entry)
      : bytes_(static_cast<const unsigned char*>(entry.bytes)), type_(entry.type) {}

  static bool is_float(std::uint32_t type) {
    return type == LUNA_DTYPE_F32 || is_short(type) || type == LUNA_DTYPE_F8_E4M3 ||
           type == LUNA_DTYPE_F8_E5M2;
  }
  /// Whether a value times an integer of 12 bits is an F32, exactly.
  [[nodiscard]] bool is_short() const { return type_ != LUNA_DTYPE_F32; }

  [[nodiscard]] float at(std::uint64_t i) const {
    switch (type_) {
      case LUNA_DTYPE_F32:
        return load<float>(i);
      case LUNA_DTYPE_F16:
        return f16_to_f32(load<std::uint16_t>(i));
      case LUNA_DTYPE_BF16:
        return bf16_to_f32(load<std::uint16_t>(i));
      case LUNA_DTYPE_F8_E4M3:
        return f8_e4m3_to_f32(load<std::uint8_t>(i));
      default:
        return f8_e5m2_to_f32(load<std::uint8_t>(i));
    }
  }

 private:
  static bool is_short(std::uint32_t type) {
    return type == LUNA_DTYPE_F16 || type == LUNA_DTYPE_BF16;
  }
  template <typename T>
  [[nodiscard]] T load(std::uint64_t i) const {
    T value;
    std::memcpy(&value, bytes_ + i * sizeof(T), sizeof(T));
    return value;
  }

  const unsigned char* bytes_ = nullptr;
  std::uint32_t type_ = LUNA_DTYPE_F32;
};

/// Bytes of a value of a safetensors type; 0: not one that a weight is made of.
constexpr std::uint64_t safetensors_type_bytes(std::uint32_t type) {
  switch (type) {
    case LUNA_DTYPE_F32:
    case LUNA_DTYPE_I32:
    case LUNA_DTYPE_U32:
      return 4;
    case LUNA_DTYPE_F16:
    case LUNA_DTYPE_BF16:
      return 2;
    case LUNA_DTYPE_I8:
    case LUNA_DTYPE_U8:
    case LUNA_DTYPE_F8_E4M3:
    case LUNA_DTYPE_F8_E5M2:
      return 1;
    default:
      return 0;
  }
}

/// The entries of one weight in a table of safetensors. A value; the table outlives it.
class WeightParts {
 public:
  /// Those of the weight that is called MODULE.weight; a MODULE.bias is a weight of its own, and
  /// its only part. O(n_entries)
  WeightParts(const TensorTable& table, std::string_view weight) : weight_(weight) {
    const std::string_view module = weight.substr(0, weight.rfind('.'));
    const bool is_bias = part_of(weight) == "bias";
    for (std::uint64_t i = 0; i < table.size(); ++i) {
      const luna_tensor_entry& entry = table.entry(i);
      const std::string_view name = view(entry.name);
      const bool is_part = entry.container == LUNA_CONTAINER_SAFETENSORS &&
                           name.size() > module.size() + 1 && name.starts_with(module) &&
                           name[module.size()] == '.' &&
                           name.find('.', module.size() + 1) == std::string_view::npos;
      if (!is_part || (part_of(name) == "bias") != is_bias) continue;
      if (n_parts_ < parts_.size()) parts_[n_parts_] = &entry;
      ++n_parts_;
    }
  }
  /// Those of the weight that an entry belongs to.
  static WeightParts around(const TensorTable& table, std::uint64_t entry) {
    return {table, view(table.entry(entry).name)};
  }

  [[nodiscard]] std::string_view weight() const { return weight_; }

  /// The part of that name, or nullptr.
  [[nodiscard]] const luna_tensor_entry* find(std::string_view part) const {
    for (std::size_t i = 0; i < n_known(); ++i)
      if (part_of(view(parts_[i]->name)) == part) return parts_[i];
    return nullptr;
  }
  /// Whether there is nothing but these parts: one that a format does not know could change what
  /// the others mean.
  [[nodiscard]] bool only(std::initializer_list<std::string_view> known) const {
    if (n_parts_ > parts_.size()) return false;
    return std::all_of(parts_.begin(), parts_.begin() + n_parts_, [&](const auto* entry) {
      return std::ranges::find(known, part_of(view(entry->name))) != known.end();
    });
  }

  /// A part with its sizes checked against its bytes.
  /// rank     2: a matrix; 1: a vector
  /// Errors   corrupt: missing, of another type or rank, or not of these bytes
  [[nodiscard]] Result<const luna_tensor_entry*> need(std::string_view part,
                                                      std::uint32_t type,
                                                      std::uint32_t rank) const {
    const luna_tensor_entry* entry = find(part);
    if (entry == nullptr) return wrong(part, "missing");
    if (entry->type != type) return wrong(part, "of type " + std::to_string(entry->type));
    if (entry->rank != rank) return wrong(part, "of rank " + std::to_string(entry->rank));
    LUNA_TRY(check_bytes(part, *entry));
    return entry;
  }
  /// The same for numbers of any float type and any rank up to 2.
  [[nodiscard]] Result<const luna_tensor_entry*> need_floats(std::string_view part) const {
    const luna_tensor_entry* entry = find(part);
    if (entry == nullptr) return wrong(part, "missing");
    if (!FloatEntry::is_float(entry->type))
      return wrong(part, "of type " + std::to_string(entry->type) + ", which is no float");
    if (entry->rank > 2) return wrong(part, "of rank " + std::to_string(entry->rank));
    LUNA_TRY(check_bytes(part, *entry));
    return entry;
  }

  [[nodiscard]] Error wrong(std::string_view part, const std::string& why) const {
    return Error{Code::corrupt,
                 "weight " + std::string(weight_) + ": " + std::string(part) + ": " + why};
  }
  [[nodiscard]] Error unsupported(const std::string& why) const {
    return Error{Code::unsupported, "weight " + std::string(weight_) + ": " + why};
  }

 private:
  static std::string_view part_of(std::string_view name) {
    return name.substr(name.rfind('.') + 1);
  }
  [[nodiscard]] std::size_t n_known() const { return std::min(n_parts_, parts_.size()); }

  [[nodiscard]] Result<void> check_bytes(std::string_view part,
                                         const luna_tensor_entry& entry) const {
    std::uint64_t n_bytes = safetensors_type_bytes(entry.type);
    for (std::uint32_t i = 0; i < entry.rank; ++i) {
      if (__builtin_mul_overflow(n_bytes, entry.dims[i], &n_bytes))
        return wrong(part, "more bytes than 64 bits count");
    }
    if (n_bytes != entry.n_bytes || n_bytes == 0)
      return wrong(part, std::to_string(entry.n_bytes) + " bytes do not fit its shape");
    return {};
  }

  std::string_view weight_;
  std::array<const luna_tensor_entry*, 8> parts_{};  // no format has more
  std::size_t n_parts_ = 0;
};

/// "128 x 16": a shape for messages.
inline std::string shape_text(const luna_tensor_entry& entry) {
  std::string text;
  for (std::uint32_t i = 0; i < entry.rank; ++i)
    text += (i == 0 ? "" : " x ") + std::to_string(entry.dims[i]);
  return entry.rank == 0 ? "one value" : text;
}

}  // namespace luna
