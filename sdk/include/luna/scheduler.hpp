// The C++ side of abi/scheduler.h: a policy is a class with one function, plan(). Header-only.
//
//   struct Srf final : luna::Scheduler {          // shortest remaining work first
//     double aging;
//     explicit Srf(const luna::Settings& settings) : aging(settings.number("aging")) {}
//     void plan(const luna::Snapshot& rows, luna::Plan& out) override {
//       auto& order = out.order();
//       std::ranges::stable_sort(order, {}, [&](std::uint32_t i) {
//         return rows[i].n_remaining() - aging * rows[i].waited_ms();
//       });
//       for (const std::uint32_t i : order)
//         if (!out.take(i)) break;
//     }
//   };
//   LUNA_SCHEDULER(Srf, "com.example.srf", "srf", "1.0.0", "Shortest remaining work first.",
//                  luna::param(LUNA_TYPE_FLOAT, "aging", "0.5", "0", "100", nullptr,
//                              "Tokens forgiven per millisecond of waiting."))
#pragma once

#include <luna/plugin.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace luna {

/// One row of a snapshot, read only. A value; valid during plan().
class Row {
 public:
  Row(const luna_req_row* row, const luna_snapshot* snapshot) : row_(row), snapshot_(snapshot) {}

  const luna_req_row* operator->() const { return row_; }
  [[nodiscard]] bool is_waiting() const { return row_->state == LUNA_REQ_WAITING; }
  [[nodiscard]] bool is_prefilling() const { return row_->state == LUNA_REQ_PREFILL; }
  [[nodiscard]] bool is_decoding() const { return row_->state == LUNA_REQ_DECODE; }
  /// A step in flight computes it: before that has ended it is neither pre-empted nor ended.
  [[nodiscard]] bool is_in_step() const { return row_->n_steps != 0; }
  /// Tokens that it could compute now: its next one and its draft when decoding, else what is left
  /// of its prompt. None when a step is about to draw its next one.
  [[nodiscard]] std::uint32_t n_wanted() const {
    if (is_decoding()) return is_in_step() ? 0 : 1 + row_->n_draft;
    return row_->n_prompt - row_->n_computed;
  }
  /// Whether a plan may name it.
  [[nodiscard]] bool is_plannable() const { return !is_in_step() || n_wanted() > 0; }
  /// Tokens of work to its end, at most. Drafts are not work: they may save some.
  [[nodiscard]] double n_remaining() const {
    const std::uint32_t n_next = is_decoding() ? 1 : n_wanted();
    return double{1} * n_next + (row_->n_generated_max - row_->n_generated);
  }
  [[nodiscard]] double waited_ms() const {
    return static_cast<double>(snapshot_->now_ns - row_->arrival_ns) * 1e-6;
  }

 private:
  const luna_req_row* row_;
  const luna_snapshot* snapshot_;
};

/// The engine's tables, as luna_snapshot hands them over. Valid during plan().
class Snapshot {
 public:
  explicit Snapshot(const luna_snapshot* snapshot) : snapshot_(snapshot) {}

  [[nodiscard]] std::uint32_t n_rows() const { return snapshot_->n_reqs; }
  [[nodiscard]] std::uint32_t n_devices() const { return snapshot_->n_devices; }
  [[nodiscard]] Row operator[](std::uint32_t i) const {
    return {at<luna_req_row>(snapshot_->reqs, snapshot_->req_stride, i), snapshot_};
  }
  [[nodiscard]] const luna_device_row& device(std::uint32_t i) const {
    return *at<luna_device_row>(snapshot_->devices, snapshot_->device_stride, i);
  }
  /// Steps that may be in flight, this one included.
  [[nodiscard]] std::uint32_t n_steps_in_flight_max() const {
    return std::max(snapshot_->n_steps_in_flight_max, 1U);
  }
  /// Of these, the ones that could be planned now, this one included.
  [[nodiscard]] std::uint32_t n_steps_free() const {
    return n_steps_in_flight_max() -
           std::min(snapshot_->n_steps_in_flight, n_steps_in_flight_max() - 1);
  }
  const luna_snapshot* operator->() const { return snapshot_; }

 private:
  // Rows may have grown at their end since this plugin was built, hence the stride.
  template <typename T>
  static const T* at(const T* first, std::uint32_t stride, std::uint32_t i) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(first);
    return reinterpret_cast<const T*>(bytes + std::size_t{stride} * i);
  }
  const luna_snapshot* snapshot_;
};

/// The plan being made. It keeps the books of the step (tokens, rows, KV blocks), so that what it
/// takes is legal. One per instance; its buffers are reused, so later plans allocate nothing.
class Plan {
 public:
  /// Indices of the rows that a plan may name, in order of arrival, for the policy to sort. Filled
  /// anew for each plan.
  [[nodiscard]] std::vector<std::uint32_t>& order() { return order_; }

  /// Runs row i in this step: as many of the tokens it wants as the step still has room for.
  /// A waiting row is let in when its whole prompt and one block more fit, beside the reserve for
  /// the rows that hold KV, if any does. A decoding row that
  /// finds no block for its draft runs without it. Returns false when it cannot run: the step is
  /// full, KV blocks are short, it is in the plan, or it waits for the step that it is in.
  bool take(std::uint32_t i, std::uint32_t n_tokens_max = UINT32_MAX) {
    const Row row = snapshot()[i];
    std::uint32_t n_tokens = std::min({n_tokens_max, row.n_wanted(), n_tokens_left_});
    if (n_tokens == 0 || n_rows_left_ == 0 || is_planned(i) || full()) return false;
    std::int64_t n_blocks = n_blocks_to_take(row, n_tokens);
    if (row.is_decoding() && n_blocks > n_blocks_free_) {
      n_tokens = 1;
      n_blocks = n_blocks_to_take(row, n_tokens);
    }
    const std::int64_t n_spared = row.is_waiting() ? n_blocks_reserve_ : 0;
    if (n_blocks + n_spared > n_blocks_free_) {
      short_of_blocks_ = true;
      return false;
    }
    n_blocks_free_ -= n_blocks;
    n_tokens_left_ -= n_tokens;
    --n_rows_left_;
    n_shared_taken_ += n_shared(row);
    add(i, LUNA_VERB_RUN, LUNA_REASON_ORDER, n_tokens);
    return true;
  }

  /// Frees the KV of row i; it waits and is recomputed. False if it holds none, or is in the plan
  /// or in a step.
  bool preempt(std::uint32_t i, std::uint16_t reason = LUNA_REASON_MEMORY_HIGH) {
    const Row row = snapshot()[i];
    if (row.is_waiting() || is_planned(i) || row.is_in_step() || full()) return false;
    give_back(row);
    add(i, LUNA_VERB_PREEMPT, reason, 0);
    return true;
  }

  /// Ends row i with an error. False if it is in the plan or in a step.
  bool reject(std::uint32_t i, std::uint16_t reason) {
    const Row row = snapshot()[i];
    if (is_planned(i) || row.is_in_step() || full()) return false;
    if (!row.is_waiting()) give_back(row);
    add(i, LUNA_VERB_REJECT, reason, 0);
    return true;
  }

  /// Ends row i because it would wait too long; its client is told both numbers.
  bool reject_for_queue(std::uint32_t i, std::uint32_t wait_ms, std::uint32_t wait_ms_max) {
    if (!reject(i, LUNA_REASON_QUEUE_LONG)) return false;
    luna_action& action = raw_->actions[raw_->n_actions - 1];
    action.wait_ms = wait_ms;
    action.wait_ms_max = wait_ms_max;
    return true;
  }

  /// Plan again then, even if nothing happens.
  void wake_at(std::uint64_t now_ns) { raw_->wake_at_ns = now_ns; }

  [[nodiscard]] bool is_planned(std::uint32_t i) const { return planned_[i] != 0; }
  [[nodiscard]] std::uint32_t n_tokens_left() const { return n_tokens_left_; }
  [[nodiscard]] std::uint32_t n_rows_left() const { return n_rows_left_; }
  /// Rows that no snapshot exceeds: what a policy's own tables need room for.
  [[nodiscard]] std::uint32_t n_reqs_max() const { return raw_->n_actions_max; }

  /// The books of a new step. Called by the base class.
  void begin(const luna_snapshot* raw_snapshot, luna_plan* raw) {
    snapshot_ = raw_snapshot;
    raw_ = raw;
    raw_->n_actions = 0;
    raw_->wake_at_ns = 0;
    short_of_blocks_ = false;
    n_shared_taken_ = 0;
    n_given_back_ = 0;
    order_.reserve(n_reqs_max());
    planned_.reserve(n_reqs_max());
    n_tokens_left_ = raw_snapshot->n_rows_max;
    n_rows_left_ = raw_snapshot->n_seqs_max;
    planned_.assign(raw_snapshot->n_reqs, 0);
    n_blocks_free_ = INT64_MAX;
    const Snapshot rows = snapshot();
    order_.clear();
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      if (rows[i].is_plannable()) order_.push_back(i);
    for (std::uint32_t i = 0; i < rows.n_devices(); ++i)
      n_blocks_free_ = std::min<std::int64_t>(n_blocks_free_, rows.device(i).n_kv_blocks_free);
    n_blocks_reserve_ = 0;
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      n_blocks_free_ -= n_blocks_promised(rows[i]);
      if (rows[i].is_waiting()) continue;
      for (std::uint32_t d = 0; d < rows.n_devices(); ++d)
        n_blocks_reserve_ =
            std::max<std::int64_t>(n_blocks_reserve_, rows.device(d).n_kv_blocks_reserve);
    }
  }

  /// A policy that never pre-empts must not stand still: when nothing could run for want of blocks,
  /// and no step is in flight whose end may bring some, the newest row that holds some gives them
  /// up. Called by the base class.
  void end() {
    if (raw_->n_actions > 0 || !short_of_blocks_ || snapshot_->n_steps_in_flight > 0) return;
    for (std::uint32_t i = snapshot_->n_reqs; i-- > 0;)
      if (preempt(i)) return;
  }

 private:
  [[nodiscard]] Snapshot snapshot() const { return Snapshot(snapshot_); }
  [[nodiscard]] bool full() const { return raw_->n_actions >= raw_->n_actions_max; }
  [[nodiscard]] std::int64_t n_blocks(std::uint32_t n_tokens) const {
    const std::uint32_t block = snapshot_->kv_block_tokens;
    return n_tokens / block + (n_tokens % block != 0 ? 1 : 0);
  }
  // What a prefilling row was let in for and has not taken yet: nobody else may have it.
  [[nodiscard]] std::int64_t n_blocks_promised(Row row) const {
    if (!row.is_prefilling()) return 0;
    return std::max<std::int64_t>(n_blocks(row->n_prompt) - row->n_kv_blocks, 0);
  }
  [[nodiscard]] std::int64_t n_blocks_to_take(Row row, std::uint32_t n_tokens) const {
    if (row.is_prefilling()) return 0;
    if (row.is_decoding()) {
      // A draft that was rejected may have left more blocks than the tokens need.
      const std::int64_t grown = n_blocks(row->n_computed + n_tokens) - row->n_kv_blocks;
      return std::max<std::int64_t>(grown, 0) + row->n_kv_blocks_copied;
    }
    const std::uint32_t n_left = row->n_generated_max - row->n_generated;
    return n_blocks(row->n_prompt + std::min(n_left, snapshot_->kv_block_tokens)) - n_shared(row);
  }
  // Blocks that a waiting row would share with rows that hold them. Which ones they are the books
  // do not know: any that this plan gives back may be among them.
  [[nodiscard]] std::int64_t n_shared(Row row) const {
    if (!row.is_waiting()) return 0;
    return std::max<std::int64_t>(row->n_kv_blocks_shared - n_given_back_, 0);
  }
  // Likewise, what a row gives back may be shared with a row that this plan lets in.
  void give_back(Row row) {
    const std::int64_t kept = std::min<std::int64_t>(row->n_kv_blocks_freed, n_shared_taken_);
    n_shared_taken_ -= kept;
    n_given_back_ += row->n_kv_blocks_freed;
    n_blocks_free_ += row->n_kv_blocks_freed - kept + n_blocks_promised(row);
  }
  void add(std::uint32_t i, std::uint16_t verb, std::uint16_t reason, std::uint32_t n_tokens) {
    raw_->actions[raw_->n_actions++] = {.row = i,
                                        .verb = verb,
                                        .reason = reason,
                                        .device = snapshot()[i]->device,
                                        .first_token = 0,
                                        .n_tokens = n_tokens,
                                        .arg = 0};
    planned_[i] = 1;
  }

  const luna_snapshot* snapshot_ = nullptr;
  luna_plan* raw_ = nullptr;
  std::uint32_t n_tokens_left_ = 0;
  std::uint32_t n_rows_left_ = 0;
  std::int64_t n_blocks_free_ = 0;  // below 0: decoding rows took what was promised
  std::int64_t n_blocks_reserve_ = 0;
  std::int64_t n_shared_taken_ = 0;  // counted on by the rows let in
  std::int64_t n_given_back_ = 0;
  bool short_of_blocks_ = false;
  std::vector<std::uint32_t> order_;
  std::vector<unsigned char> planned_;  // by row
};

/// A scheduling policy. An interface: derive, take `const Settings&` (or nothing) in the
/// constructor, and name the class in LUNA_SCHEDULER.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Chooses the work of one step. [step]
  virtual void plan(const Snapshot& rows, Plan& out) = 0;
};

/// The C table's instance of policy T.
template <typename T>
class SchedulerInstance {
 public:
  static Result<std::unique_ptr<SchedulerInstance>> create(Host /*host*/,
                                                           const Settings& settings) {
    if constexpr (std::is_constructible_v<T, const Settings&>) {
      return std::make_unique<SchedulerInstance>(std::make_unique<T>(settings));
    } else {
      return std::make_unique<SchedulerInstance>(std::make_unique<T>());
    }
  }
  explicit SchedulerInstance(std::unique_ptr<T> policy) : policy_(std::move(policy)) {}

  static luna_status plan(void* self,
                          const luna_snapshot* snapshot,
                          luna_plan* plan,
                          luna_err* err) noexcept {
    auto* instance = static_cast<SchedulerInstance*>(self);
    return fenced(err, [&]() -> luna_status {
      instance->plan_.begin(snapshot, plan);
      instance->policy_->plan(Snapshot(snapshot), instance->plan_);
      instance->plan_.end();
      return LUNA_OK;
    });
  }

 private:
  std::unique_ptr<T> policy_;
  Plan plan_;
};

template <typename T>
constexpr luna_scheduler_if make_scheduler_table(std::span<const luna_param> params) {
  return {make_head<SchedulerInstance<T>, luna_scheduler_if>(params), SchedulerInstance<T>::plan};
}

/// The settings named in LUNA_SCHEDULER as a table of static storage; none is fine.
template <typename... Params>
constexpr std::array<luna_param, sizeof...(Params)> scheduler_params(Params... params) {
  return {params...};
}

}  // namespace luna

/// LUNA_SCHEDULER(Class, "reverse.dns.id", "short name", "version", "One sentence.", params...):
/// makes the shared library a scheduler plugin. At namespace scope, once a plugin.
#define LUNA_SCHEDULER(CLASS, ID, NAME, VERSION, SUMMARY, ...)                         \
  static constexpr auto luna_scheduler_params = ::luna::scheduler_params(__VA_ARGS__); \
  static constexpr luna_scheduler_if luna_scheduler_table =                            \
      ::luna::make_scheduler_table<CLASS>(luna_scheduler_params);                      \
  LUNA_DEFINE_PLUGIN(ID, NAME, VERSION, SUMMARY, LUNA_KIND_SCHEDULER, luna_scheduler_table)
