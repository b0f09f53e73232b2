// A weight format that works, with one fault, chosen by the name that it is linked with: bytes as
// codes, w = (code - 128) / 128. Compiled once.
#include "zoo_descriptor.hpp"

#include <luna/quant.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

using luna::Result;
using luna::TensorTable;
using luna::WeightId;

constexpr std::uint32_t kGroup = 32;
constexpr float kScale = 1.0F / 128.0F;

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

const std::uint8_t* row_of(const luna_tensor_entry& entry, std::uint64_t row) {
  return static_cast<const std::uint8_t*>(entry.bytes) + row * entry.dims[1];
}

class Bytes final : public luna::Quantization {
 public:
  static Result<std::unique_ptr<Bytes>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<Bytes>();
  }

  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t i) const override {
    const luna_tensor_entry& e = table.entry(i);
    if (is("scores_high")) return 1000;
    return e.container == LUNA_CONTAINER_SAFETENSORS && e.type == LUNA_DTYPE_U8 ? 100 : 0;
  }

  [[nodiscard]] Result<luna_weight_desc> describe(const TensorTable& table,
                                                  const WeightId& weight) const override {
    const luna_tensor_entry& e = table.entry(weight.entry);
    const bool checks_bytes = !is("believes_the_shape");
    if (e.rank != 2 || e.dims[0] == 0 || e.dims[1] == 0 || e.dims[1] % kGroup != 0 ||
        e.dims[0] > 4096 || e.dims[1] > 4096 ||
        (checks_bytes && e.n_bytes != e.dims[0] * e.dims[1]))
      return luna::Error{luna::Code::corrupt, "not a matrix of bytes"};
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.klass = LUNA_WEIGHT_AFFINE;
    desc.flags = LUNA_WEIGHT_EXACT;
    desc.bits = 8;
    desc.group = kGroup;
    desc.zero = 128.0F;
    desc.n_rows = e.dims[0];
    desc.n_cols = e.dims[1];
    desc.row_bytes[LUNA_PLANE_CODES] = desc.n_cols;
    desc.row_bytes[LUNA_PLANE_SCALE] = desc.n_cols / kGroup * sizeof(float);
    return desc;
  }

  Result<void> decode(const TensorTable& table,
                      const WeightId& weight,
                      const luna_weight_desc& desc,
                      const luna_weight_rows& rows) const override {
    const luna_tensor_entry& e = table.entry(weight.entry);
    const bool checks_rows = !is("decodes_behind_the_end");
    if (checks_rows && (rows.first_row > desc.n_rows || rows.n_rows > desc.n_rows - rows.first_row))
      return luna::Error{luna::Code::invalid_argument, "rows behind the last"};
    for (std::uint64_t row = 0; row < rows.n_rows; ++row) {
      auto* const codes =
          static_cast<std::uint8_t*>(rows.planes[LUNA_PLANE_CODES]) + row * desc.n_cols;
      const std::uint64_t from = is("decodes_from_the_top") ? row : rows.first_row + row;
      std::memcpy(codes, row_of(e, from), desc.n_cols);
      if (is("off_by_one")) codes[desc.n_cols - 1] ^= 1;
      if (is("writes_behind_its_plane") && row + 1 == rows.n_rows) codes[desc.n_cols + 64] = 0;
      auto* const scales = static_cast<float*>(rows.planes[LUNA_PLANE_SCALE]);
      for (std::uint64_t group = 0; group < desc.n_cols / kGroup; ++group)
        scales[row * (desc.n_cols / kGroup) + group] = kScale;
    }
    return {};
  }

  Result<void> row_f32(const TensorTable& table,
                       const WeightId& weight,
                       std::uint64_t row,
                       float* out) const override {
    const luna_tensor_entry& e = table.entry(weight.entry);
    for (std::uint64_t col = 0; col < e.dims[1]; ++col)
      out[col] = kScale * (static_cast<float>(row_of(e, row)[col]) - 128.0F);
    return {};
  }
};

constexpr luna_quant_if kSound = luna::quant_table<Bytes>();

luna_status describe(void* self,
                     const luna_tensor_table* entries,
                     luna_str name,
                     std::uint64_t entry,
                     luna_weight_desc* desc,
                     luna_err* err) {
  const luna_status status = kSound.describe(self, entries, name, entry, desc, err);
  if (is("counts_its_own_size") && status == LUNA_OK) desc->struct_size = sizeof(*desc) + 8;
  return status;
}

constexpr luna_quant_if kTable = [] {
  luna_quant_if table = kSound;
  table.describe = describe;
  return table;
}();

const void* table(const char* kind) {
  return std::string_view(kind) == LUNA_KIND_QUANT ? &kTable : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t /*minor*/) {
  static constexpr luna_plugin kPlugin = zoo_plugin("A format with one fault.", table);
  return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;
}
