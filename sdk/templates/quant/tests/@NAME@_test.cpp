// One matrix, decoded two ways: the canonical planes say what the format's definition says.
#include "../src/@NAME@.cpp"

#include <cstdio>
#include <vector>

int main() {
  constexpr std::uint64_t kRows = 3;
  constexpr std::uint64_t kCols = 64;
  std::vector<std::uint8_t> bytes(kRows * kCols);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 37);
  luna_tensor_entry entry = {};
  entry.name = luna::to_abi("w");
  entry.container = LUNA_CONTAINER_SAFETENSORS;
  entry.type = LUNA_DTYPE_U8;
  entry.rank = 2;
  entry.dims[0] = kRows;
  entry.dims[1] = kCols;
  entry.bytes = bytes.data();
  entry.n_bytes = bytes.size();
  luna_tensor_table raw = {};
  raw.struct_size = sizeof(raw);
  raw.entry_stride = sizeof(entry);
  raw.n_entries = 1;
  raw.entries = &entry;
  const luna::TensorTable table(raw);
  const luna::WeightId weight = {"w", 0};
  const @CLASS@ format;
  const auto desc = format.describe(table, weight);
  if (format.score(table, 0) != 100 || !desc) return 1;
  std::vector<std::uint8_t> codes(kRows * desc->row_bytes[LUNA_PLANE_CODES]);
  std::vector<float> scales(kRows * desc->row_bytes[LUNA_PLANE_SCALE] / sizeof(float));
  luna_weight_rows rows = {};
  rows.struct_size = sizeof(rows);
  rows.n_rows = kRows;
  rows.planes[LUNA_PLANE_CODES] = codes.data();
  rows.planes[LUNA_PLANE_SCALE] = scales.data();
  if (!format.decode(table, weight, *desc, rows)) return 1;
  const luna::CanonicalRows canonical(*desc, rows);
  for (std::uint64_t row = 0; row < kRows; ++row) {
    std::vector<float> defined(kCols);
    if (!format.row_f32(table, weight, row, defined.data())) return 1;
    for (std::uint64_t col = 0; col < kCols; ++col)
      if (canonical.value(row, col) != defined[col]) {
        std::printf("row %u, column %u differs\n", unsigned(row), unsigned(col));
        return 1;
      }
  }
  entry.n_bytes -= 1;  // a file that was cut off
  return format.score(table, 0) == 0 && !format.describe(table, weight) ? 0 : 1;
}
