// The C++ side of a quantization format: derive from luna::Quantization and make the table with
// luna::quant_table<T>(). The thunks fence every call. canonical_value() says what planes mean.
#pragma once

#include <luna/float16.hpp>
#include <luna/plugin.hpp>

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace luna {

/// The host's table of a file's entries, read with its stride.
class TensorTable {
 public:
  explicit TensorTable(const luna_tensor_table& table) : table_(&table) {}

  [[nodiscard]] std::uint64_t size() const { return table_->n_entries; }
  /// i  below size()
  [[nodiscard]] const luna_tensor_entry& entry(std::uint64_t i) const {
    const auto* first = reinterpret_cast<const unsigned char*>(table_->entries);
    return *reinterpret_cast<const luna_tensor_entry*>(first + i * table_->entry_stride);
  }
  /// The entry of a name, or nullptr. O(n_entries)
  [[nodiscard]] const luna_tensor_entry* find(std::string_view name) const {
    for (std::uint64_t i = 0; i < size(); ++i)
      if (view(entry(i).name) == name) return &entry(i);
    return nullptr;
  }

  /// The container's keys: of a Hugging Face folder "quantization_config.bits" and so on,
  /// flattened.
  [[nodiscard]] std::span<const luna_kv> metadata() const {
    return {table_->metadata, table_->n_metadata};
  }
  /// The value of a key, or nullptr. O(n_metadata)
  [[nodiscard]] const luna_kv* find_metadata(std::string_view key) const {
    for (const luna_kv& row : metadata())
      if (view(row.key) == key) return &row;
    return nullptr;
  }

 private:
  const luna_tensor_table* table_;
};

/// The weight that the host asks for.
struct WeightId {
  std::string_view name;
  std::uint64_t entry = UINT64_MAX;  ///< UINT64_MAX where no entry has the name
};

/// Decodes a file's format to the canonical layout of abi/quant.h. An interface; one object per
/// instance, owned by the host. All calls are [load]: disjoint ranges in parallel, so they are
/// const. A subclass also has `static Result<std::unique_ptr<T>> create(Host, const Settings&)`.
class Quantization {
 public:
  virtual ~Quantization() = default;

  /// How sure the format is that it decodes an entry: 0 not at all .. 100.
  [[nodiscard]] virtual std::int32_t score(const TensorTable& table, std::uint64_t entry) const = 0;
  [[nodiscard]] virtual Result<luna_weight_desc> describe(const TensorTable& table,
                                                          const WeightId& weight) const = 0;
  /// Writes rows [first_row, first_row + n_rows) into the planes.
  virtual Result<void> decode(const TensorTable& table,
                              const WeightId& weight,
                              const luna_weight_desc& desc,
                              const luna_weight_rows& rows) const = 0;
  /// One row by the format's own definition. out  [n_cols]
  virtual Result<void> row_f32(const TensorTable& table,
                               const WeightId& weight,
                               std::uint64_t row,
                               float* out) const = 0;
};

/// The table of kind "quant" for class T.
template <typename T>
constexpr luna_quant_if quant_table(std::span<const luna_param> params = {}) {
  luna_quant_if table{};
  table.head = make_head<T, luna_quant_if>(params);
  table.score = [](void* self, const luna_tensor_table* entries, std::uint64_t entry) noexcept {
    try {
      return static_cast<const T*>(self)->score(TensorTable(*entries), entry);
    } catch (...) {
      return 0;
    }
  };
  table.describe = [](void* self,
                      const luna_tensor_table* entries,
                      luna_str name,
                      std::uint64_t entry,
                      luna_weight_desc* desc,
                      luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (!LUNA_HAS(desc, luna_weight_desc, lut))
        return Error{Code::invalid_argument, "describe: no room for a description"};
      const WeightId weight{view(name), entry};
      LUNA_TRY(const luna_weight_desc described,
               static_cast<const T*>(self)->describe(TensorTable(*entries), weight));
      fill_record(desc, described);
      return {};
    });
  };
  table.decode = [](void* self,
                    const luna_tensor_table* entries,
                    luna_str name,
                    std::uint64_t entry,
                    const luna_weight_desc* desc,
                    luna_weight_rows* rows,
                    luna_err* err) noexcept {
    return fenced(err, [&] {
      const WeightId weight{view(name), entry};
      return static_cast<const T*>(self)->decode(TensorTable(*entries), weight, *desc, *rows);
    });
  };
  table.row_f32 = [](void* self,
                     const luna_tensor_table* entries,
                     luna_str name,
                     std::uint64_t entry,
                     std::uint64_t row,
                     float* out,
                     luna_err* err) noexcept {
    return fenced(err, [&] {
      const WeightId weight{view(name), entry};
      return static_cast<const T*>(self)->row_f32(TensorTable(*entries), weight, row, out);
    });
  };
  return table;
}

/// Planes of a weight for reading: the definition of the canonical layout in code. For oracles and
/// checks; a backend packs whole rows instead.
class CanonicalRows {
 public:
  CanonicalRows(const luna_weight_desc& desc, const luna_weight_rows& rows)
      : desc_(desc), rows_(rows) {}

  /// The value at (row of the range, column), rounded once to F32. Exact for what a 16-bit float
  /// and small integers make, since double precision holds their products and sums.
  [[nodiscard]] float value(std::uint64_t row, std::uint64_t col) const {
    if (desc_.klass == LUNA_WEIGHT_DENSE) return dense_value(row, col);
    const auto code = read<std::uint8_t>(LUNA_PLANE_CODES, row, col);
    const double scale =
        level(row, col, LUNA_PLANE_SCALE, LUNA_PLANE_SUB_SCALE, LUNA_PLANE_SUPER_SCALE);
    if (desc_.klass == LUNA_WEIGHT_LUT) return static_cast<float>(scale * desc_.lut[code]);
    // offset = -zero * scale is taken out of the sum, so that an infinite scale stays one.
    if (desc_.has_offset == 0) return static_cast<float>(scale * (code - double{desc_.zero}));
    const double offset =
        level(row, col, LUNA_PLANE_OFFSET, LUNA_PLANE_SUB_OFFSET, LUNA_PLANE_SUPER_OFFSET);
    return static_cast<float>(scale * code + offset);
  }

 private:
  template <typename T>
  [[nodiscard]] T read(std::uint32_t plane, std::uint64_t row, std::uint64_t i) const {
    T value;
    const auto* bytes = static_cast<const unsigned char*>(rows_.planes[plane]);
    std::memcpy(&value, bytes + row * desc_.row_bytes[plane] + i * sizeof(T), sizeof(T));
    return value;
  }
  /// A scale or offset: of one level, or super times sub.
  [[nodiscard]] double level(std::uint64_t row,
                             std::uint64_t col,
                             std::uint32_t one_level,
                             std::uint32_t sub,
                             std::uint32_t super) const {
    if (desc_.super == 0) return read<float>(one_level, row, col / desc_.group);
    return double{read<float>(super, row, col / desc_.super)} *
           read<std::int8_t>(sub, row, col / desc_.group);
  }
  [[nodiscard]] float dense_value(std::uint64_t row, std::uint64_t col) const {
    if (desc_.dtype == LUNA_DTYPE_F32) return read<float>(LUNA_PLANE_VALUES, row, col);
    const auto half = read<std::uint16_t>(LUNA_PLANE_VALUES, row, col);
    return desc_.dtype == LUNA_DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
  }

  const luna_weight_desc& desc_;
  const luna_weight_rows& rows_;
};

}  // namespace luna
