// Plugin "gptq": weights of 2, 3, 4 and 8 bits as GPTQ's tools pack them.
#include "source.hpp"

#include <luna/grouped_codes.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace luna::gptq {
namespace {

static_assert(GroupedCodes<Source>);

/// Groups whose columns do not follow each other have no affine form, because a group of columns
/// shares a scale there: the weight becomes dense FP32, which holds each value exactly.
Result<luna_weight_desc> describe_mixed(const Source& source, std::string_view weight) {
  LUNA_TRY(grouped::survey(source, weight));
  luna_weight_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.klass = LUNA_WEIGHT_DENSE;
  desc.flags = LUNA_WEIGHT_EXACT;
  desc.dtype = LUNA_DTYPE_F32;
  desc.n_rows = source.n_rows();
  desc.n_cols = source.n_cols();
  desc.row_bytes[LUNA_PLANE_VALUES] = source.n_cols() * sizeof(float);
  return desc;
}

/// w = scale * (q - zero), rounded once. codes  [n_cols], room for the row's codes
void write_values(const Source& source,
                  std::uint64_t row,
                  std::vector<std::uint8_t>& codes,
                  float* out) {
  source.codes(row, codes.data());
  for (std::uint64_t col = 0; col < source.n_cols(); ++col) {
    const std::uint64_t group = source.group_of(col);
    const double scale = source.scale(row, group);
    out[col] = static_cast<float>(scale * (std::int32_t{codes[col]} - source.zero(row, group)));
  }
}

class GptqQuantization final : public Quantization {
 public:
  static Result<std::unique_ptr<GptqQuantization>> create(Host /*host*/,
                                                          const Settings& /*settings*/) {
    return std::make_unique<GptqQuantization>();
  }

  /// AWQ's entries have the same names: the method that the folder names decides.
  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    if (entry >= table.size()) return 0;
    const luna_kv* method = table.find_metadata("quantization_config.quant_method");
    const bool is_gptq =
        method != nullptr && method->type == LUNA_TYPE_STRING && view(method->s) == "gptq";
    return is_gptq && WeightParts::around(table, entry).find("qweight") != nullptr ? 100 : 0;
  }

  [[nodiscard]] Result<luna_weight_desc> describe(const TensorTable& table,
                                                  const WeightId& weight) const override {
    LUNA_TRY(const Source source, Source::find(table, weight.name));
    if (source.is_mixed()) return describe_mixed(source, weight.name);
    return describe_grouped(source, weight.name);
  }

  Result<void> decode(const TensorTable& table,
                      const WeightId& weight,
                      const luna_weight_desc& desc,
                      const luna_weight_rows& rows) const override {
    LUNA_TRY(const Source source, Source::find(table, weight.name));
    if (!source.is_mixed()) return decode_grouped(source, weight.name, desc, rows);
    const bool fits = rows.first_row <= source.n_rows() &&
                      rows.n_rows <= source.n_rows() - rows.first_row &&
                      desc.klass == LUNA_WEIGHT_DENSE && desc.dtype == LUNA_DTYPE_F32 &&
                      desc.row_bytes[LUNA_PLANE_VALUES] >= source.n_cols() * sizeof(float) &&
                      rows.planes[LUNA_PLANE_VALUES] != nullptr;
    if (!fits) {
      return Error{Code::invalid_argument,
                   "weight " + std::string(weight.name) + ": rows or planes that do not fit"};
    }
    std::vector<std::uint8_t> codes(source.n_cols());
    std::vector<float> values(source.n_cols());
    auto* plane = static_cast<std::uint8_t*>(rows.planes[LUNA_PLANE_VALUES]);
    for (std::uint64_t i = 0; i < rows.n_rows; ++i) {
      write_values(source, rows.first_row + i, codes, values.data());
      std::memcpy(plane + i * desc.row_bytes[LUNA_PLANE_VALUES],
                  values.data(),
                  values.size() * sizeof(float));
    }
    return {};
  }

  Result<void> row_f32(const TensorTable& table,
                       const WeightId& weight,
                       std::uint64_t row,
                       float* out) const override {
    LUNA_TRY(const Source source, Source::find(table, weight.name));
    LUNA_TRY(grouped::check_row(source, weight.name, row));
    std::vector<std::uint8_t> codes(source.n_cols());
    write_values(source, row, codes, out);
    return {};
  }
};

constexpr luna_quant_if kTable = quant_table<GptqQuantization>();

}  // namespace
}  // namespace luna::gptq

LUNA_DEFINE_PLUGIN("org.luna.quant.gptq",
                   "gptq",
                   "0.1.0",
                   "Weights of 2, 3, 4 and 8 bits as GPTQ packs them, in any order of columns.",
                   LUNA_KIND_QUANT,
                   luna::gptq::kTable)
