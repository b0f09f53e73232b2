// Building blocks of backends: handles, memory budget, the queue of steps, and the checks of what
// core hands over.
#pragma once

#include <luna/abi/backend.h>
#include <luna/event_count.hpp>
#include <luna/op_rules.hpp>
#include <luna/result.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

namespace luna {

/// Objects behind the numbers that cross the border. A resource; owns the objects. Adding and
/// removing lock; find() does not, so a step may use it. [any]
template <typename T>
class HandleTable {
 public:
  explicit HandleTable(std::size_t n_max)
      : entries_(std::make_unique<std::atomic<T*>[]>(n_max)), n_max_(n_max) {}
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;
  ~HandleTable() {
    for (std::size_t i = 0; i < n_max_; ++i)
      delete entries_[i].load();
  }

  Result<std::uint64_t> add(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    for (std::size_t n = 0; n < n_max_; ++n) {
      const std::size_t i = (next_ + n) % n_max_;
      if (entries_[i].load() != nullptr) continue;
      entries_[i].store(object.release(), std::memory_order_release);
      next_ = i + 1;
      return std::uint64_t{i} + 1;
    }
    return Error{Code::exhausted, "all " + std::to_string(n_max_) + " handles are in use"};
  }
  [[nodiscard]] T* find(std::uint64_t handle) const {
    if (handle == 0 || handle > n_max_) return nullptr;
    return entries_[handle - 1].load(std::memory_order_acquire);
  }
  /// Takes the object out; null if the handle is not in use.
  std::unique_ptr<T> remove(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    if (handle == 0 || handle > n_max_) return nullptr;
    return std::unique_ptr<T>(entries_[handle - 1].exchange(nullptr));
  }

 private:
  std::unique_ptr<std::atomic<T*>[]> entries_;
  std::size_t n_max_;
  std::size_t next_ = 0;
  std::mutex mutex_;
};

/// What a device may still allocate. [any]
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  Result<void> reserve(std::uint64_t bytes, std::string_view what) {
    std::uint64_t used = used_.load();
    do {
      if (bytes > bytes_max_ - used)
        return Error{Code::exhausted,
                     std::string(what) + ": " + std::to_string(bytes) + " bytes do not fit, " +
                         std::to_string(bytes_max_ - used) + " of " + std::to_string(bytes_max_) +
                         " are free"};
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return {};
  }
  void release(std::uint64_t bytes) { used_.fetch_sub(bytes); }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_.load(); }

 private:
  const std::uint64_t bytes_max_;
  std::atomic<std::uint64_t> used_{0};
};

/// A share of a budget, given back when the owner goes.
class Reservation {
 public:
  Reservation() = default;
  static Result<Reservation> make(MemoryBudget* budget,
                                  std::uint64_t bytes,
                                  std::string_view what) {
    LUNA_TRY(budget->reserve(bytes, what));
    return Reservation(budget, bytes);
  }
  Reservation(Reservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Reservation() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }

 private:
  Reservation(MemoryBudget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  MemoryBudget* budget_ = nullptr;  // of the device, which outlives its memory
  std::uint64_t bytes_ = 0;
};

/// Steps waiting for a device, in order. Any thread pushes, one thread pops. Bounded: full is an
/// answer. No locks: a cell's number says whose turn it is.
template <typename Job, std::uint32_t kCells>
class JobQueue {
  static_assert((kCells & (kCells - 1)) == 0);

 public:
  JobQueue() {
    for (std::uint32_t i = 0; i < kCells; ++i)
      cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  /// Whether there was room. [any]
  bool push(const Job& job) {
    std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[tail % kCells];
      const std::uint32_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == tail) {
        if (!tail_.compare_exchange_weak(tail, tail + 1)) continue;
        cell.job = job;
        cell.turn.store(tail + 1, std::memory_order_release);
        signal_.raise();
        return true;
      }
      if (static_cast<std::int32_t>(turn - tail) < 0) return false;
      tail = tail_.load(std::memory_order_relaxed);
    }
  }
  /// Whether there was a job. [consumer]
  bool pop(Job* job) {
    Cell& cell = cells_[head_ % kCells];
    if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
    *job = cell.job;
    cell.turn.store(head_ + kCells, std::memory_order_release);
    ++head_;
    return true;
  }
  /// Changes with every push and close; read it before a pop that may fail, then sleep on it.
  [[nodiscard]] std::uint32_t signal() const { return signal_.value(); }
  /// Returns once signal() is no longer `seen`. [consumer]
  void sleep(std::uint32_t seen) { signal_.sleep(seen); }
  void spin_then_sleep(std::uint32_t seen) { signal_.spin_then_sleep(seen); }
  [[nodiscard]] bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  void close() {
    closed_.store(true, std::memory_order_release);
    signal_.raise();
  }

 private:
  struct Cell {
    std::atomic<std::uint32_t> turn{0};
    Job job{};
  };
  std::array<Cell, kCells> cells_;
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  alignas(64) std::uint32_t head_ = 0;
  alignas(64) EventCount signal_;
  std::atomic<bool> closed_{false};
};

// ---- Checks -------------------------------------------------------------------------------------

/// Largest weight: keeps every product of sizes within 64 bits.
inline constexpr std::uint64_t kWeightDimMax = std::uint64_t{1} << 28;

/// Bytes of a row of each plane that a description needs; 0 where the plane is absent.
inline std::array<std::uint64_t, LUNA_N_PLANES> plane_row_bytes(const luna_weight_desc& d) {
  std::array<std::uint64_t, LUNA_N_PLANES> bytes{};
  if (d.klass == LUNA_WEIGHT_DENSE) {
    bytes[LUNA_PLANE_VALUES] = d.n_cols * dtype_bytes(d.dtype);
    return bytes;
  }
  const std::uint64_t n_groups = (d.n_cols + d.group - 1) / d.group;
  bytes[LUNA_PLANE_CODES] = d.n_cols;
  if (d.super == 0) {
    bytes[LUNA_PLANE_SCALE] = 4 * n_groups;
    bytes[LUNA_PLANE_OFFSET] = d.has_offset != 0 ? 4 * n_groups : 0;
    return bytes;
  }
  const std::uint64_t n_super = (d.n_cols + d.super - 1) / d.super;
  bytes[LUNA_PLANE_SUB_SCALE] = n_groups;
  bytes[LUNA_PLANE_SUPER_SCALE] = 4 * n_super;
  bytes[LUNA_PLANE_SUB_OFFSET] = d.has_offset != 0 ? n_groups : 0;
  bytes[LUNA_PLANE_SUPER_OFFSET] = d.has_offset != 0 ? 4 * n_super : 0;
  return bytes;
}

inline Error bad_weight_field(const char* field, std::uint64_t value, const char* allowed) {
  return Error{Code::invalid_argument,
               std::string("weight.") + field + " = " + std::to_string(value) + ": " + allowed};
}

/// The fields that say how codes of an affine or code-book weight are grouped.
inline Result<void> check_code_fields(const luna_weight_desc& d) {
  if (d.bits < 2 || d.bits > 8) return bad_weight_field("bits", d.bits, "must be in 2..8");
  if (d.klass == LUNA_WEIGHT_LUT && d.bits != 4)
    return bad_weight_field("bits", d.bits, "code books have 4");
  if (d.group == 0 || d.group > d.n_cols)
    return bad_weight_field("group", d.group, "must be in 1..n_cols");
  if (d.super != 0 && (d.super < d.group || d.super % d.group != 0))
    return bad_weight_field("super", d.super, "must be a multiple of the group");
  return {};
}

inline Result<void> check_weight_desc(const luna_weight_desc* desc) {
  if (!LUNA_HAS(desc, luna_weight_desc, lut))
    return Error{Code::invalid_argument, "the weight's description is incomplete"};
  const luna_weight_desc& d = *desc;
  if (d.n_rows == 0 || d.n_rows > kWeightDimMax)
    return bad_weight_field("n_rows", d.n_rows, "in 1..2^28");
  if (d.n_cols == 0 || d.n_cols > kWeightDimMax)
    return bad_weight_field("n_cols", d.n_cols, "in 1..2^28");
  if (d.klass == LUNA_WEIGHT_DENSE) {
    if (dtype_bytes(d.dtype) == 0) return bad_weight_field("dtype", d.dtype, "unknown type");
  } else if (d.klass == LUNA_WEIGHT_AFFINE || d.klass == LUNA_WEIGHT_LUT) {
    LUNA_TRY(check_code_fields(d));
  } else {
    return bad_weight_field("klass", d.klass, "unknown class");
  }
  const auto need = plane_row_bytes(d);
  for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p)
    if (d.row_bytes[p] < need[p] || (need[p] == 0) != (d.row_bytes[p] == 0) ||
        d.row_bytes[p] > kWeightDimMax * 16)
      return Error{Code::invalid_argument,
                   "weight.row_bytes[" + std::to_string(p) +
                       "] = " + std::to_string(d.row_bytes[p]) + ": rows of that plane have " +
                       std::to_string(need[p])};
  return {};
}

/// Checks a range of rows against its weight: bounds, the multiple of 64, no plane missing.
inline Result<void> check_weight_rows(const luna_weight_desc& desc, const luna_weight_rows& rows) {
  if (rows.first_row % 64 != 0 || rows.n_rows == 0 || rows.first_row >= desc.n_rows ||
      rows.n_rows > desc.n_rows - rows.first_row)
    return Error{Code::invalid_argument,
                 "weight_rows: rows " + std::to_string(rows.first_row) + " + " +
                     std::to_string(rows.n_rows) + " of " + std::to_string(desc.n_rows) +
                     ": the first must be a multiple of 64 and all must exist"};
  for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p)
    if (desc.row_bytes[p] != 0 && rows.planes[p] == nullptr)
      return Error{Code::invalid_argument, "weight_rows: plane " + std::to_string(p) + " is null"};
  return {};
}

/// Whether a weight fits the view an op has of it: a matrix by both sizes, a vector by its length.
inline Result<void> check_weight_shape(const luna_view& view,
                                       const luna_weight_desc& desc,
                                       std::uint32_t index) {
  const bool fits = view.rank == 2 ? desc.n_rows == view.dims[0] && desc.n_cols == view.dims[1]
                                   : desc.n_rows * desc.n_cols == view.dims[0];
  if (fits) return {};
  return Error{Code::invalid_argument,
               "weight " + std::to_string(index) + " is " + std::to_string(desc.n_rows) + " x " +
                   std::to_string(desc.n_cols) + ", the program says otherwise"};
}

/// Bytes that the buffer behind a LOGITS or CANDIDATES slot must have.
inline std::uint64_t out_bytes(const luna_program& p, std::uint32_t kind) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < p.n_views; ++i)
    if (p.slots[p.views[i].slot].kind == kind)
      bytes = std::max(bytes, std::uint64_t{4} * p.views[i].dims[1] * p.n_out_rows_max);
  return bytes;
}

inline Result<void> check_kv_layout(const luna_kv_layout* layout) {
  if (layout == nullptr || layout->n_layers == 0 || layout->n_layers > 65536 ||
      layout->n_kv_heads == 0 || layout->n_kv_heads > 4096 || layout->head_dim == 0 ||
      layout->head_dim > 4096 || dtype_bytes(layout->dtype) == 0 ||
      !std::has_single_bit(layout->block_tokens) || layout->block_tokens < 32 ||
      layout->block_tokens > 256)
    return Error{Code::invalid_argument, "the KV layout is out of range"};
  return {};
}

/// What a compiled program lets a step be.
struct StepBounds {
  std::uint32_t n_rows_max = 0;
  std::uint32_t n_seqs_max = 0;
  std::uint32_t n_out_rows_max = 0;
  std::uint32_t n_blocks_per_seq_max = 0;
  std::uint32_t n_positions_max = 0;
  std::uint32_t n_token_ids = 0;    ///< rows of the embedding; 0: the program reads no token ids
  std::uint32_t block_tokens = 0;   ///< 0: the program has no KV
  std::uint64_t n_kv_blocks = 0;    ///< of the bound KV buffer
  bool can_prune = false;           ///< the program has kv_prune
  bool can_slice = false;           ///< it has a slot SLICES
  std::uint32_t n_slice_peers = 0;  ///< of what is bound to it
};

/// What a step says of a sequence's pruning; nothing where it says nothing.
inline luna_seq_prune prune_of(const luna_step& step, std::uint32_t seq) {
  constexpr std::size_t kEnd = offsetof(luna_step, seq_prunes) + sizeof(luna_step::seq_prunes);
  const bool is_told = step.struct_size >= kEnd && step.seq_prunes != nullptr;
  return is_told ? step.seq_prunes[seq] : luna_seq_prune{};
}

/// A step's slices; none where it says nothing of them.
inline std::span<const luna_slice> slices_of(const luna_step& step) {
  constexpr std::size_t kEnd = offsetof(luna_step, n_slices) + sizeof(luna_step::n_slices);
  if (step.struct_size < kEnd || step.n_slices == 0) return {};
  return {step.slices, step.n_slices};
}
/// Where a step wants the slices weighed, in the order of slices_of(); null: nowhere.
inline std::uint64_t* slice_masses_of(const luna_step& step) {
  constexpr std::size_t kEnd = offsetof(luna_step, slice_masses) + sizeof(luna_step::slice_masses);
  return step.struct_size >= kEnd ? step.slice_masses : nullptr;
}
/// A share of attention as it is added to slice_masses.
inline std::uint64_t to_slice_mass(double share) {
  return static_cast<std::uint64_t>(share * 0x1p32 + 0.5);
}
/// Past the last partition of a slice.
inline std::uint64_t slice_end(const luna_slice& slice) {
  return std::uint64_t{slice.first_partition} + slice.n_partitions;
}

/// Checks every index of a step, so that the ops need not. Allocates only to say what is wrong.
class StepChecker {
 public:
  StepChecker(const StepBounds& bounds, const luna_step& step) : b_(bounds), s_(step) {}

  Result<void> run() const {
    if (s_.n_rows == 0 || s_.n_rows > b_.n_rows_max) return bad("n_rows", s_.n_rows);
    if (s_.n_seqs == 0 || s_.n_seqs > b_.n_seqs_max) return bad("n_seqs", s_.n_seqs);
    if (s_.n_out_rows > b_.n_out_rows_max) return bad("n_out_rows", s_.n_out_rows);
    if (s_.positions == nullptr || s_.seq_first_row == nullptr ||
        (b_.n_token_ids != 0 && s_.token_ids == nullptr) ||
        (b_.block_tokens != 0 && s_.block_tables == nullptr) ||
        (s_.n_out_rows != 0 && (s_.out_rows == nullptr || s_.out_flags == nullptr)) ||
        (s_.n_kv_copies != 0 && s_.kv_copies == nullptr) ||
        (!slices_of(s_).empty() && s_.slices == nullptr))
      return Error{Code::invalid_argument, "step: an array is null"};
    LUNA_TRY(check_rows());
    LUNA_TRY(check_out_rows_and_copies());
    LUNA_TRY(check_sequences());
    LUNA_TRY(check_slices());
    return b_.block_tokens == 0 ? Result<void>() : check_tables();
  }

 private:
  Result<void> check_rows() const {
    for (std::uint32_t i = 0; i < s_.n_rows; ++i) {
      if (b_.n_token_ids != 0 && s_.token_ids[i] >= b_.n_token_ids)
        return bad("token_ids", s_.token_ids[i]);
      if (s_.positions[i] >= b_.n_positions_max) return bad("positions", s_.positions[i]);
    }
    return {};
  }
  Result<void> check_out_rows_and_copies() const {
    for (std::uint32_t i = 0; i < s_.n_out_rows; ++i)
      if (s_.out_rows[i] >= s_.n_rows || (i != 0 && s_.out_rows[i] <= s_.out_rows[i - 1]))
        return bad("out_rows", s_.out_rows[i]);
    for (std::uint32_t i = 0; i < s_.n_kv_copies; ++i)
      if (s_.kv_copies[i].from_block >= b_.n_kv_blocks ||
          s_.kv_copies[i].to_block >= b_.n_kv_blocks)
        return bad("kv_copies", s_.kv_copies[i].to_block);
    return {};
  }
  Result<void> check_sequences() const {
    if (s_.seq_first_row[0] != 0 || s_.seq_first_row[s_.n_seqs] != s_.n_rows)
      return bad("seq_first_row", s_.seq_first_row[s_.n_seqs]);
    for (std::uint32_t s = 0; s < s_.n_seqs; ++s) {
      const std::uint32_t first = s_.seq_first_row[s];
      const std::uint32_t end = s_.seq_first_row[s + 1];
      if (first >= end || end > s_.n_rows) return bad("seq_first_row", end);
      for (std::uint32_t i = first + 1; i < end; ++i)
        if (s_.positions[i] <= s_.positions[i - 1]) return bad("positions", s_.positions[i]);
    }
    return {};
  }
  /// They ascend, are closed before the first row of their sequence, and are somebody's.
  Result<void> check_slices() const {
    const std::span<const luna_slice> slices = slices_of(s_);
    if (!slices.empty() && (!b_.can_slice || b_.can_prune)) return bad("n_slices", slices.size());
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const luna_slice& slice = slices[i];
      if (slice.seq >= s_.n_seqs) return bad("slices.seq", slice.seq);
      if (slice.peer >= b_.n_slice_peers) return bad("slices.peer", slice.peer);
      if (slice.blocks == nullptr || slice.n_partitions == 0 ||
          slice_end(slice) * LUNA_PARTITION_TOKENS > s_.positions[s_.seq_first_row[slice.seq]])
        return bad("slices.n_partitions", slice.n_partitions);
      if (i == 0) continue;
      const luna_slice& before = slices[i - 1];
      if (before.seq > slice.seq) return bad("slices.seq", slice.seq);
      if (before.seq == slice.seq && slice_end(before) > slice.first_partition)
        return bad("slices.first_partition", slice.first_partition);
    }
    return {};
  }
  Result<void> check_tables() const {
    std::span<const luna_slice> slices = slices_of(s_);  // from those of the sequence on
    for (std::uint32_t s = 0; s < s_.n_seqs; ++s) {
      LUNA_TRY(check_prune(s));
      const std::uint32_t last_row = s_.seq_first_row[s + 1] - 1;
      const std::uint32_t last_slot = s_.positions[last_row] - prune_of(s_, s).n_pruned;
      const std::uint32_t n_blocks = last_slot / b_.block_tokens + 1;
      if (n_blocks > b_.n_blocks_per_seq_max || n_blocks > s_.block_table_stride)
        return bad("block_table_stride", s_.block_table_stride);
      const std::uint32_t* table =
          s_.block_tables + static_cast<std::size_t>(s) * s_.block_table_stride;
      const std::uint32_t per_partition = LUNA_PARTITION_TOKENS / b_.block_tokens;
      std::uint64_t block = 0;
      for (; !slices.empty() && slices[0].seq == s; slices = slices.subspan(1)) {
        for (; block < std::uint64_t{slices[0].first_partition} * per_partition; ++block)
          if (table[block] >= b_.n_kv_blocks) return bad("block_tables", table[block]);
        block = slice_end(slices[0]) * per_partition;
      }
      for (; block < n_blocks; ++block)
        if (table[block] >= b_.n_kv_blocks) return bad("block_tables", table[block]);
    }
    return {};
  }
  Result<void> check_prune(std::uint32_t seq) const {
    const luna_seq_prune prune = prune_of(s_, seq);
    const std::uint32_t first = s_.seq_first_row[seq];
    const std::uint32_t end = s_.seq_first_row[seq + 1];
    if (prune.n_pruned > s_.positions[first]) return bad("seq_prunes.n_pruned", prune.n_pruned);
    const std::uint32_t n_slots = s_.positions[end - 1] - prune.n_pruned + 1;
    if (prune.n_observed > end - first || (prune.n_observed != 0 && !b_.can_prune))
      return bad("seq_prunes.n_observed", prune.n_observed);
    const bool keeps_ends = prune.n_keep >= std::min(n_slots, LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT);
    if (prune.n_keep != 0 && (!b_.can_prune || prune.n_keep > n_slots || !keeps_ends))
      return bad("seq_prunes.n_keep", prune.n_keep);
    return {};
  }
  static Error bad(const char* field, std::uint64_t value) {
    return Error{Code::invalid_argument,
                 std::string("step.") + field + " = " + std::to_string(value) +
                     ": beyond what the program was compiled for"};
  }
  const StepBounds& b_;
  const luna_step& s_;
};

inline Result<void> check_step(const StepBounds& bounds, const luna_step& step) {
  return StepChecker(bounds, step).run();
}

/// The bounds a program gives its steps; the number of KV blocks is known when a buffer is bound.
inline StepBounds step_bounds(const luna_program& p) {
  StepBounds b;
  b.n_rows_max = p.n_rows_max;
  b.n_seqs_max = p.n_seqs_max;
  b.n_out_rows_max = p.n_out_rows_max;
  b.n_blocks_per_seq_max = p.n_blocks_per_seq_max;
  b.n_positions_max = p.n_positions_max;
  for (std::uint32_t i = 0; i < p.n_slots; ++i) {
    if (p.slots[i].kind == LUNA_SLOT_KV) b.block_tokens = p.kv.block_tokens;
    if (p.slots[i].kind == LUNA_SLOT_SLICES) b.can_slice = true;
  }
  for (std::uint32_t i = 0; i < p.n_ops; ++i) {
    if (p.ops[i].op == LUNA_OP_KV_PRUNE) b.can_prune = true;
    if (p.ops[i].op != LUNA_OP_EMBED) continue;
    const std::uint32_t vocab = OpReader(p, p.ops[i]).in(0).dims[0];
    b.n_token_ids = b.n_token_ids == 0 ? vocab : std::min(b.n_token_ids, vocab);
  }
  return b;
}

}  // namespace luna
