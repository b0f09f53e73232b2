// Plugin "dense": numbers as safetensors hold them. FP32, FP16 and BF16 pass as they are; FP8
// becomes BF16, which has all its values, and with scales FP32.
#include <luna/backend_blocks.hpp>
#include <luna/weight_parts.hpp>

#include <cstring>
#include <memory>
#include <string>

namespace luna::dense {
namespace {

/// A scale of FP8 values: the whole weight's, a row's, or a block's.
struct Scales {
  FloatEntry values;
  std::uint64_t block_rows = 1;
  std::uint64_t block_cols = 1;
  std::uint64_t n_block_cols = 1;

  [[nodiscard]] float at(std::uint64_t row, std::uint64_t col) const {
    return values.at(row / block_rows * n_block_cols + col / block_cols);
  }
};

/// A weight of the file, its sizes checked against its bytes.
struct Source {
  std::uint32_t type = LUNA_DTYPE_F32;
  std::uint64_t n_rows = 0;
  std::uint64_t n_cols = 0;
  FloatEntry values;
  const std::uint8_t* bytes = nullptr;
  std::optional<Scales> scales;

  [[nodiscard]] bool is_fp8() const {
    return type == LUNA_DTYPE_F8_E4M3 || type == LUNA_DTYPE_F8_E5M2;
  }
  [[nodiscard]] std::uint32_t dtype() const {
    if (!is_fp8()) return type;
    return scales ? LUNA_DTYPE_F32 : LUNA_DTYPE_BF16;
  }
  [[nodiscard]] float value(std::uint64_t row, std::uint64_t col) const {
    const float value = values.at(row * n_cols + col);
    return scales ? value * scales->at(row, col) : value;
  }
};

// "weight_scale" multiplies the weight or its rows, "weight_scale_inv" blocks of it (the name is
// its inventors'; it multiplies too). "input_scale" is about activations, which Luna scales itself.
constexpr std::string_view kScale = "weight_scale";
constexpr std::string_view kBlockScale = "weight_scale_inv";

/// The part that holds the values.
std::string_view value_part(const WeightParts& parts) {
  return parts.find("bias") != nullptr ? "bias" : "weight";
}

bool has_known_parts(const WeightParts& parts) {
  return parts.only({"weight", "bias", kScale, kBlockScale, "input_scale"}) &&
         (parts.find(kScale) == nullptr || parts.find(kBlockScale) == nullptr);
}

Result<Scales> read_row_scales(const WeightParts& parts, const Source& source) {
  LUNA_TRY(const luna_tensor_entry* entry, parts.need_floats(kScale));
  const std::uint64_t n_rows = entry->rank >= 1 ? entry->dims[0] : 1;
  const std::uint64_t n_cols = entry->rank == 2 ? entry->dims[1] : 1;
  if (n_cols != 1 || (n_rows != 1 && n_rows != source.n_rows)) {
    return parts.wrong(kScale,
                       "of shape " + shape_text(*entry) +
                           ": must be one value, or one for each of " +
                           std::to_string(source.n_rows) + " rows");
  }
  Scales scales{FloatEntry(*entry)};
  scales.block_rows = n_rows == 1 ? source.n_rows : 1;
  scales.block_cols = source.n_cols;
  return scales;
}

/// One scale a block of 128 x 128; the shape of the scales says whether it is so.
Result<Scales> read_block_scales(const WeightParts& parts, const Source& source) {
  LUNA_TRY(const luna_tensor_entry* entry, parts.need_floats(kBlockScale));
  constexpr std::uint64_t kBlock = 128;  // the only size that is in use
  const std::uint64_t n_block_rows = (source.n_rows + kBlock - 1) / kBlock;
  const std::uint64_t n_block_cols = (source.n_cols + kBlock - 1) / kBlock;
  if (entry->rank != 2 || entry->dims[0] != n_block_rows || entry->dims[1] != n_block_cols) {
    return parts.wrong(kBlockScale,
                       "of shape " + shape_text(*entry) + ": blocks of 128 x 128 make " +
                           std::to_string(n_block_rows) + " x " + std::to_string(n_block_cols));
  }
  return Scales{FloatEntry(*entry), kBlock, kBlock, n_block_cols};
}

Result<Source> find_source(const TensorTable& table, const WeightId& weight) {
  const WeightParts parts(table, weight.name);
  const std::string_view values = value_part(parts);
  const luna_tensor_entry* entry = parts.find(values);
  if (entry == nullptr) return parts.wrong(values, "missing");
  if (!has_known_parts(parts)) return parts.unsupported("has parts that a dense weight has not");
  if (entry->rank < 1) return parts.wrong(values, "of rank 0");
  LUNA_TRY(parts.need_floats(values));
  Source source;
  source.type = entry->type;
  source.n_rows = entry->rank == 2 ? entry->dims[0] : 1;
  source.n_cols = entry->rank == 2 ? entry->dims[1] : entry->dims[0];
  source.values = FloatEntry(*entry);
  source.bytes = static_cast<const std::uint8_t*>(entry->bytes);
  const bool has_scale = parts.find(kScale) != nullptr || parts.find(kBlockScale) != nullptr;
  if (!has_scale) return source;
  if (!source.is_fp8()) return parts.unsupported("scales beside values that are not FP8");
  if (parts.find(kScale) != nullptr) {
    LUNA_TRY(source.scales, read_row_scales(parts, source));
  } else {
    LUNA_TRY(source.scales, read_block_scales(parts, source));
  }
  return source;
}

class DenseQuantization final : public Quantization {
 public:
  static Result<std::unique_ptr<DenseQuantization>> create(Host /*host*/,
                                                           const Settings& /*settings*/) {
    return std::make_unique<DenseQuantization>();
  }

  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    if (entry >= table.size()) return 0;
    const WeightParts parts = WeightParts::around(table, entry);
    const luna_tensor_entry* weight = parts.find(value_part(parts));
    const bool is_known = weight != nullptr && FloatEntry::is_float(weight->type);
    return is_known && has_known_parts(parts) ? 100 : 0;
  }

  [[nodiscard]] Result<luna_weight_desc> describe(const TensorTable& table,
                                                  const WeightId& weight) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.klass = LUNA_WEIGHT_DENSE;
    desc.flags = LUNA_WEIGHT_EXACT;
    desc.dtype = source.dtype();
    desc.n_rows = source.n_rows;
    desc.n_cols = source.n_cols;
    desc.row_bytes[LUNA_PLANE_VALUES] = source.n_cols * dtype_bytes(desc.dtype);
    return desc;
  }

  Result<void> decode(const TensorTable& table,
                      const WeightId& weight,
                      const luna_weight_desc& desc,
                      const luna_weight_rows& rows) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    const std::string where = "weight " + std::string(weight.name);
    if (rows.first_row > source.n_rows || rows.n_rows > source.n_rows - rows.first_row) {
      return Error{Code::invalid_argument,
                   where + ": rows " + std::to_string(rows.first_row) + " + " +
                       std::to_string(rows.n_rows) + " of " + std::to_string(source.n_rows)};
    }
    const std::uint64_t row_bytes = source.n_cols * dtype_bytes(source.dtype());
    auto* plane = static_cast<std::uint8_t*>(rows.planes[LUNA_PLANE_VALUES]);
    if (plane == nullptr || desc.row_bytes[LUNA_PLANE_VALUES] < row_bytes)
      return Error{Code::invalid_argument, where + ": plane 0 is too small"};
    for (std::uint64_t i = 0; i < rows.n_rows; ++i)
      write_row(source, rows.first_row + i, plane + i * desc.row_bytes[LUNA_PLANE_VALUES]);
    return {};
  }

  Result<void> row_f32(const TensorTable& table,
                       const WeightId& weight,
                       std::uint64_t row,
                       float* out) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    if (row >= source.n_rows) {
      return Error{Code::invalid_argument,
                   "weight " + std::string(weight.name) + ": row " + std::to_string(row) + " of " +
                       std::to_string(source.n_rows)};
    }
    for (std::uint64_t col = 0; col < source.n_cols; ++col)
      out[col] = source.value(row, col);
    return {};
  }

 private:
  static void write_row(const Source& source, std::uint64_t row, std::uint8_t* out) {
    if (!source.is_fp8()) {
      const std::uint64_t n_bytes = source.n_cols * dtype_bytes(source.type);
      std::memcpy(out, source.bytes + row * n_bytes, n_bytes);
      return;
    }
    for (std::uint64_t col = 0; col < source.n_cols; ++col) {
      const float value = source.value(row, col);
      const std::uint16_t half = f32_to_bf16(value);
      if (source.scales)
        std::memcpy(out + 4 * col, &value, sizeof(value));
      else
        std::memcpy(out + 2 * col, &half, sizeof(half));
    }
  }
};

constexpr luna_quant_if kTable = quant_table<DenseQuantization>();

}  // namespace
}  // namespace luna::dense

LUNA_DEFINE_PLUGIN("org.luna.quant.dense",
                   "dense",
                   "0.1.0",
                   "FP32, FP16, BF16 and FP8 of safetensors, exactly.",
                   LUNA_KIND_QUANT,
                   luna::dense::kTable)
