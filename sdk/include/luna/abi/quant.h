/* Kind "quant": decodes a file's quantization format to the canonical layout of weights.
 *
 * Core alone reads containers (GGUF, safetensors) and hands over a read-only table of entries. A
 * quant plugin says which entries form a weight, describes it, and decodes ranges of rows. Every
 * backend reads the canonical layout; so formats + backends, not formats x backends.
 *
 * Canonical layout of a weight [n_rows (outputs), n_cols (inputs)]: planes, each row-major, rows at
 * a fixed stride of row_bytes[plane]. Groups run along the columns.
 *   class DENSE   plane VALUES: n_cols values of `dtype`.
 *   class AFFINE  w = scale * q + offset with unsigned codes q (see below for the two-level form).
 *     plane CODES   n_cols codes of `bits` (2..8) bits, one code a byte.
 *     plane SCALE   one F32 a group when super == 0
 *     plane OFFSET  one F32 a group when super == 0 (absent, stride 0, if has_offset == 0: then
 *                   offset = -zero * scale with the constant `zero`, for example 8 for Q4_0)
 *     two-level (super > 0: columns of a super-block, a multiple of group):
 *       scale = super_scale * sub_scale, offset = super_offset * sub_offset, where
 *       plane SUB_SCALE    one signed byte a group, plane SUB_OFFSET one signed byte a group
 *       plane SUPER_SCALE  one F32 a super-block,   plane SUPER_OFFSET one F32 a super-block
 *       without has_offset: offset = -zero * scale.
 *   class LUT     w = scale * lut[q]: planes CODES (4 bits in a byte) and SCALE; sub-scales as above.
 * F32 scales hold the file's FP16 values exactly. The value of a weight is what these formulas give
 * in exact arithmetic, and decode is exact where the format allows (flag LUNA_WEIGHT_EXACT). */
#ifndef LUNA_ABI_QUANT_H
#define LUNA_ABI_QUANT_H

#include <luna/abi/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One entry of a file: core's mapping, read-only, valid while the file is open. */
typedef struct luna_tensor_entry {
  luna_str name;
  uint32_t container;   /* LUNA_CONTAINER_* */
  uint32_t type;        /* the container's own type number (GGUF: ggml_type; safetensors: LUNA_DTYPE_*) */
  uint32_t rank;
  uint32_t pad;
  uint64_t dims[4];     /* slowest first: [n_rows, n_cols] for a matrix */
  const void* bytes;
  uint64_t n_bytes;
} luna_tensor_entry;

#define LUNA_CONTAINER_GGUF 1u
#define LUNA_CONTAINER_SAFETENSORS 2u

typedef struct luna_tensor_table {
  uint32_t struct_size;
  uint32_t entry_stride;
  uint64_t n_entries;
  const luna_tensor_entry* entries;
  uint64_t n_metadata;
  const luna_kv* metadata;   /* [n_metadata] scalars and strings of the container */
} luna_tensor_table;

#define LUNA_WEIGHT_DENSE 1u
#define LUNA_WEIGHT_AFFINE 2u
#define LUNA_WEIGHT_LUT 3u

#define LUNA_WEIGHT_EXACT 1u  /* flag: decoding loses nothing */

#define LUNA_PLANE_VALUES 0u
#define LUNA_PLANE_CODES 0u
#define LUNA_PLANE_SCALE 1u
#define LUNA_PLANE_OFFSET 2u
#define LUNA_PLANE_SUB_SCALE 3u
#define LUNA_PLANE_SUB_OFFSET 4u
#define LUNA_PLANE_SUPER_SCALE 5u
#define LUNA_PLANE_SUPER_OFFSET 6u
#define LUNA_N_PLANES 7u

/* Describes one weight in the canonical layout. */
typedef struct luna_weight_desc {
  uint32_t struct_size;
  uint32_t klass;       /* LUNA_WEIGHT_* */
  uint32_t flags;
  uint32_t dtype;       /* DENSE: LUNA_DTYPE_* of the values */
  uint32_t bits;        /* AFFINE, LUT: 2..8 */
  uint32_t group;       /* columns that share a scale: 16, 32, 64, 128, or n_cols */
  uint32_t super;       /* columns of a super-block; 0: one level */
  uint32_t has_offset;  /* 0: the offset is -zero * scale */
  float zero;
  uint32_t pad;
  uint64_t n_rows;
  uint64_t n_cols;
  uint64_t row_bytes[LUNA_N_PLANES]; /* stride of each plane; 0: the plane is absent */
  float lut[16];        /* LUT: the values of the 16 codes */
} luna_weight_desc;

/* Where decode() writes rows [first_row, first_row + n_rows). */
typedef struct luna_weight_rows {
  uint32_t struct_size;
  uint32_t pad;
  uint64_t first_row;
  uint64_t n_rows;
  void* planes[LUNA_N_PLANES];  /* of the range's first row */
} luna_weight_rows;

typedef struct luna_quant_if {
  luna_if head;
  /* How sure the plugin is that it decodes the entry (or the weight the entry belongs to):
   * 0 not at all .. 100. Pure. [load] */
  int32_t (*score)(void* self, const luna_tensor_table*, uint64_t entry);
  /* Describes the weight called `name`; *entry is the entry core found under that name, or
   * UINT64_MAX where the format spreads a weight over several entries. Writes struct_size bytes of
   * the description at most, and there how many of it are known. [load] */
  luna_status (*describe)(void* self, const luna_tensor_table*, luna_str name, uint64_t entry,
                          luna_weight_desc*, luna_err*);
  /* Decodes a range of rows into canonical planes. Disjoint ranges in parallel. [load] */
  luna_status (*decode)(void* self, const luna_tensor_table*, luna_str name, uint64_t entry,
                        const luna_weight_desc*, luna_weight_rows*, luna_err*);
  /* The format's own definition: row as FP32, out[n_cols]. The oracle of decode(). [load] */
  luna_status (*row_f32)(void* self, const luna_tensor_table*, luna_str name, uint64_t entry,
                         uint64_t row, float* out, luna_err*);
} luna_quant_if;

#ifdef __cplusplus
}
#endif
#endif
