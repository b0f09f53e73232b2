// A compiled program: ops with their tensors resolved, grouped into phases. The threads walk a
// phase without meeting; between phases there is one barrier.
//
// Each program is compiled several times: `narrow` for steps of few rows, where every thread
// computes norms and quantized rows for itself to save barriers; `narrow_long`, the same with
// attention cut within heads, for KV that is long enough to be worth two more barriers; `wide`,
// where rows are shared out; `observing` for steps that prune; and `sliced` for those with KV on
// other devices. All give the same bits: an op's value never depends on who computes
// it.
#pragma once

#include "kernels/cpu/kernel_set.hpp"
#include "slice_wire.hpp"
#include "weight.hpp"

#include <luna/op_program.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace luna::cpu {

/// Steps up to this many rows run narrow: recomputing a norm of 8 rows of 4096 columns costs about
/// as much as one barrier.
inline constexpr std::uint32_t kNarrowRows = 8;
/// Rows of one sequence that one attention task takes in a wide step.
inline constexpr std::uint32_t kAttendTaskRows = 8;

enum class Width : std::uint8_t { narrow, narrow_long, wide, observing, sliced };
constexpr bool is_narrow(Width width) {
  return width == Width::narrow || width == Width::narrow_long;
}

enum class Action : std::uint8_t {
  embed,
  rms_norm,
  layer_norm,
  quantize,
  linear,
  grouped_linear,
  moe_route,
  moe_sum,
  head_norm,
  rope,
  kv_write,
  attend,
  merge_parts,   // of attention: states joined where a cut fell within a unit
  attend_tiles,  // attention of steps with slices: alone in its phase, with barriers of its own
  observe,       // kv_prune, first half: masses
  prune,         // second half: what is kept moves together
  act_mul,
  add,
  scale,
  softcap,
  gather_rows,
  copy_rows,  // copy and convert
  logits,
  score_chunks,  // top_candidates, first half: states of chunks of columns
  merge_chunks,  // second half: a row's chunks joined
  kv_copy,
  send,
  recv,
  all_reduce,
  all_gather,
  barrier,
};

/// How the threads share an op. Threads with equal splits of the same region touch the same
/// elements, so ops that follow each other with one split need no barrier.
enum class Split : std::uint8_t {
  leader,        // thread 0 does all
  every_thread,  // each thread does all, into memory of its own
  rows,          // contiguous ranges of rows
  columns,       // contiguous ranges of strips of 16 columns
  experts,       // the same of each expert's columns
  heads,         // contiguous ranges of (sequence, KV head)
  head_parts,    // (sequence, KV head, rows, partitions) cut by cost
  tiles,         // tile after tile, dealt out in turn within each
  partitions,    // (sequence, KV head, partition) dealt out in turn
  sequences,     // dealt out in turn
  chunks,        // contiguous ranges of chunks of columns: mostly the thread's own columns
};

enum class RowCount : std::uint8_t { step, out };

/// An activation as an op sees it.
struct TensorRef {
  std::uint32_t slot = 0;
  std::uint32_t width = 0;
  std::uint32_t dtype = LUNA_DTYPE_F32;
  RowCount rows = RowCount::step;
  std::uint64_t column_bytes = 0;  // of the first column, within a row
  std::uint64_t stride_bytes = 0;  // between rows
  bool is_private = false;         // each thread has its own
  std::uint64_t offset = 0;        // of the slot, from the shared or the thread's memory
};

/// Quantized (or rounded) rows that linear ops read.
struct ActivationBuffer {
  bool is_dense = false;
  std::int64_t k = 0;
  std::int64_t group = 0;
  int bits = 0;
  RowCount rows = RowCount::step;
  bool is_private = false;
  std::uint32_t n_slots = 1;  // of a row: each slot's rows lie apart
  std::uint64_t slot_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

/// Cosines and sines of every position, [n_positions][n_pairs], magnitude included.
struct RopeTable {
  std::uint32_t n_pairs = 0;
  std::vector<float> cosine;
  std::vector<float> sine;
};

struct CompiledOp {
  Action action = Action::barrier;
  Split split = Split::leader;
  TensorRef in[2];
  TensorRef out;
  const Weight* weight = nullptr;                   // embed, linear
  std::unique_ptr<const kernels::PackedForm> form;  // linear: the weight's, with the op's segments
  const float* vector = nullptr;                    // weight of a norm, or bias of linear
  const float* bias = nullptr;                      // layer_norm
  std::uint32_t activation = 0;                     // quantize, linear: index of the buffer
  const RopeTable* rope = nullptr;
  float number = 0.0F;   // eps, factor, cap or attention scale
  float softcap = 0.0F;  // attend
  std::uint32_t layer = 0;
  std::uint32_t group_first = 0;  // prune: first layer of the group; `layer` is the last
  std::uint32_t n_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t window = 0;
  std::uint32_t kind = 0;  // LUNA_ACT_*, LUNA_ROPE_*
  std::uint32_t k = 0;     // candidates; experts of a row
  std::uint32_t peer = 0;
  std::uint32_t tag = 0;
  ColumnGather gather;  // all_gather, but for the step's rows
};

struct Schedule {
  Width width = Width::narrow;
  std::vector<CompiledOp> ops;
  std::vector<std::uint32_t> phase_ends;  // index past the last op of each phase
  std::vector<ActivationBuffer> activations;
  std::uint64_t shared_bytes = 0;
  std::uint64_t private_bytes = 0;   // of one thread, kernel scratch included
  std::uint64_t kernel_scratch = 0;  // offset within a thread's memory
  std::uint64_t message = 0;         // offset: contiguous rows for the communicator
  std::uint64_t chunk_states = 0;    // offset: LogitsState[n_out_rows][n_chunks]
  std::uint64_t parts = 0;           // offset within a thread's memory: states of attention
  std::uint64_t part_bytes = 0;      // of one unit's; a thread leaves at most two
  std::uint64_t log_sum_exps = 0;    // offset: observing: [n_kv_heads][n_rows][heads of a KV head]
  std::uint64_t prune_lists = 0;     // offset within a thread's memory: three numbers a slot
  std::uint64_t slot_counts = 0;     // offset within a thread's memory: grouped_linear: one a row
  std::uint64_t part_lists = 0;      // offset within a thread's memory: a unit's nodes and states
  SliceShape slice_shape;            // sliced: of the op with most heads
  std::uint64_t slice_tile = 0;      // offset: SliceTile, then its runs and parts
  std::uint64_t slice_states = 0;    // offset: states of a tile
  std::uint64_t slice_request = 0;   // offset: what is sent to a peer
};

/// What both schedules of a program share.
struct CompileInput {
  const luna_program* program = nullptr;
  std::vector<const Weight*> weights;   // by slot; empty while only memory is planned
  std::vector<const RopeTable*> ropes;  // by op; empty while only memory is planned
};

/// Errors  unsupported or invalid_argument, naming the op
Result<Schedule> compile_schedule(const CompileInput& input, Width width);

/// Rows a schedule has room for.
std::uint32_t rows_max_of(const luna_program& program, Width width, RowCount rows);

// Where the steps of planning meet (plan.cpp):
/// Groups ops into phases: an op joins the phase before it unless it touches what another thread
/// may be touching there.
void form_phases(Schedule* schedule);
/// Places every tensor and buffer. Memory is reused once the phase of its last reader is over.
void place_memory(const luna_program& program, Width width, Schedule* schedule);

}  // namespace luna::cpu
