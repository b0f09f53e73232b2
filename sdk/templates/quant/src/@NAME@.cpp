// Decodes matrices of 8-bit codes, stored as type U8 of safetensors: w = (code - 128) / 128. Put
// your format's layout in its place.
#include <luna/quant.hpp>

#include <memory>
#include <string>

class @CLASS@ final : public luna::Quantization {
 public:
  static luna::Result<std::unique_ptr<@CLASS@>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<@CLASS@>();
  }

  std::int32_t score(const luna::TensorTable& table, std::uint64_t i) const override {
    return i < table.size() && is_ours(table.entry(i)) ? 100 : 0;
  }

  luna::Result<luna_weight_desc> describe(const luna::TensorTable& table,
                                          const luna::WeightId& weight) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    luna_weight_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.klass = LUNA_WEIGHT_AFFINE;
    desc.flags = LUNA_WEIGHT_EXACT;
    desc.bits = 8;
    desc.group = kGroup;
    desc.zero = 128.0F;  // offset = -zero * scale
    desc.n_rows = entry->dims[0];
    desc.n_cols = entry->dims[1];
    desc.row_bytes[LUNA_PLANE_CODES] = desc.n_cols;
    desc.row_bytes[LUNA_PLANE_SCALE] = desc.n_cols / kGroup * sizeof(float);
    return desc;
  }

  luna::Result<void> decode(const luna::TensorTable& table, const luna::WeightId& weight,
                            const luna_weight_desc& desc,
                            const luna_weight_rows& rows) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    if (rows.first_row > desc.n_rows || rows.n_rows > desc.n_rows - rows.first_row)
      return luna::Error{luna::Code::invalid_argument, "rows beyond the weight's last"};
    for (std::uint64_t row = 0; row < rows.n_rows; ++row) {
      auto* codes = static_cast<std::uint8_t*>(rows.planes[LUNA_PLANE_CODES]) + row * desc.n_cols;
      std::memcpy(codes, bytes_of(*entry, rows.first_row + row), desc.n_cols);
      auto* scales = static_cast<float*>(rows.planes[LUNA_PLANE_SCALE]);
      for (std::uint64_t group = 0; group < desc.n_cols / kGroup; ++group)
        scales[row * (desc.n_cols / kGroup) + group] = kScale;
    }
    return {};
  }

  // The format's own definition, by which decode() is checked.
  luna::Result<void> row_f32(const luna::TensorTable& table, const luna::WeightId& weight,
                             std::uint64_t row, float* out) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    if (row >= entry->dims[0])
      return luna::Error{luna::Code::invalid_argument, "a row beyond the weight's last"};
    for (std::uint64_t col = 0; col < entry->dims[1]; ++col)
      out[col] = kScale * (static_cast<float>(bytes_of(*entry, row)[col]) - 128.0F);
    return {};
  }

 private:
  static constexpr std::uint32_t kGroup = 32;
  static constexpr float kScale = 1.0F / 128.0F;

  // All that is read of an entry is checked here: a file may say anything.
  static bool is_ours(const luna_tensor_entry& entry) {
    if (entry.container != LUNA_CONTAINER_SAFETENSORS || entry.type != LUNA_DTYPE_U8) return false;
    if (entry.rank != 2) return false;
    const std::uint64_t n_rows = entry.dims[0];
    const std::uint64_t n_cols = entry.dims[1];
    if (n_rows == 0 || n_cols == 0 || n_cols % kGroup != 0) return false;
    return entry.n_bytes / n_cols == n_rows && entry.n_bytes % n_cols == 0;
  }
  static luna::Result<const luna_tensor_entry*> find(const luna::TensorTable& table,
                                                     const luna::WeightId& weight) {
    if (weight.entry < table.size() && is_ours(table.entry(weight.entry)))
      return &table.entry(weight.entry);
    return luna::Error{luna::Code::unsupported,
                       std::string(weight.name) + ": not a matrix of 8-bit codes in groups of 32"};
  }
  static const std::uint8_t* bytes_of(const luna_tensor_entry& entry, std::uint64_t row) {
    return static_cast<const std::uint8_t*>(entry.bytes) + row * entry.dims[1];
  }
};

static constexpr luna_quant_if kTable = luna::quant_table<@CLASS@>();

LUNA_DEFINE_PLUGIN("@ID@", "@NAME@", "0.1.0", "Matrices of 8-bit codes with one scale.",
                   LUNA_KIND_QUANT, kTable)
