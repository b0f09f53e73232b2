// Plugin "awq": 4-bit weights as AutoAWQ's GEMM layout packs them.
//   qweight  I32 [n_cols, n_rows / 8]     eight outputs a word
//   qzeros   I32 [n_groups, n_rows / 8]   the same way
//   scales   F16 [n_groups, n_rows]
// w = scale * (q - zero). Outputs 0..7 of a word lie in its nibbles 0, 4, 1, 5, 2, 6, 3, 7.
// Source  WQLinear_GEMM.from_linear of casper-hansen/AutoAWQ, awq/modules/linear/gemm.py
#include <luna/grouped_codes.hpp>
#include <luna/weight_parts.hpp>

#include <memory>
#include <string>

namespace luna::awq {
namespace {

constexpr std::uint64_t kPerWord = 8;
constexpr std::uint32_t kShiftByOutput[kPerWord] = {0, 16, 4, 20, 8, 24, 12, 28};

std::uint32_t load_word(const std::uint8_t* bytes, std::uint64_t i) {
  std::uint32_t word;
  std::memcpy(&word, bytes + 4 * i, sizeof(word));
  return word;
}

/// A weight of the file, its sizes checked against its bytes.
class Source {
 public:
  static Result<Source> find(const TensorTable& table, std::string_view name) {
    const WeightParts parts(table, name);
    if (!parts.only({"qweight", "qzeros", "scales"}))
      return parts.unsupported("has parts that an AWQ weight has not");
    LUNA_TRY(const luna_tensor_entry* qweight, parts.need("qweight", LUNA_DTYPE_I32, 2));
    LUNA_TRY(const luna_tensor_entry* qzeros, parts.need("qzeros", LUNA_DTYPE_I32, 2));
    LUNA_TRY(const luna_tensor_entry* scales, parts.need_floats("scales"));
    Source source;
    source.n_cols_ = qweight->dims[0];
    source.n_rows_ = qweight->dims[1] * kPerWord;
    const std::uint64_t n_groups = scales->rank == 2 ? scales->dims[0] : 0;
    if (n_groups == 0 || scales->dims[1] != source.n_rows_ || source.n_cols_ % n_groups != 0) {
      return parts.wrong(
          "scales",
          "of shape " + shape_text(*scales) + " for a qweight of " + shape_text(*qweight));
    }
    if (qzeros->dims[0] != n_groups || qzeros->dims[1] != qweight->dims[1]) {
      return parts.wrong("qzeros",
                         "of shape " + shape_text(*qzeros) + ", expected " +
                             std::to_string(n_groups) + " x " + std::to_string(qweight->dims[1]));
    }
    source.group_ = source.n_cols_ / n_groups;
    source.qweight_ = static_cast<const std::uint8_t*>(qweight->bytes);
    source.qzeros_ = static_cast<const std::uint8_t*>(qzeros->bytes);
    source.scales_ = FloatEntry(*scales);
    LUNA_TRY(check_config(table, parts, source.group_));
    return source;
  }

  [[nodiscard]] std::uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] std::uint64_t n_cols() const { return n_cols_; }
  [[nodiscard]] std::uint64_t group() const { return group_; }
  [[nodiscard]] std::uint32_t bits() const { return 4; }
  [[nodiscard]] bool has_short_scales() const { return scales_.is_short(); }
  [[nodiscard]] float scale(std::uint64_t row, std::uint64_t group) const {
    return scales_.at(group * n_rows_ + row);
  }
  [[nodiscard]] std::int32_t zero(std::uint64_t row, std::uint64_t group) const {
    return nibble(qzeros_, group, row);
  }
  void codes(std::uint64_t row, std::uint8_t* out) const {
    for (std::uint64_t col = 0; col < n_cols_; ++col)
      out[col] = nibble(qweight_, col, row);
  }

 private:
  /// What the configuration says must be what is read here; it may say nothing.
  static Result<void> check_config(const TensorTable& table,
                                   const WeightParts& parts,
                                   std::uint64_t group) {
    const luna_kv* version = table.find_metadata("quantization_config.version");
    if (version != nullptr && version->type == LUNA_TYPE_STRING && view(version->s) != "gemm" &&
        view(version->s) != "GEMM") {
      return parts.unsupported("quantization_config.version = \"" + std::string(view(version->s)) +
                               "\": only the layout \"gemm\" is read");
    }
    for (const std::string_view key : {"quantization_config.bits", "quantization_config.w_bit"}) {
      const luna_kv* bits = table.find_metadata(key);
      if (bits != nullptr && bits->type == LUNA_TYPE_INT && bits->i != 4) {
        return parts.unsupported(std::string(key) + " = " + std::to_string(bits->i) +
                                 ": AWQ weights of 4 bits are read");
      }
    }
    for (const std::string_view key :
         {"quantization_config.group_size", "quantization_config.q_group_size"}) {
      const luna_kv* size = table.find_metadata(key);
      if (size == nullptr || size->type != LUNA_TYPE_INT || size->i <= 0) continue;
      if (static_cast<std::uint64_t>(size->i) != group) {
        return parts.wrong("scales",
                           "for groups of " + std::to_string(group) + ", but " + std::string(key) +
                               " = " + std::to_string(size->i));
      }
    }
    return {};
  }

  [[nodiscard]] std::uint8_t nibble(const std::uint8_t* words,
                                    std::uint64_t line,
                                    std::uint64_t output) const {
    const std::uint32_t word = load_word(words, line * (n_rows_ / kPerWord) + output / kPerWord);
    return (word >> kShiftByOutput[output % kPerWord]) & 15U;
  }

  std::uint64_t n_rows_ = 0;
  std::uint64_t n_cols_ = 0;
  std::uint64_t group_ = 0;
  const std::uint8_t* qweight_ = nullptr;
  const std::uint8_t* qzeros_ = nullptr;
  FloatEntry scales_;
};
static_assert(GroupedCodes<Source>);

class AwqQuantization final : public GroupedQuantization<Source> {
 public:
  static Result<std::unique_ptr<AwqQuantization>> create(Host /*host*/,
                                                         const Settings& /*settings*/) {
    return std::make_unique<AwqQuantization>();
  }

  /// GPTQ's entries have the same names: the method that the folder names decides.
  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    if (entry >= table.size()) return 0;
    const luna_kv* method = table.find_metadata("quantization_config.quant_method");
    if (method == nullptr || method->type != LUNA_TYPE_STRING || view(method->s) != "awq") return 0;
    const WeightParts parts = WeightParts::around(table, entry);
    return parts.find("qweight") != nullptr ? 100 : 0;
  }
};

constexpr luna_quant_if kTable = quant_table<AwqQuantization>();

}  // namespace
}  // namespace luna::awq

LUNA_DEFINE_PLUGIN("org.luna.quant.awq",
                   "awq",
                   "0.1.0",
                   "4-bit weights in AutoAWQ's GEMM layout.",
                   LUNA_KIND_QUANT,
                   luna::awq::kTable)
