// Decodes MXFP4 of GGUF files: blocks of 32 four-bit floats (E2M1) with one power of two.
//
// A block is 32 values of a row: one byte e, then 16 bytes of codes, the low half of byte i for
// column i, the high half for column 16 + i. w = 2^(e - 128) * table[code]; the table has the E2M1
// values doubled, so that they are integers. (OCP Microscaling formats 1.0; ggml, block_mxfp4)
#include <luna/quant.hpp>

#include <cmath>
#include <memory>
#include <string>

class Mxfp4 final : public luna::Quantization {
 public:
  static luna::Result<std::unique_ptr<Mxfp4>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<Mxfp4>();
  }

  std::int32_t score(const luna::TensorTable& table, std::uint64_t i) const override {
    return i < table.size() && is_ours(table.entry(i)) ? 100 : 0;
  }

  luna::Result<luna_weight_desc> describe(const luna::TensorTable& table,
                                          const luna::WeightId& weight) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    luna_weight_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.klass = LUNA_WEIGHT_LUT;  // w = scale * lut[code]
    desc.flags = LUNA_WEIGHT_EXACT;
    desc.bits = 4;
    desc.group = kBlockValues;
    std::copy(std::begin(kDoubled), std::end(kDoubled), desc.lut);
    desc.n_rows = entry->dims[0];
    desc.n_cols = entry->dims[1];
    desc.row_bytes[LUNA_PLANE_CODES] = desc.n_cols;
    desc.row_bytes[LUNA_PLANE_SCALE] = desc.n_cols / kBlockValues * sizeof(float);
    return desc;
  }

  luna::Result<void> decode(const luna::TensorTable& table,
                            const luna::WeightId& weight,
                            const luna_weight_desc& desc,
                            const luna_weight_rows& rows) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    if (rows.first_row > desc.n_rows || rows.n_rows > desc.n_rows - rows.first_row)
      return luna::Error{luna::Code::invalid_argument, "rows beyond the weight's last"};
    auto* codes = static_cast<std::uint8_t*>(rows.planes[LUNA_PLANE_CODES]);
    auto* scales = static_cast<float*>(rows.planes[LUNA_PLANE_SCALE]);
    for (std::uint64_t row = 0; row < rows.n_rows; ++row)
      for (std::uint64_t block = 0; block < entry->dims[1] / kBlockValues; ++block) {
        const std::uint8_t* from = block_of(*entry, rows.first_row + row, block);
        for (std::uint32_t i = 0; i < kBlockValues; ++i)
          *codes++ = code_of(from, i);
        *scales++ = scale_of(from);
      }
    return {};
  }

  // The format's own definition, by which decode() is checked.
  luna::Result<void> row_f32(const luna::TensorTable& table,
                             const luna::WeightId& weight,
                             std::uint64_t row,
                             float* out) const override {
    LUNA_TRY(const luna_tensor_entry* entry, find(table, weight));
    if (row >= entry->dims[0])
      return luna::Error{luna::Code::invalid_argument, "a row beyond the weight's last"};
    for (std::uint64_t col = 0; col < entry->dims[1]; ++col) {
      const std::uint8_t* from = block_of(*entry, row, col / kBlockValues);
      out[col] = scale_of(from) * kDoubled[code_of(from, col % kBlockValues)];
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kTypeMxfp4 = 39;  // of ggml
  static constexpr std::uint32_t kBlockValues = 32;
  static constexpr std::uint32_t kBlockBytes = 17;
  static constexpr float kDoubled[16] = {0.0F,
                                         1.0F,
                                         2.0F,
                                         3.0F,
                                         4.0F,
                                         6.0F,
                                         8.0F,
                                         12.0F,
                                         0.0F,
                                         -1.0F,
                                         -2.0F,
                                         -3.0F,
                                         -4.0F,
                                         -6.0F,
                                         -8.0F,
                                         -12.0F};

  // All that is read of an entry is checked here: a file may say anything.
  static bool is_ours(const luna_tensor_entry& entry) {
    if (entry.container != LUNA_CONTAINER_GGUF || entry.type != kTypeMxfp4) return false;
    if (entry.rank != 2 || entry.dims[0] == 0 || entry.dims[1] == 0) return false;
    if (entry.dims[1] % kBlockValues != 0) return false;
    const std::uint64_t row_bytes = entry.dims[1] / kBlockValues * kBlockBytes;
    return entry.n_bytes / row_bytes == entry.dims[0] && entry.n_bytes % row_bytes == 0;
  }
  static luna::Result<const luna_tensor_entry*> find(const luna::TensorTable& table,
                                                     const luna::WeightId& weight) {
    if (weight.entry < table.size() && is_ours(table.entry(weight.entry)))
      return &table.entry(weight.entry);
    return luna::Error{luna::Code::unsupported,
                       std::string(weight.name) + ": not a matrix of MXFP4 blocks"};
  }
  static const std::uint8_t* block_of(const luna_tensor_entry& entry,
                                      std::uint64_t row,
                                      std::uint64_t block) {
    const std::uint64_t n_blocks = entry.dims[1] / kBlockValues;
    return static_cast<const std::uint8_t*>(entry.bytes) + (row * n_blocks + block) * kBlockBytes;
  }
  static std::uint8_t code_of(const std::uint8_t* block, std::uint32_t i) {
    return block[1 + i % 16] >> (i / 16 * 4) & 15U;
  }
  static float scale_of(const std::uint8_t* block) { return std::ldexp(1.0F, block[0] - 128); }
};

static constexpr luna_quant_if kTable = luna::quant_table<Mxfp4>();

LUNA_DEFINE_PLUGIN("org.luna.example.quant.mxfp4",
                   "mxfp4",
                   "0.1.0",
                   "MXFP4 of GGUF: four-bit floats with a power of two.",
                   LUNA_KIND_QUANT,
                   kTable)
