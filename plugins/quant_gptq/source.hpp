// A weight in GPTQ's layout: where its codes, scales and zeros lie, and to which group a column
// belongs.
#pragma once

#include <luna/weight_parts.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace luna::gptq {

/// A weight of the file, its sizes checked against its bytes. A value; the table outlives it.
///   qweight  I32 [n_cols * bits / 32, n_rows]    codes of an output follow each other in a column
///   qzeros   I32 [n_groups, n_rows * bits / 32]  zeros of a group follow each other in a row
///   scales   F16 [n_groups, n_rows]
///   g_idx    I32 [n_cols]                        the group of each column; may be absent
/// Codes lie low bits first, over the borders of words where `bits` does not divide 32.
/// w = scale * (q - zero). Format 1 stores zero - 1, modulo 2^bits (of 3 bits without wrapping, as
/// its tools read it); format 2 the zero itself.
/// Source  QuantLinear.pack and forward of AutoGPTQ, nn_modules/qlinear/qlinear_cuda_old.py
class Source {
 public:
  /// Errors  corrupt: a part that is missing or does not fit the others; unsupported: bits, a
  ///         checkpoint format or overrides a module
  static Result<Source> find(const TensorTable& table, std::string_view name);

  [[nodiscard]] std::uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] std::uint64_t n_cols() const { return n_cols_; }
  /// Columns of a group, while the order is not mixed.
  [[nodiscard]] std::uint64_t group() const { return group_; }
  [[nodiscard]] std::uint32_t bits() const { return bits_; }
  [[nodiscard]] bool has_short_scales() const { return scales_.is_short(); }
  [[nodiscard]] float scale(std::uint64_t row, std::uint64_t group) const {
    return scales_.at(group * n_rows_ + row);
  }
  [[nodiscard]] std::int32_t zero(std::uint64_t row, std::uint64_t group) const {
    const std::uint64_t n_words = n_rows_ * bits_ / 32;
    const std::uint32_t stored =
        field(row, [&](std::uint64_t word) { return load_word(qzeros_, group * n_words + word); });
    const std::uint32_t zero = stored + zero_shift_;
    return static_cast<std::int32_t>(bits_ == 3 ? zero : zero & mask());
  }
  void codes(std::uint64_t row, std::uint8_t* out) const {
    for (std::uint64_t col = 0; col < n_cols_; ++col) {
      out[col] = static_cast<std::uint8_t>(field(
          col, [&](std::uint64_t word) { return load_word(qweight_, word * n_rows_ + row); }));
    }
  }

  /// Whether columns of a group do not follow each other: they were quantized by activation order.
  [[nodiscard]] bool is_mixed() const { return is_mixed_; }
  /// The group of a column, in any order.
  [[nodiscard]] std::uint64_t group_of(std::uint64_t col) const {
    return is_mixed_ ? load_word(g_idx_, col) : col / group_;
  }

 private:
  Result<void> read_config(const TensorTable& table, const WeightParts& parts);
  Result<void> read_shapes(const WeightParts& parts);
  Result<void> read_order(const WeightParts& parts);

  static std::uint32_t load_word(const std::uint8_t* bytes, std::uint64_t i) {
    std::uint32_t word;
    std::memcpy(&word, bytes + 4 * i, sizeof(word));
    return word;
  }
  [[nodiscard]] std::uint32_t mask() const { return (1U << bits_) - 1; }

  /// The i-th number of a row of packed words.
  template <typename Words>
  [[nodiscard]] std::uint32_t field(std::uint64_t i, const Words& words) const {
    const std::uint64_t bit = i * bits_;
    const auto shift = static_cast<std::uint32_t>(bit % 32);
    std::uint64_t value = words(bit / 32);
    if (shift + bits_ > 32) value |= std::uint64_t{words(bit / 32 + 1)} << 32;
    return static_cast<std::uint32_t>(value >> shift) & mask();
  }

  std::uint64_t n_rows_ = 0;
  std::uint64_t n_cols_ = 0;
  std::uint64_t n_groups_ = 0;
  std::uint64_t group_ = 0;
  std::optional<std::uint64_t> stated_group_;  // none: not stated, or a group a row
  std::uint32_t bits_ = 4;
  std::uint32_t zero_shift_ = 1;  // 0 in format 2
  bool is_mixed_ = false;
  const std::uint8_t* qweight_ = nullptr;
  const std::uint8_t* qzeros_ = nullptr;
  const std::uint8_t* g_idx_ = nullptr;
  FloatEntry scales_;
};

}  // namespace luna::gptq
