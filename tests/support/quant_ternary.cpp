// Plugin "ternary": a format made up for a test, added to a program that was built without it.
//   trits     U8  [n_rows, ceil(n_cols / 5)]  five digits of base 3 a byte, lowest first
//   amount    F32 [n_rows]                    w = amount * (digit - 1)
//   n_inputs  I32 [1]                         n_cols
// AFFINE codes may be of any alphabet, so the canonical form has 2 bits and the constant zero 1.
#include <luna/grouped_codes.hpp>
#include <luna/weight_parts.hpp>

#include <memory>

namespace luna::ternary {
namespace {

class Source {
 public:
  static Result<Source> find(const TensorTable& table, std::string_view name) {
    const WeightParts parts(table, name);
    if (!parts.only({"trits", "amount", "n_inputs"}))
      return parts.unsupported("has parts that a ternary weight has not");
    LUNA_TRY(const luna_tensor_entry* trits, parts.need("trits", LUNA_DTYPE_U8, 2));
    LUNA_TRY(const luna_tensor_entry* amount, parts.need("amount", LUNA_DTYPE_F32, 1));
    LUNA_TRY(const luna_tensor_entry* n_inputs, parts.need("n_inputs", LUNA_DTYPE_I32, 1));
    std::int32_t n_cols = 0;
    std::memcpy(&n_cols, n_inputs->bytes, sizeof(n_cols));
    Source source;
    source.n_rows_ = trits->dims[0];
    source.n_bytes_ = trits->dims[1];
    source.n_cols_ = n_cols > 0 ? static_cast<std::uint64_t>(n_cols) : 0;
    if (source.n_cols_ == 0 || (source.n_cols_ + 4) / 5 != source.n_bytes_ ||
        amount->dims[0] != source.n_rows_)
      return parts.wrong("n_inputs", std::to_string(n_cols) + " do not fit the other parts");
    source.trits_ = static_cast<const std::uint8_t*>(trits->bytes);
    source.amount_ = FloatEntry(*amount);
    return source;
  }

  [[nodiscard]] std::uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] std::uint64_t n_cols() const { return n_cols_; }
  [[nodiscard]] std::uint64_t group() const { return n_cols_; }
  [[nodiscard]] std::uint32_t bits() const { return 2; }
  [[nodiscard]] bool has_short_scales() const { return false; }
  [[nodiscard]] float scale(std::uint64_t row, std::uint64_t /*group*/) const {
    return amount_.at(row);
  }
  [[nodiscard]] std::int32_t zero(std::uint64_t /*row*/, std::uint64_t /*group*/) const {
    return 1;
  }
  void codes(std::uint64_t row, std::uint8_t* out) const {
    constexpr std::uint32_t kPower[] = {1, 3, 9, 27, 81};
    for (std::uint64_t col = 0; col < n_cols_; ++col)
      out[col] = static_cast<std::uint8_t>(trits_[row * n_bytes_ + col / 5] / kPower[col % 5] % 3);
  }

 private:
  std::uint64_t n_rows_ = 0;
  std::uint64_t n_cols_ = 0;
  std::uint64_t n_bytes_ = 0;  // of a row
  const std::uint8_t* trits_ = nullptr;
  FloatEntry amount_;
};

class TernaryQuantization final : public GroupedQuantization<Source> {
 public:
  static Result<std::unique_ptr<TernaryQuantization>> create(Host /*host*/,
                                                             const Settings& /*settings*/) {
    return std::make_unique<TernaryQuantization>();
  }
  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    return WeightParts::around(table, entry).find("trits") != nullptr ? 100 : 0;
  }
};

constexpr luna_quant_if kTable = quant_table<TernaryQuantization>();

}  // namespace
}  // namespace luna::ternary

LUNA_DEFINE_PLUGIN("org.luna.test.quant.ternary",
                   "ternary",
                   "0.1.0",
                   "Three values a weight, for a test.",
                   LUNA_KIND_QUANT,
                   luna::ternary::kTable)
