// Plugin "int8": signed bytes with a scale a row or a group, as compressed-tensors stores them.
//   weight             I8  [n_rows, n_cols]
//   weight_scale       F*  one value, [n_rows], [n_rows, 1] or [n_rows, n_groups]
//   weight_zero_point  I8  of the scales' shape; absent where the weight is symmetric
// w = scale * (q - zero_point).
// Source  naive_quantized of vllm-project/compressed-tensors ("int-quantized")
#include <luna/grouped_codes.hpp>
#include <luna/weight_parts.hpp>

#include <memory>
#include <string>

namespace luna::int8 {
namespace {

constexpr std::string_view kScale = "weight_scale";
constexpr std::string_view kZero = "weight_zero_point";

/// A weight of the file, its sizes checked against its bytes. Codes are the bytes plus 128.
class Source {
 public:
  static Result<Source> find(const TensorTable& table, std::string_view name) {
    const WeightParts parts(table, name);
    if (!has_known_parts(parts)) return parts.unsupported("has parts that an INT8 weight has not");
    LUNA_TRY(const luna_tensor_entry* weight, parts.need("weight", LUNA_DTYPE_I8, 2));
    LUNA_TRY(const luna_tensor_entry* scales, parts.need_floats(kScale));
    Source source;
    source.n_rows_ = weight->dims[0];
    source.n_cols_ = weight->dims[1];
    source.bytes_ = static_cast<const std::uint8_t*>(weight->bytes);
    const std::uint64_t n_scale_rows = scales->rank >= 1 ? scales->dims[0] : 1;
    source.n_groups_ = scales->rank == 2 ? scales->dims[1] : 1;
    source.is_one_ = n_scale_rows == 1 && source.n_groups_ == 1;
    const bool fits = source.is_one_ || n_scale_rows == source.n_rows_;
    if (!fits || source.n_cols_ % source.n_groups_ != 0) {
      return parts.wrong(kScale,
                         "of shape " + shape_text(*scales) + " for a weight of " +
                             shape_text(*weight) +
                             ": must be one value, one a row, or one a group of a row");
    }
    source.scales_ = FloatEntry(*scales);
    const luna_tensor_entry* zero = parts.find(kZero);
    if (zero == nullptr) return source;
    LUNA_TRY(zero, parts.need(kZero, LUNA_DTYPE_I8, scales->rank));
    for (std::uint32_t i = 0; i < zero->rank; ++i) {
      if (zero->dims[i] != scales->dims[i])
        return parts.wrong(kZero, "of shape " + shape_text(*zero) + ", unlike the scales");
    }
    source.zeros_ = static_cast<const std::uint8_t*>(zero->bytes);
    return source;
  }
  /// "weight_g_idx" is absent on purpose: an order of columns would change what a group is.
  static bool has_known_parts(const WeightParts& parts) {
    return parts.only({"weight", kScale, kZero, "input_scale", "input_zero_point"});
  }

  [[nodiscard]] std::uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] std::uint64_t n_cols() const { return n_cols_; }
  [[nodiscard]] std::uint64_t group() const { return n_cols_ / n_groups_; }
  [[nodiscard]] std::uint32_t bits() const { return 8; }
  [[nodiscard]] bool has_short_scales() const { return scales_.is_short(); }
  [[nodiscard]] float scale(std::uint64_t row, std::uint64_t group) const {
    return scales_.at(place(row, group));
  }
  [[nodiscard]] std::int32_t zero(std::uint64_t row, std::uint64_t group) const {
    return zeros_ == nullptr ? 128 : zeros_[place(row, group)] ^ 0x80;
  }
  void codes(std::uint64_t row, std::uint8_t* out) const {
    for (std::uint64_t col = 0; col < n_cols_; ++col)
      out[col] = bytes_[row * n_cols_ + col] ^ 0x80;
  }

 private:
  [[nodiscard]] std::uint64_t place(std::uint64_t row, std::uint64_t group) const {
    return is_one_ ? 0 : row * n_groups_ + group;
  }

  std::uint64_t n_rows_ = 0;
  std::uint64_t n_cols_ = 0;
  std::uint64_t n_groups_ = 1;
  bool is_one_ = false;  // one scale for the whole weight
  const std::uint8_t* bytes_ = nullptr;
  const std::uint8_t* zeros_ = nullptr;
  FloatEntry scales_;
};
static_assert(GroupedCodes<Source>);

class Int8Quantization final : public GroupedQuantization<Source> {
 public:
  static Result<std::unique_ptr<Int8Quantization>> create(Host /*host*/,
                                                          const Settings& /*settings*/) {
    return std::make_unique<Int8Quantization>();
  }

  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    if (entry >= table.size()) return 0;
    const WeightParts parts = WeightParts::around(table, entry);
    const luna_tensor_entry* weight = parts.find("weight");
    const bool is_known = weight != nullptr && weight->type == LUNA_DTYPE_I8;
    return is_known && Source::has_known_parts(parts) ? 100 : 0;
  }
};

constexpr luna_quant_if kTable = quant_table<Int8Quantization>();

}  // namespace
}  // namespace luna::int8

LUNA_DEFINE_PLUGIN("org.luna.quant.int8",
                   "int8",
                   "0.1.0",
                   "Signed bytes with a scale a row or a group of a row.",
                   LUNA_KIND_QUANT,
                   luna::int8::kTable)
