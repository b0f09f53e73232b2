// Decodes TQ2_0 of GGUF files: weights of -1, 0 and 1 times a scale, as ternary models have them.
//
// A block is 256 values of a row: 64 bytes of 2-bit codes, then the scale as FP16; w = scale *
// (code - 1). Each half of 32 bytes holds 128 values: byte m has those of columns m, 32 + m, 64 + m
// and 96 + m, lowest bits first. (ggml, block_tq2_0)
#include <luna/float16.hpp>
#include <luna/quant.hpp>

#include <memory>
#include <string>

class Tq2 final : public luna::Quantization {
 public:
  static luna::Result<std::unique_ptr<Tq2>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<Tq2>();
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
    desc.bits = 2;
    desc.group = kGroup;
    desc.zero = 1.0F;  // offset = -zero * scale
    desc.n_rows = entry->dims[0];
    desc.n_cols = entry->dims[1];
    desc.row_bytes[LUNA_PLANE_CODES] = desc.n_cols;
    desc.row_bytes[LUNA_PLANE_SCALE] = desc.n_cols / kGroup * sizeof(float);
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
        for (std::uint32_t group = 0; group < kBlockValues / kGroup; ++group)
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
      out[col] = scale_of(from) * (static_cast<float>(code_of(from, col % kBlockValues)) - 1.0F);
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kTypeTq2 = 35;  // of ggml
  static constexpr std::uint32_t kBlockValues = 256;
  static constexpr std::uint32_t kCodeBytes = 64;
  static constexpr std::uint32_t kBlockBytes = kCodeBytes + 2;
  static constexpr std::uint32_t kGroup = 128;  // of the canonical form: two of a block

  // All that is read of an entry is checked here: a file may say anything.
  static bool is_ours(const luna_tensor_entry& entry) {
    if (entry.container != LUNA_CONTAINER_GGUF || entry.type != kTypeTq2) return false;
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
                       std::string(weight.name) + ": not a matrix of TQ2_0 blocks"};
  }
  static const std::uint8_t* block_of(const luna_tensor_entry& entry,
                                      std::uint64_t row,
                                      std::uint64_t block) {
    const std::uint64_t n_blocks = entry.dims[1] / kBlockValues;
    return static_cast<const std::uint8_t*>(entry.bytes) + (row * n_blocks + block) * kBlockBytes;
  }
  static std::uint8_t code_of(const std::uint8_t* block, std::uint32_t i) {
    return block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3U;
  }
  static float scale_of(const std::uint8_t* block) {
    std::uint16_t bits;
    std::memcpy(&bits, block + kCodeBytes, sizeof(bits));
    return luna::f16_to_f32(bits);
  }
};

static constexpr luna_quant_if kTable = luna::quant_table<Tq2>();

LUNA_DEFINE_PLUGIN("org.luna.example.quant.tq2",
                   "tq2",
                   "0.1.0",
                   "TQ2_0 of GGUF: ternary weights.",
                   LUNA_KIND_QUANT,
                   kTable)
