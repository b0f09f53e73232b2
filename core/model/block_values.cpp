#include "core/model/block_values.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/quant.hpp>

#include <array>
#include <string>

namespace luna::model {

Result<std::vector<float>> values_of_blocks(QuantInstances quants,
                                            std::uint32_t type,
                                            std::span<const std::byte> bytes,
                                            std::uint64_t n_rows,
                                            std::uint64_t n_cols) {
  luna_tensor_entry entry{};
  entry.name = to_abi("blocks.weight");
  entry.container = LUNA_CONTAINER_GGUF;
  entry.type = type;
  entry.rank = 2;
  entry.dims[0] = n_rows;
  entry.dims[1] = n_cols;
  entry.dims[2] = entry.dims[3] = 1;
  entry.bytes = bytes.data();
  entry.n_bytes = bytes.size();
  luna_tensor_table table{};
  table.struct_size = sizeof(table);
  table.entry_stride = sizeof(entry);
  table.n_entries = 1;
  table.entries = &entry;
  for (const auto& quant : quants) {
    if (quant->score(quant.self(), &table, 0) <= 0) continue;
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    luna_err err = make_err();
    LUNA_TRY(to_result(
        quant->describe(quant.self(), &table, entry.name, 0, &desc, &err), err, quant.name()));
    LUNA_TRY(check_weight_desc(&desc));
    if (desc.n_rows != n_rows || desc.n_cols != n_cols)
      return Error{Code::internal, "plugin " + quant.name() + ": describes another shape"};
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.n_rows = n_rows;
    std::array<std::vector<std::byte>, LUNA_N_PLANES> planes;
    for (std::uint32_t i = 0; i < LUNA_N_PLANES; ++i) {
      planes[i].resize(desc.row_bytes[i] * n_rows);
      if (!planes[i].empty()) rows.planes[i] = planes[i].data();
    }
    LUNA_TRY(to_result(
        quant->decode(quant.self(), &table, entry.name, 0, &desc, &rows, &err), err, quant.name()));
    const CanonicalRows canonical(desc, rows);
    std::vector<float> values(n_rows * n_cols);
    for (std::uint64_t i = 0; i < values.size(); ++i)
      values[i] = canonical.value(i / n_cols, i % n_cols);
    return values;
  }
  return Error{Code::unsupported,
               "no quantization plugin decodes GGUF's type " + std::to_string(type)};
}

}  // namespace luna::model
