// The CPU kernels: a table of functions per instruction set, all with the same bits.
//
// Every function works on caller's memory, allocates nothing, reports nothing: its preconditions
// are named here and checked where a program is compiled. All floating-point kernels need the
// thread's float mode (see set_thread_float_mode). Pointers named `scratch` are 64-byte aligned and
// belong to the calling thread. Functions may run in parallel on disjoint outputs.
#pragma once

#include "kernels/cpu/arithmetic.hpp"
#include "kernels/cpu/weights.hpp"

#include <cstddef>
#include <cstdint>

namespace luna::kernels {

// ---- Activations
// ---------------------------------------------------------------------------------

/// Rows quantized for integer dot products, in memory placed by place_quantized_rows().
struct QuantizedRows {
  std::int64_t n_rows = 0;
  std::int64_t k = 0;      // a multiple of 32
  std::int64_t group = 0;  // columns of a scale; the last group may be shorter
  int bits = 0;            // 12, 11, 10 or 8
  std::int64_t n_groups = 0;
  std::int64_t code_stride = 0;    // elements between rows of codes
  std::int64_t group_stride = 0;   // elements between groups of scale, scaled_sum and sums
  std::int64_t sum_stride = 0;     // elements between rows of sums16
  std::int16_t* codes = nullptr;   // [n_rows, k]  or, with has_byte_codes():
  std::int8_t* bytes = nullptr;    // [n_rows, k]  each 8 inputs in the order kQuadOrder
  float* scale = nullptr;          // [n_groups, n_rows]  s
  float* scaled_sum = nullptr;     // [n_groups, n_rows]  float(sum of codes) * s
  std::int32_t* sums = nullptr;    // [n_groups, n_rows]  sum of codes; only beside bytes
  std::int32_t* sums16 = nullptr;  // [n_rows, k / 16]    sums of 16 codes; only for group == 256
};
/// Whether activations are kept as bytes. Super-blocks multiply codes by sub-scales to 16 bits
/// first and take 16-bit activations of any width.
constexpr bool has_byte_codes(int bits, std::int64_t group) {
  return bits == kShortActivationBits && group <= 128;
}
/// Inputs of 8 neighbouring bytes: two quads, as the low and the high nibbles of a packed word hold
/// them.
inline constexpr int kQuadOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// Bytes that n_rows quantized rows take, a multiple of 64.
std::size_t quantized_rows_bytes(std::int64_t n_rows, std::int64_t k, std::int64_t group, int bits);
/// Lays quantized rows out in `memory` (64-byte aligned); writes none of it.
QuantizedRows place_quantized_rows(
    void* memory, std::int64_t n_rows, std::int64_t k, std::int64_t group, int bits);

/// Rows rounded to BF16 for dense weights, padded with zeros to k_padded. What lies in a row is the
/// kernel set's own business: FP32 values that are BF16 numbers, or pairs of BF16
/// (dense_pairs.inl).
struct DenseRows {
  std::int64_t n_rows = 0;
  std::int64_t k = 0;
  std::int64_t k_padded = 0;  // k rounded up to 32
  std::int64_t stride = 0;    // elements between rows
  float* values = nullptr;    // [n_rows, k_padded]
};
std::size_t dense_rows_bytes(std::int64_t n_rows, std::int64_t k);
DenseRows place_dense_rows(void* memory, std::int64_t n_rows, std::int64_t k);

// ---- Linear
// --------------------------------------------------------------------------------------

/// One call of linear: y[row, column] for rows [first_row, first_row + n_rows) and strips
/// [first_strip, first_strip + n_strips) of the weight. Threads share a product by strips (or
/// rows).
struct LinearArgs {
  const PackedForm* form = nullptr;
  const std::byte* packed = nullptr;
  const QuantizedRows* quantized = nullptr;  // exactly one of the two, by form->activation_bits
  const DenseRows* dense = nullptr;
  std::int64_t first_row = 0;
  std::int64_t n_rows = 0;
  std::int64_t first_strip = 0;
  std::int64_t n_strips = 0;
  float* y = nullptr;         // [rows of the activations, form.n_rows]; element (0, 0)
  std::int64_t y_stride = 0;  // elements between rows
  void* scratch = nullptr;    // linear_scratch_bytes(*form)
};
std::size_t linear_scratch_bytes(const PackedForm& form);

// ---- Attention
// -----------------------------------------------------------------------------------

/// How K and V are kept. bf16: rounded. int8: codes in -127..127 by a scale a token and head,
/// s = bf16(max|x| / 127), code = rint(x * (1 / s)); below kActivationFloor s = 0, with a NaN or
/// infinity in it s = NaN and all codes 0.
enum class KvType : std::uint8_t { bf16, int8 };
constexpr std::size_t kv_code_bytes(KvType type) {
  return type == KvType::bf16 ? 2 : 1;
}

/// A KV block of one layer, heads one after the other. A head in BF16: K as
/// [tokens / 16][head_dim / 2][16 tokens][2], then V as [tokens / 2][head_dim][2]. In int8: K as
/// [tokens / 16][head_dim][16 tokens], V as [tokens][head_dim], the scales of K and those of V,
/// both BF16 [tokens].
struct KvShape {
  int n_kv_heads = 0;
  int head_dim = 0;      // a multiple of 32, at most 256
  int block_tokens = 0;  // a power of two in 32..256
  KvType type = KvType::bf16;
  bool has_masses = false;
};
/// Bytes of the codes of K, as many as of those of V.
constexpr std::size_t kv_codes_bytes(const KvShape& shape) {
  return static_cast<std::size_t>(shape.block_tokens) * static_cast<std::size_t>(shape.head_dim) *
         kv_code_bytes(shape.type);
}
/// Where a head's masses begin.
constexpr std::size_t kv_masses_offset(const KvShape& shape) {
  const std::size_t scale_bytes = shape.type == KvType::int8 ? 2 : 0;
  return 2 * (kv_codes_bytes(shape) + scale_bytes * static_cast<std::size_t>(shape.block_tokens));
}
constexpr std::size_t kv_head_bytes(const KvShape& shape) {
  const std::size_t mass_bytes = shape.has_masses ? sizeof(float) : 0;
  return kv_masses_offset(shape) + mass_bytes * static_cast<std::size_t>(shape.block_tokens);
}
/// Bytes of a block of one layer.
constexpr std::size_t kv_block_bytes(const KvShape& shape) {
  return kv_head_bytes(shape) * static_cast<std::size_t>(shape.n_kv_heads);
}

/// The KV of one sequence and layer: block i of the sequence (positions from i * block_tokens on)
/// lies at base + table[i - first_block] * stride.
struct KvView {
  KvShape shape;
  std::byte* base = nullptr;  // 64-byte aligned, and so is the stride
  std::size_t block_stride_bytes = 0;
  const std::uint32_t* table = nullptr;
  std::int64_t first_block = 0;  // of the table; above 0 where a device holds a slice
};

/// One KV head of the block that holds a position, and its masses.
inline std::byte* kv_head_at(const KvView& kv, int kv_head, std::int64_t position) {
  const std::int64_t block = position / kv.shape.block_tokens - kv.first_block;
  return kv.base + static_cast<std::size_t>(kv.table[block]) * kv.block_stride_bytes +
         static_cast<std::size_t>(kv_head) * kv_head_bytes(kv.shape);
}
inline float* kv_masses_at(const KvView& kv, int kv_head, std::int64_t position) {
  return reinterpret_cast<float*>(kv_head_at(kv, kv_head, position) + kv_masses_offset(kv.shape)) +
         position % kv.shape.block_tokens;
}
/// Copies K and V (with their scales) of one KV head from a position's slot to another's.
void move_kv(const KvView& kv, int kv_head, std::int64_t from, std::int64_t to);

/// Writes one row's rotated K and V into its slot, and a mass of zero.
struct KvWriteArgs {
  KvView kv;
  std::int64_t position = 0;
  const float* k = nullptr;  // [n_kv_heads, head_dim]
  const float* v = nullptr;  // [n_kv_heads, head_dim]
};

/// Attention of consecutive rows of one sequence, for the query heads of one KV head.
/// Row i stands at first_position + i and sees positions max(0, own - window + 1) .. own.
struct AttendArgs {
  KvView kv;
  int kv_head = 0;
  int group_heads = 0;  // query heads of a KV head, 1..16
  std::int64_t first_position = 0;
  std::int64_t n_rows = 0;
  std::int64_t window = 0;    // 0: all positions
  float scale = 1.0F;         // multiplies the FP32 score
  float softcap = 0.0F;       // 0: none
  const float* q = nullptr;   // row 0's [group_heads, head_dim], rotated
  std::int64_t q_stride = 0;  // elements between rows
  float* out = nullptr;       // row 0's [group_heads, head_dim]
  std::int64_t out_stride = 0;
  float* log_sum_exp = nullptr;  // [n_rows, group_heads] or null
  void* scratch = nullptr;       // attend_scratch_bytes(head_dim)
  /// What the thread attends to after this, or null: its first KV, of the same shape, is fetched.
  const AttendArgs* next = nullptr;
};
std::size_t attend_scratch_bytes(int head_dim);

/// attend_together: attention of sequences whose KV begins in the same blocks, which are read once
/// for all of them; each row gets the bits that attend() gives it. Shape, KV head, heads of a KV
/// head and scratch are the same for all.
struct AttendTogetherArgs {
  const AttendArgs* sequences = nullptr;  // [n_sequences]; their `next` is not used
  int n_sequences = 0;                    // rows times heads of all: 1..kAttendTogetherQueries
  std::int64_t shared_positions = 0;  // a multiple of 32: each table has the same blocks up to here
  const AttendArgs* next = nullptr;   // as in AttendArgs
};
inline constexpr int kAttendTogetherQueries = 12;

/// observe: mass of each position of [first, last) += exp(score - log-sum-exp) of every row and
/// head that sees it, rows and then heads ascending. Threads share it by KV heads and positions.
struct ObserveArgs {
  AttendArgs attend;                   // out is not used
  const float* log_sum_exp = nullptr;  // [n_rows, group_heads]
  std::int64_t first = 0;              // a multiple of 32
  std::int64_t last = 0;               // within the partition of first
};

/// A state of attention over some positions: [max, sum, out[head_dim]], padded to
/// state_floats(head_dim). A state without positions has sum == 0 and is never read further.
constexpr std::int64_t state_floats(int head_dim) {
  return head_dim + 16;
}

/// A node of the canonical tree over partition numbers.
struct TreeNode {
  std::int32_t level = 0;
  std::int32_t index = 0;
};

/// attend_partial: the states of the canonical nodes that cover partitions [first_partition,
/// first_partition + n_partitions). Rows see what attend() lets them see of these positions.
struct AttendPartialArgs {
  AttendArgs attend;  // out and log_sum_exp are not used
  std::int64_t first_partition = 0;
  std::int64_t n_partitions = 0;
  float* states = nullptr;  // [n_nodes, n_rows, group_heads, state_floats(head_dim)]
};
/// The nodes of a range of partitions, ascending; at most kTreeNodesMax. Returns their number.
inline constexpr int kTreeNodesMax = 64;
int cover_partitions(std::int64_t first_partition, std::int64_t n_partitions, TreeNode* nodes);

/// merge_partials: joins states of ascending, adjacent nodes and writes one row's head.
struct MergeArgs {
  int head_dim = 0;
  int n_nodes = 0;                       // any number, of one range or several
  const TreeNode* nodes = nullptr;       // [n_nodes]
  const float* const* states = nullptr;  // [n_nodes] -> [state_floats(head_dim)]
  float* out = nullptr;                  // [head_dim]; zero if no node has a position
  float* log_sum_exp = nullptr;          // one value, or null
  void* scratch = nullptr;               // attend_scratch_bytes(head_dim)
};

// ---- Small operations
// ----------------------------------------------------------------------------

enum class RopeStyle : std::uint8_t { interleaved, halves };
/// Rotates the leading n_rot elements of each head of one row; x -> y, in place allowed.
/// A pair (x0, x1) becomes fma(x0, cos, x1 * -sin), fma(x1, cos, x0 * sin).
struct RopeArgs {
  RopeStyle style = RopeStyle::interleaved;
  int n_heads = 0;
  int head_dim = 0;
  int n_rot = 0;                  // even
  const float* cosine = nullptr;  // [n_rot / 2], of the row's position, magnitude included
  const float* sine = nullptr;    // [n_rot / 2]
  const float* x = nullptr;       // [n_heads, head_dim]
  float* y = nullptr;
};

struct LayerNormArgs {
  const float* x = nullptr;       // [n]
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  std::int64_t n = 0;
  float eps = 0.0F;
  float* y = nullptr;  // [n]
};

enum class Activation : std::uint8_t { silu, gelu_tanh };

struct Candidate {
  float logit;
  std::uint32_t id;
};
inline constexpr int kCandidatesMax = 256;
/// What one chunk of kLogitsChunk logits contributes: sum of exp(logit - max), and those of it that
/// are among the k largest of the run it was scored with.
struct LogitsState {
  float max;
  float sum;
  std::int32_t n_candidates;
  std::int32_t pad;
  Candidate candidates[kCandidatesMax];  // largest first, ties to the lowest id
};

/// logits_chunks: states of a run of a row's chunks. NaN and -inf never become candidates.
struct LogitsArgs {
  const float* row = nullptr;
  std::uint32_t first_id = 0;     // of the run, a multiple of kLogitsChunk
  std::uint32_t n = 0;            // logits of the run; its last chunk may be short
  int k = 0;                      // 0..kCandidatesMax
  LogitsState* states = nullptr;  // one a chunk
};

// ---- The table
// -----------------------------------------------------------------------------------

enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16, amx };
/// All of them, the best last.
inline constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

struct KernelSet {
  Isa isa;
  const char* name;

  /// Quantizes x[n_rows, k] into rows [first_row, ..) of *out. Non-finite input: scale NaN,
  /// codes 0.
  void (*quantize_rows)(const float* x,
                        std::int64_t x_stride,
                        std::int64_t first_row,
                        std::int64_t n_rows,
                        const QuantizedRows* out);
  /// Rounds x[n_rows, k] to BF16 values in rows [first_row, ..) of *out.
  void (*round_rows)(const float* x,
                     std::int64_t x_stride,
                     std::int64_t first_row,
                     std::int64_t n_rows,
                     const DenseRows* out);
  /// y = x W^T. Columns of the last strip beyond the weight's rows are not written.
  void (*linear)(const LinearArgs& args);
  /// y[n_cols] = row `row` of a packed weight as FP32: fma(scale, q, offset).
  void (*unpack_row)(const PackedForm& form, const std::byte* packed, std::int64_t row, float* y);

  void (*kv_write)(const KvWriteArgs& args);
  void (*attend)(const AttendArgs& args);
  void (*attend_together)(const AttendTogetherArgs& args);
  void (*attend_partial)(const AttendPartialArgs& args);
  void (*merge_partials)(const MergeArgs& args);
  void (*observe)(const ObserveArgs& args);

  /// y = (x * (1 / sqrt(sum(x^2) / n + eps))) * w; in place allowed.
  void (*rms_norm)(const float* x, const float* w, std::int64_t n, float eps, float* y);
  /// y = fma((x - mean) * (1 / sqrt(var + eps)), w, b); in place allowed.
  void (*layer_norm)(const LayerNormArgs& args);
  void (*rope)(const RopeArgs& args);
  /// y = act(gate) * up; in place allowed.
  void (*act_mul)(Activation kind, const float* gate, const float* up, std::int64_t n, float* y);
  void (*add)(const float* a, const float* b, std::int64_t n, float* y);
  void (*scale)(const float* x, float factor, std::int64_t n, float* y);
  /// y = cap * tanh(x / cap)
  void (*softcap)(const float* x, float cap, std::int64_t n, float* y);
  /// y = exp(x), the shared polynomial.
  void (*exp)(const float* x, std::int64_t n, float* y);
  /// Rounds to BF16, nearest even.
  void (*round_bf16)(const float* x, std::int64_t n, std::uint16_t* y);

  void (*logits_chunks)(const LogitsArgs& args);
};

/// Joins the states of a row's chunks, ascending. candidates[k]; returns how many were found and
/// writes the row's log-sum-exp.
int merge_logits(
    const LogitsState* chunks, int n_chunks, int k, Candidate* candidates, float* log_sum_exp);

/// The set of one instruction set, or null where this CPU (or build) lacks it.
const KernelSet* kernel_set(Isa isa);
/// The set of a name (portable, avx2, avx512, avx512_bf16, amx), or null and the reason in *why.
const KernelSet* find_kernels(const char* name, const char** why);
/// The best set of this CPU, or the one that the environment variable LUNA_ISA names if the CPU has
/// it; whoever must not compute with another asks find_kernels() before. Decided once. [any]
const KernelSet& select_kernels();

/// Sets this thread's MXCSR to what the contract needs: nearest even, denormals are zero on both
/// sides, exceptions masked. Every thread that runs kernels calls it once.
void set_thread_float_mode();
/// Whether the calling thread's mode is right: asserted at the start of a step.
bool float_mode_is_right();

}  // namespace luna::kernels
