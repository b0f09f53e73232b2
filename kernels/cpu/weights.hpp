// Weights as the kernels see them: the canonical planes they are packed from, and the packed form.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luna::kernels {

enum class WeightClass : std::uint8_t { dense, affine, code_book };
enum class DenseType : std::uint8_t { f32, f16, bf16 };

/// What the canonical planes of a weight hold, [n_rows (outputs), n_cols (inputs)].
///   affine     w = scale * q + offset, unsigned codes q, one a byte
///   code_book  w = scale * code_book[q]; the 16 values are integers in -128..127
/// One level of scales: F32 scale (and offset) a group. Two levels (super_block > 0): scale =
/// super_scale * sub_scale, offset = super_offset * sub_offset; a signed byte a group times an F32
/// a super-block. Without has_offset, offset = -zero * scale.
struct WeightForm {
  WeightClass klass = WeightClass::dense;
  DenseType dense_type = DenseType::f32;
  int bits = 0;                  // affine: 2..8; code_book: 4
  std::int64_t group = 0;        // 16 (two levels only), 32, 64, 128, or a multiple of 128
  std::int64_t super_block = 0;  // a multiple of group, at most 256; 0: one level
  bool has_offset = false;
  int zero = 0;  // 0 for code books
  std::int8_t code_book[16] = {};
  std::int64_t n_rows = 0;
  std::int64_t n_cols = 0;
  std::int64_t segment = 0;      // columns of a segment of K: arithmetic.hpp's segment_length()
  int activation_bits_max = 12;  // of quantized weights; 8: class `i8`
  bool is_dequantized = false;   // class `bf16`: packing rounds the weights' values to BF16
};

/// Rows of canonical planes. Each plane starts at the range's first row.
struct WeightRows {
  const void* codes = nullptr;  // or dense values; u8, f32, f16 or bf16
  std::size_t codes_stride_bytes = 0;
  const float* scale = nullptr;  // a group
  std::size_t scale_stride_bytes = 0;
  const float* offset = nullptr;
  std::size_t offset_stride_bytes = 0;
  const std::int8_t* sub_scale = nullptr;  // a group
  std::size_t sub_scale_stride_bytes = 0;
  const std::int8_t* sub_offset = nullptr;
  std::size_t sub_offset_stride_bytes = 0;
  const float* super_scale = nullptr;  // a super-block
  std::size_t super_scale_stride_bytes = 0;
  const float* super_offset = nullptr;
  std::size_t super_offset_stride_bytes = 0;
};

/// How codes lie in a strip (16 rows of the weight, the columns of the output).
///   nibbles  256 bytes for 32 inputs: 4 lines of 16 words; word n (column n) of line j holds eight
///            codes, bits 16p + 4i are input 8j + 2i + p
///   bytes    512 bytes for 32 inputs: 8 lines; byte b of word n of line 2j is input
///            8j + {0, 4, 1, 5}[b], of line 2j + 1 input 8j + {2, 6, 3, 7}[b]: as the low and the
///            high nibbles of a line above, so that both meet the same order of activations
///   bf16     1024 bytes for 32 inputs: 16 lines; halves of word n of line j are inputs 2j, 2j + 1
enum class CodeStorage : std::uint8_t { nibbles, bytes, bf16 };

/// The packed form of a weight. Strips follow each other; a strip is its codes over all of K, then
/// its scale records, one a group (or super-block): [16] scales (, [16] offsets) as f16 or f32, and
/// for super-blocks [n_sub][16] sub-scales (, [n_sub][16] sub-offsets).
struct PackedForm {
  WeightForm form;
  CodeStorage storage = CodeStorage::bf16;
  bool codes_are_signed = false;  // bytes that already had the zero subtracted
  bool wide_scales = false;       // f32 instead of f16
  bool has_offsets = false;       // the records hold offsets
  std::int64_t scale_group = 0;   // columns of a scale record; a multiple of 32
  std::int64_t n_groups = 0;      // scale records of a strip
  std::int64_t k_padded = 0;      // n_cols rounded up to 32
  std::int64_t n_strips = 0;
  std::size_t codes_bytes = 0;   // of a strip
  std::size_t record_bytes = 0;  // of a scale record
  std::size_t strip_bytes = 0;   // a multiple of 64
  int activation_bits = 0;       // 0: dense, activations are BF16
  std::int64_t activation_group = 0;
  [[nodiscard]] bool is_dense() const { return storage == CodeStorage::bf16; }
};

enum class ScaleStorage : std::uint8_t { f16, f32 };

/// Plans the packed form of a weight.
///
/// storage  f16 holds every GGUF format exactly; pack_rows() tells when a scale does not fit
/// Returns  whether the kernels know this form (if not, *packed is untouched)
bool plan_packing(const WeightForm& form, ScaleStorage storage, PackedForm* packed);

/// Bytes of all strips. The memory must be 64-byte aligned.
std::size_t packed_bytes(const PackedForm& packed);

/// Packs rows [first_row, first_row + n_rows) of a weight. Disjoint ranges may run in parallel.
///
/// first_row  a multiple of 16
/// n_rows     a multiple of 16, except in the range that holds the weight's last row
/// dst        start of the packed weight, 64-byte aligned
/// Returns    whether every scale was held exactly; if not, plan with ScaleStorage::f32 and repeat
bool pack_rows(const PackedForm& packed,
               const WeightRows& rows,
               std::int64_t first_row,
               std::int64_t n_rows,
               std::byte* dst);

}  // namespace luna::kernels
