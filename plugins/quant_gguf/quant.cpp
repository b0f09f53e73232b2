// Plugin "gguf": the block formats of GGUF files, decoded exactly into the canonical layout.
#include "formats.hpp"

#include <luna/quant.hpp>

#include <cstring>
#include <memory>
#include <string>

namespace luna::gguf {
namespace {

/// A weight of the file, its sizes checked against its bytes.
struct Source {
  const Format* format = nullptr;
  std::uint64_t n_rows = 0;
  std::uint64_t n_cols = 0;
  std::uint64_t n_blocks = 0;  // of a row
  const std::uint8_t* bytes = nullptr;

  [[nodiscard]] const std::uint8_t* row(std::uint64_t i) const {
    return bytes + i * n_blocks * format->block_bytes;
  }
};

Result<Source> find_source(const TensorTable& table, const WeightId& weight) {
  const std::string where = "tensor " + std::string(weight.name);
  if (weight.entry >= table.size()) return Error{Code::not_found, where + ": no such entry"};
  const luna_tensor_entry& entry = table.entry(weight.entry);
  if (entry.container != LUNA_CONTAINER_GGUF)
    return Error{Code::unsupported, where + ": not in a GGUF file"};
  Source source;
  source.format = format_by_type(entry.type);
  if (source.format == nullptr) {
    return Error{Code::unsupported,
                 where + ": type " + std::string(undecoded_name(entry.type)) + " (" +
                     std::to_string(entry.type) + ") is not decoded; known are " + known_formats()};
  }
  if (entry.rank < 1 || entry.rank > 3) {
    return Error{Code::unsupported,
                 where + ": of rank " + std::to_string(entry.rank) +
                     "; weights are vectors, matrices, or matrices of several experts"};
  }
  source.n_rows = 1;
  for (std::uint32_t d = 0; d + 1 < entry.rank; ++d)
    if (__builtin_mul_overflow(source.n_rows, entry.dims[d], &source.n_rows))
      return Error{Code::corrupt, where + ": more rows than 64 bits count"};
  source.n_cols = entry.dims[entry.rank - 1];
  source.n_blocks = source.n_cols / source.format->block_values;
  source.bytes = static_cast<const std::uint8_t*>(entry.bytes);
  std::uint64_t n_bytes = source.format->block_bytes;
  const bool overflows = __builtin_mul_overflow(n_bytes, source.n_blocks, &n_bytes) ||
                         __builtin_mul_overflow(n_bytes, source.n_rows, &n_bytes);
  if (overflows || n_bytes != entry.n_bytes || source.n_cols % source.format->block_values != 0) {
    return Error{Code::corrupt,
                 where + ": " + std::to_string(entry.n_bytes) + " bytes for " +
                     std::to_string(source.n_rows) + " x " + std::to_string(source.n_cols) +
                     " values of type " + std::string(source.format->name)};
  }
  return source;
}

/// Decodes one row, block after block, into planes that begin at that row.
void decode_row(const Source& source, std::uint64_t row, BlockPlanes planes) {
  const Format& format = *source.format;
  const std::uint32_t n_groups = format.block_values / format.group;
  const std::uint8_t* block = source.row(row);
  for (std::uint64_t b = 0; b < source.n_blocks; ++b, block += format.block_bytes) {
    format.decode(block, planes);
    planes.codes += format.block_values;
    if (format.super == 0) {
      planes.scale += n_groups;
      if (format.has_offset) planes.offset += n_groups;
    } else {
      planes.sub_scale += n_groups;
      planes.super_scale += 1;
      if (format.has_offset) planes.sub_offset += n_groups;
      if (format.has_offset) planes.super_offset += 1;
    }
  }
}

class GgufQuantization final : public Quantization {
 public:
  static Result<std::unique_ptr<GgufQuantization>> create(Host /*host*/,
                                                          const Settings& /*settings*/) {
    return std::make_unique<GgufQuantization>();
  }

  [[nodiscard]] std::int32_t score(const TensorTable& table, std::uint64_t entry) const override {
    if (entry >= table.size()) return 0;
    const luna_tensor_entry& e = table.entry(entry);
    const bool is_known = e.container == LUNA_CONTAINER_GGUF && format_by_type(e.type) != nullptr;
    return is_known ? 100 : 0;
  }

  [[nodiscard]] Result<luna_weight_desc> describe(const TensorTable& table,
                                                  const WeightId& weight) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    return describe_source(source);
  }

  Result<void> decode(const TensorTable& table,
                      const WeightId& weight,
                      const luna_weight_desc& desc,
                      const luna_weight_rows& rows) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    if (rows.first_row > source.n_rows || rows.n_rows > source.n_rows - rows.first_row) {
      return Error{Code::invalid_argument,
                   "tensor " + std::string(weight.name) + ": rows " +
                       std::to_string(rows.first_row) + " + " + std::to_string(rows.n_rows) +
                       " of " + std::to_string(source.n_rows)};
    }
    const luna_weight_desc own = describe_source(source);
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES; ++plane) {
      if (desc.row_bytes[plane] < own.row_bytes[plane] ||
          (own.row_bytes[plane] != 0 && rows.planes[plane] == nullptr)) {
        return Error{Code::invalid_argument,
                     "tensor " + std::string(weight.name) + ": plane " + std::to_string(plane) +
                         " is too small"};
      }
    }
    for (std::uint64_t i = 0; i < rows.n_rows; ++i)
      write_row(source, desc, rows, i);
    return {};
  }

  Result<void> row_f32(const TensorTable& table,
                       const WeightId& weight,
                       std::uint64_t row,
                       float* out) const override {
    LUNA_TRY(const Source source, find_source(table, weight));
    if (row >= source.n_rows) {
      return Error{Code::invalid_argument,
                   "tensor " + std::string(weight.name) + ": row " + std::to_string(row) + " of " +
                       std::to_string(source.n_rows)};
    }
    const std::uint8_t* block = source.row(row);
    for (std::uint64_t b = 0; b < source.n_blocks; ++b, block += source.format->block_bytes)
      source.format->values(block, out + b * source.format->block_values);
    return {};
  }

 private:
  static luna_weight_desc describe_source(const Source& source) {
    const Format& format = *source.format;
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.klass = format.klass;
    desc.flags = LUNA_WEIGHT_EXACT;
    desc.dtype = format.dtype;
    desc.bits = format.bits;
    desc.group = format.group;
    desc.super = format.super;
    desc.has_offset = format.has_offset ? 1 : 0;
    desc.zero = format.zero;
    desc.n_rows = source.n_rows;
    desc.n_cols = source.n_cols;
    if (format.klass == LUNA_WEIGHT_DENSE) {
      desc.row_bytes[LUNA_PLANE_VALUES] = source.n_cols * format.block_bytes;
      return desc;
    }
    const std::uint64_t n_groups = source.n_cols / format.group;
    desc.row_bytes[LUNA_PLANE_CODES] = source.n_cols;
    if (format.super == 0) {
      desc.row_bytes[LUNA_PLANE_SCALE] = n_groups * sizeof(float);
      if (format.has_offset) desc.row_bytes[LUNA_PLANE_OFFSET] = n_groups * sizeof(float);
    } else {
      desc.row_bytes[LUNA_PLANE_SUB_SCALE] = n_groups;
      desc.row_bytes[LUNA_PLANE_SUPER_SCALE] = source.n_blocks * sizeof(float);
      if (format.has_offset) {
        desc.row_bytes[LUNA_PLANE_SUB_OFFSET] = n_groups;
        desc.row_bytes[LUNA_PLANE_SUPER_OFFSET] = source.n_blocks * sizeof(float);
      }
    }
    if (format.klass == LUNA_WEIGHT_LUT)
      for (int i = 0; i < 16; ++i)
        desc.lut[i] = kIq4Values[i];
    return desc;
  }

  static void write_row(const Source& source,
                        const luna_weight_desc& desc,
                        const luna_weight_rows& rows,
                        std::uint64_t i) {
    const auto plane = [&]<typename T>(std::uint32_t number, T* /*type*/) -> T* {
      if (rows.planes[number] == nullptr) return nullptr;
      auto* first = static_cast<std::uint8_t*>(rows.planes[number]);
      return reinterpret_cast<T*>(first + i * desc.row_bytes[number]);
    };
    const std::uint64_t row = rows.first_row + i;
    BlockPlanes planes;
    planes.codes = plane(LUNA_PLANE_CODES, planes.codes);
    if (source.format->klass == LUNA_WEIGHT_DENSE) {
      std::memcpy(planes.codes, source.row(row), source.n_cols * source.format->block_bytes);
      return;
    }
    planes.scale = plane(LUNA_PLANE_SCALE, planes.scale);
    planes.offset = plane(LUNA_PLANE_OFFSET, planes.offset);
    planes.sub_scale = plane(LUNA_PLANE_SUB_SCALE, planes.sub_scale);
    planes.sub_offset = plane(LUNA_PLANE_SUB_OFFSET, planes.sub_offset);
    planes.super_scale = plane(LUNA_PLANE_SUPER_SCALE, planes.super_scale);
    planes.super_offset = plane(LUNA_PLANE_SUPER_OFFSET, planes.super_offset);
    decode_row(source, row, planes);
  }
};

constexpr luna_quant_if kTable = quant_table<GgufQuantization>();

}  // namespace
}  // namespace luna::gguf

LUNA_DEFINE_PLUGIN("org.luna.quant.gguf",
                   "gguf",
                   "0.1.0",
                   "Decodes the block formats of GGUF files exactly.",
                   LUNA_KIND_QUANT,
                   luna::gguf::kTable)
