// A row by hand: the planes and the definition say the same, and what was put in.
#include "../src/tq2.cpp"

#include <cstdio>
#include <vector>

int main() {
  constexpr std::uint64_t kCols = 256;
  std::vector<std::uint8_t> bytes(2 * 66);  // two rows of a block
  std::uint8_t* const second = bytes.data() + 66;
  second[3] = 0b10'01'00'10;       // columns 3, 35, 67 and 99: 1, -1, 0, 1
  second[32 + 5] = 0b00'00'10'00;  // column 128 + 32 + 5: 1
  second[64] = 0x00;               // the scale, 0.5 as FP16
  second[65] = 0x38;
  luna_tensor_entry entry = {};
  entry.name = luna::to_abi("w");
  entry.container = LUNA_CONTAINER_GGUF;
  entry.type = 35;
  entry.rank = 2;
  entry.dims[0] = 2;
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
  const Tq2 format;
  const auto desc = format.describe(table, weight);
  if (format.score(table, 0) != 100 || !desc) return 1;
  std::vector<std::uint8_t> codes(2 * desc->row_bytes[LUNA_PLANE_CODES]);
  std::vector<float> scales(2 * desc->row_bytes[LUNA_PLANE_SCALE] / sizeof(float));
  luna_weight_rows rows = {};
  rows.struct_size = sizeof(rows);
  rows.n_rows = 2;
  rows.planes[LUNA_PLANE_CODES] = codes.data();
  rows.planes[LUNA_PLANE_SCALE] = scales.data();
  if (!format.decode(table, weight, *desc, rows)) return 1;
  const luna::CanonicalRows canonical(*desc, rows);
  std::vector<float> defined(kCols);
  if (!format.row_f32(table, weight, 1, defined.data())) return 1;
  for (std::uint64_t col = 0; col < kCols; ++col)
    if (canonical.value(1, col) != defined[col]) return 1;
  // By the format's description, not by the code.
  const bool is_right = defined[3] == 0.5F && defined[35] == -0.5F && defined[67] == 0.0F &&
                        defined[99] == 0.5F && defined[165] == 0.5F && defined[133] == -0.5F;
  if (!is_right) {
    std::printf("%g %g %g %g %g %g\n",
                defined[3],
                defined[35],
                defined[67],
                defined[99],
                defined[165],
                defined[133]);
    return 1;
  }
  entry.n_bytes -= 1;  // a file that was cut off
  return format.score(table, 0) == 0 && !format.describe(table, weight) ? 0 : 1;
}
