// A backend without a model: its "logits" are a hash of what a row would attend to, read through
// the block table. A wrong table, position, copy or order of blocks gives other tokens, or a fault.
#pragma once

#include "core/model/compiled_model.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/plugin.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace luna::test {

/// When a submitted step ends.
enum class Completion {
  immediate,  // within submit()
  deferred,   // when the test says so: FakeModel::complete(), FakeDevice::complete()
  threaded,   // on a thread of the device
};

struct FakeModelOptions {
  std::uint32_t n_shards = 1;
  std::uint32_t n_lanes = 1;  ///< steps in flight
  std::uint32_t vocab_size = 264;
  std::uint32_t n_kv_blocks = 64;
  std::uint32_t kv_block_tokens = 32;
  std::uint32_t n_rows_max = 64;
  std::uint32_t n_seqs_max = 8;
  std::uint32_t n_positions_max = 256;
  std::uint32_t n_candidates = 32;
  std::uint32_t n_draft_rows_max = 0;  ///< logits rows beyond one a sequence
  /// What a row at position forced_from + i is sure to give.
  std::vector<std::uint32_t> forced = {};
  std::uint32_t forced_from = 0;
  std::uint32_t prune_keep_percent = 100;
  std::uint64_t weights = 0;           ///< another number is another model
  std::uint64_t busy_ns_fixed = 1000;  ///< that a step is said to have taken
  std::uint64_t busy_ns_per_row = 0;
  Completion completion = Completion::immediate;
};

/// One device: a KV cache whose slots hold (token, position), and the steps it was given, which it
/// runs in their order.
class FakeDevice {
 public:
  static constexpr std::uint32_t kHeads = 2;

  /// What a lane's steps write; none but on the last device.
  struct Outputs {
    float* logits = nullptr;
    model::Candidate* candidates = nullptr;
  };

  FakeDevice(const FakeModelOptions& options, std::vector<Outputs> outputs)
      : options_(options),
        kv_(std::size_t{options.n_kv_blocks} * options.kv_block_tokens),
        outputs_(std::move(outputs)) {
    if (options.completion == Completion::threaded) thread_ = std::thread([this] { serve(); });
  }
  ~FakeDevice() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  static luna_status submit(void* self, const luna_step* step, luna_err* err) {
    return static_cast<FakeDevice*>(self)->accept(*step, err);
  }

  static luna_status kv_export(void* self, const luna_kv_part* part, void* bytes, luna_err* err) {
    return static_cast<FakeDevice*>(self)->copy_out(*part, bytes, err);
  }
  static luna_status kv_import(void* self,
                               const luna_kv_part* part,
                               const void* bytes,
                               luna_err* err) {
    return static_cast<FakeDevice*>(self)->copy_in(*part, bytes, err);
  }
  [[nodiscard]] std::uint64_t kv_block_bytes() const {
    return options_.kv_block_tokens * sizeof(KvSlot);
  }

  /// Runs the oldest step that was deferred. False if there is none.
  bool complete() {
    const luna_step* const step = pop();
    if (step == nullptr) return false;
    run(*step);
    return true;
  }
  /// The oldest step that was deferred; none: nullptr.
  [[nodiscard]] const luna_step* pending() const {
    return n_pending_ == 0 ? nullptr : pending_[first_pending_];
  }
  /// Steps that it has ended.
  [[nodiscard]] std::uint64_t n_ended() const { return n_ended_; }
  [[nodiscard]] std::uint64_t busy_ns(const luna_step& step) const {
    return options_.busy_ns_fixed + options_.busy_ns_per_row * step.n_rows;
  }

  std::uint64_t n_submits = 0;
  std::vector<std::string> faults;  ///< breaches of the contract of luna_step
  bool refuse_next_submit = false;
  bool fail_next_step = false;
  bool stall_next_step = false;  ///< as a device that waits for a peer, until release()
  std::atomic<bool> fail_next_export = false;  ///< copies may have a thread of their own
  std::atomic<bool> fails_imports = false;
  std::function<void()> on_export;  ///< before blocks are copied out
  float poison = 0.0F;              ///< added to a row's first logit: a NaN for a broken model
  std::uint64_t n_rows = 0;
  std::uint64_t n_slots_served = 0;  ///< of its KV, for sequences of other groups
  std::uint32_t n_rows_last = 0;
  std::uint32_t first_position_last = 0;  ///< of the last step

  /// Where slices of its sequences may lie: by place in the set. Outlive its steps.
  std::vector<FakeDevice*> peers;

  /// Its communication is over: the step that waits for a peer ends, and so does each that comes.
  void release() {
    is_aborted_ = true;
    if (const luna_step* step = std::exchange(stalled_, nullptr))
      end(*step, LUNA_CANCELLED, "aborted");
  }

 private:
  static constexpr std::uint32_t kSpoilt = UINT32_MAX - 1;  // of a step that failed
  struct KvSlot {
    std::uint32_t token_id = UINT32_MAX;
    std::uint32_t position = UINT32_MAX;
    std::uint32_t n_observed =
        0;  // of a sequence's first place: rows observed since it was written
  };

  luna_status copy_out(const luna_kv_part& part, void* bytes, luna_err* err) {
    if (on_export) on_export();
    if (fail_next_export.exchange(false)) return report(err, LUNA_IO, "failed by the test");
    auto* at = static_cast<unsigned char*>(bytes);
    for (std::uint32_t i = 0; i < part.n_blocks; ++i, at += kv_block_bytes())
      std::memcpy(
          at, &kv_[static_cast<std::size_t>(block_start(part.blocks[i]))], kv_block_bytes());
    return LUNA_OK;
  }
  luna_status copy_in(const luna_kv_part& part, const void* bytes, luna_err* err) {
    if (fails_imports) return report(err, LUNA_IO, "failed by the test");
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (std::uint32_t i = 0; i < part.n_blocks; ++i, at += kv_block_bytes())
      std::memcpy(
          &kv_[static_cast<std::size_t>(block_start(part.blocks[i]))], at, kv_block_bytes());
    return LUNA_OK;
  }

  luna_status accept(const luna_step& step, luna_err* err) {
    ++n_submits;
    if (std::exchange(refuse_next_submit, false))
      return report(err, LUNA_IO, "refused by the test");
    if (std::exchange(stall_next_step, false)) {
      stalled_ = &step;
      return LUNA_OK;
    }
    switch (options_.completion) {
      case Completion::immediate:
        run(step);
        break;
      case Completion::deferred:
      case Completion::threaded:
        push(step);
        break;
    }
    return LUNA_OK;
  }

  void push(const luna_step& step) {
    {
      const std::lock_guard lock(mutex_);
      if (n_pending_ == pending_.size()) fault("more steps than may be in flight");
      pending_[(first_pending_ + n_pending_++) % pending_.size()] = &step;
    }
    changed_.notify_all();
  }
  const luna_step* pop() {
    const std::lock_guard lock(mutex_);
    if (n_pending_ == 0) return nullptr;
    const luna_step* const step = pending_[first_pending_];
    first_pending_ = (first_pending_ + 1) % pending_.size();
    --n_pending_;
    return step;
  }
  void serve() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return n_pending_ > 0 || stops_; });
        if (n_pending_ == 0) return;
      }
      complete();
    }
  }

  void run(const luna_step& step) {
    if (std::exchange(fail_next_step, false)) {
      write(step, kSpoilt);
      end(step, LUNA_IO, "failed by the test");
      return;
    }
    if (is_aborted_) {
      end(step, LUNA_CANCELLED, "aborted");
      return;
    }
    copy_blocks(step);
    write(step, std::nullopt);
    for (std::uint32_t o = 0; o < step.n_out_rows; ++o) {
      if (o > 0 && step.out_rows[o] <= step.out_rows[o - 1]) fault("out_rows not ascending");
      fill_output(step, o);
    }
    for (std::uint32_t s = 0; s < step.n_seqs; ++s)
      prune(step, s);
    weigh_slices(step);
    n_rows += step.n_rows;
    n_rows_last = step.n_rows;
    first_position_last = step.positions[0];
    end(step, LUNA_OK, "");
  }

  /// Every position gets the same attention, by each of kHeads: all layers are the last device's.
  void weigh_slices(const luna_step& step) const {
    if (slice_masses_of(step) == nullptr || outputs_.front().logits == nullptr) return;
    for (std::uint32_t s = 0; s < step.n_slices; ++s) {
      const luna_slice& slice = step.slices[s];
      const std::uint32_t last_row = step.seq_first_row[slice.seq + 1] - 1;
      const double share = double{LUNA_PARTITION_TOKENS} * slice.n_partitions /
                           (double{1} + step.positions[last_row]);
      std::atomic_ref(step.slice_masses[s]).fetch_add(kHeads * to_slice_mass(share));
    }
  }

  void end(const luna_step& step, luna_status status, const char* message) {
    luna_step_result result{};
    result.struct_size = sizeof(result);
    result.status = status;
    result.busy_ns = busy_ns(step);
    result.message = message;
    ++n_ended_;
    step.done(step.done_context, &result);
  }

  void fault(const char* what) {
    if (faults.size() < 8) faults.emplace_back(what);
  }

  // Copies may run in any order or side by side: all sources are read first.
  void copy_blocks(const luna_step& step) {
    std::vector<std::vector<KvSlot>> sources;
    for (std::uint32_t c = 0; c < step.n_kv_copies; ++c) {
      const auto first = kv_.begin() + block_start(step.kv_copies[c].from_block);
      sources.emplace_back(first, first + options_.kv_block_tokens);
    }
    for (std::uint32_t c = 0; c < step.n_kv_copies; ++c)
      std::copy(sources[c].begin(),
                sources[c].end(),
                kv_.begin() + block_start(step.kv_copies[c].to_block));
  }

  [[nodiscard]] std::ptrdiff_t block_start(std::uint32_t block) const {
    return static_cast<std::ptrdiff_t>(block) * options_.kv_block_tokens;
  }

  static std::uint32_t slot_of(const luna_step& step, std::uint32_t seq, std::uint32_t position) {
    return position - prune_of(step, seq).n_pruned;
  }
  /// Keeps the first place and the last ones; counts what was observed since the sequence began.
  void prune(const luna_step& step, std::uint32_t seq) {
    const luna_seq_prune prune = prune_of(step, seq);
    // What observes nothing writes nothing: the block may be on its way elsewhere.
    if (prune.n_observed > 0) slot(step, seq, 0).n_observed += prune.n_observed;
    if (prune.n_keep == 0) return;
    if (slot(step, seq, 0).n_observed != LUNA_PRUNE_RECENT) fault("other rows were observed");
    const std::uint32_t n = slot_of(step, seq, step.positions[step.seq_first_row[seq + 1] - 1]) + 1;
    if (prune.n_keep > n) fault("more is kept than there is");
    for (std::uint32_t to = 1; to < prune.n_keep; ++to)
      slot(step, seq, to) = slot(step, seq, n - prune.n_keep + to);
  }

  KvSlot& slot(const luna_step& step, std::uint32_t seq, std::uint32_t position) {
    if (const luna_slice* slice = slice_of(step, seq, position); slice != nullptr)
      return peers.at(slice->peer)->slot_of_slice(*slice, position);
    const std::uint32_t block =
        step.block_tables[seq * step.block_table_stride + position / options_.kv_block_tokens];
    if (block >= options_.n_kv_blocks) {
      fault("block beyond the cache");
      return kv_[0];
    }
    return kv_[static_cast<std::size_t>(block_start(block)) + position % options_.kv_block_tokens];
  }

  static const luna_slice* slice_of(const luna_step& step,
                                    std::uint32_t seq,
                                    std::uint32_t position) {
    for (const luna_slice& slice : slices_of(step))
      if (slice.seq == seq && position / LUNA_PARTITION_TOKENS >= slice.first_partition &&
          position / LUNA_PARTITION_TOKENS < slice_end(slice))
        return &slice;
    return nullptr;
  }
  KvSlot& slot_of_slice(const luna_slice& slice, std::uint32_t position) {
    const std::uint32_t place = position - slice.first_partition * LUNA_PARTITION_TOKENS;
    const std::uint32_t block = slice.blocks[place / options_.kv_block_tokens];
    if (block >= options_.n_kv_blocks) {
      fault("slice: block beyond the cache");
      return kv_[0];
    }
    ++n_slots_served;
    return kv_[static_cast<std::size_t>(block_start(block)) + place % options_.kv_block_tokens];
  }

  /// spoilt  what is written in place of the tokens
  void write(const luna_step& step, std::optional<std::uint32_t> spoilt) {
    if (step.n_rows == 0 || step.n_rows > options_.n_rows_max) fault("n_rows out of bounds");
    if (step.n_seqs > options_.n_seqs_max) fault("n_seqs out of bounds");
    std::vector<const KvSlot*> written;
    for (std::uint32_t s = 0; s < step.n_seqs; ++s) {
      const std::uint32_t begin = step.seq_first_row[s];
      const std::uint32_t end_row = step.seq_first_row[s + 1];
      if (begin >= end_row) fault("a sequence without rows");
      for (std::uint32_t row = begin; row < end_row; ++row) {
        if (row > begin && step.positions[row] != step.positions[row - 1] + 1)
          fault("positions not ascending by one");
        if (slice_of(step, s, step.positions[row]) != nullptr) fault("a slice is not closed");
        KvSlot& target = slot(step, s, slot_of(step, s, step.positions[row]));
        target = {spoilt.value_or(step.token_ids[row]), step.positions[row], 0};
        written.push_back(&target);
      }
    }
    std::sort(written.begin(), written.end());
    if (std::adjacent_find(written.begin(), written.end()) != written.end())
      fault("two rows write one place");
    if (step.seq_first_row[step.n_seqs] != step.n_rows) fault("rows of no sequence");
  }

  std::uint64_t hash_of_history(const luna_step& step, std::uint32_t row) {
    std::uint32_t seq = 0;
    while (step.seq_first_row[seq + 1] <= row)
      ++seq;
    std::uint64_t hash = 0xCBF29CE484222325U ^ options_.weights;
    const std::uint32_t n_pruned = prune_of(step, seq).n_pruned;
    for (std::uint32_t p = 0; p <= slot_of(step, seq, step.positions[row]); ++p) {
      const KvSlot& seen = slot(step, seq, p);
      if (seen.position != (p == 0 ? 0 : p + n_pruned))
        fault("attends to a place that holds another position");
      hash = (hash ^ (std::uint64_t{seen.token_id} + 1)) * 0x100000001B3U;
      hash ^= hash >> 29U;
    }
    return hash;
  }

  void fill_output(const luna_step& step, std::uint32_t o) {
    const Outputs& outputs = outputs_[step.binds[0].buffer];
    if (outputs.logits == nullptr) return;
    const std::uint64_t hash = hash_of_history(step, step.out_rows[o]);
    const std::uint32_t n = options_.vocab_size;
    std::vector<float> row(n);
    double total = 0.0;
    for (std::uint32_t id = 0; id < n; ++id) {
      std::uint64_t mixed = (hash + id) * 0x9E3779B97F4A7C15U;
      mixed = (mixed ^ (mixed >> 31U)) * 0xBF58476D1CE4E5B9U;
      row[id] = static_cast<float>(mixed >> 40U) * 0x1p-21F;  // 0..8
      total += std::exp(double{row[id]});
    }
    row[0] += poison;
    const std::size_t place =
        std::size_t{step.positions[step.out_rows[o]]} - options_.forced_from;  // or far beyond
    if (place < options_.forced.size()) row[options_.forced[place]] += 100.0F;
    float* const out = outputs.logits + std::size_t{o} * n;
    model::Candidate* const best =
        outputs.candidates + std::size_t{o} * (options_.n_candidates + 1);
    // What was not asked for must not be read.
    std::fill_n(out, n, std::nanf(""));
    std::fill_n(best, options_.n_candidates + 1, model::Candidate{std::nanf(""), 0});
    if ((step.out_flags[o] & LUNA_OUT_LOGITS) != 0) std::copy(row.begin(), row.end(), out);
    if ((step.out_flags[o] & LUNA_OUT_CANDIDATES) == 0) return;
    std::vector<model::Candidate> all(n);
    for (std::uint32_t id = 0; id < n; ++id)
      all[id] = {row[id], id};
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
    });
    std::copy_n(all.begin(), options_.n_candidates, best);
    best[options_.n_candidates] = {static_cast<float>(std::log(total)) + poison, 0};
  }

  const FakeModelOptions options_;
  std::vector<KvSlot> kv_;
  const std::vector<Outputs> outputs_;  // by lane
  std::mutex mutex_;                    // guards what waits
  std::condition_variable changed_;
  std::array<const luna_step*, model::kLanesMax> pending_{};  // a ring
  std::size_t first_pending_ = 0;
  std::size_t n_pending_ = 0;
  bool stops_ = false;
  std::atomic<std::uint64_t> n_ended_{0};
  std::atomic<bool> is_aborted_{false};
  const luna_step* stalled_ = nullptr;
  std::thread thread_;
};

/// A compiled model of fake devices.
class FakeModel {
 public:
  explicit FakeModel(const FakeModelOptions& options = {})
      : logits_(options.n_lanes * n_out_rows_max(options) * options.vocab_size),
        candidates_(options.n_lanes * n_out_rows_max(options) * (options.n_candidates + 1)) {
    table_.submit = &FakeDevice::submit;
    compiled.name = "fake";
    compiled.config.vocab_size = options.vocab_size;
    compiled.config.context_length = options.n_positions_max;
    compiled.config.n_layers = 1;
    compiled.config.n_heads = FakeDevice::kHeads;
    compiled.limits = {.n_rows_max = options.n_rows_max,
                       .n_seqs_max = options.n_seqs_max,
                       .n_out_rows_max = static_cast<std::uint32_t>(n_out_rows_max(options)),
                       .n_positions_max = options.n_positions_max};
    compiled.kv_block_tokens = options.kv_block_tokens;
    compiled.n_kv_blocks = options.n_kv_blocks;
    compiled.kv_block_bytes = 4096;
    compiled.n_candidates = options.n_candidates;
    compiled.prune_keep_percent = options.prune_keep_percent;
    std::vector<FakeDevice::Outputs> outputs;
    for (std::size_t lane = 0; lane < options.n_lanes; ++lane) {
      const std::size_t first = lane * n_out_rows_max(options);
      outputs.push_back({logits_.data() + first * options.vocab_size,
                         candidates_.data() + first * (options.n_candidates + 1)});
      compiled.outputs.push_back({outputs.back().logits, outputs.back().candidates});
    }
    if (options.n_shards > 1) {
      compiled.abort_comms = [](void* self) {
        for (FakeDevice& device : static_cast<FakeModel*>(self)->devices)
          device.release();
      };
      compiled.abort_context = this;
    }
    for (std::uint32_t s = 0; s < options.n_shards; ++s) {
      const bool last = s + 1 == options.n_shards;
      devices.emplace_back(options,
                           last ? outputs : std::vector<FakeDevice::Outputs>(options.n_lanes));
      model::Shard shard;
      shard.device_name = "fake" + std::to_string(s);
      shard.backend = &table_;
      shard.executable = &devices.back();
      shard.kv = {.table = &kKvBlocks,
                  .device = &devices.back(),
                  .buffer = 0,
                  .layout = {.n_layers = 1,
                             .n_kv_heads = 1,
                             .head_dim = 1,
                             .dtype = LUNA_DTYPE_BF16,
                             .block_tokens = options.kv_block_tokens,
                             .flags = 0},
                  .block_bytes = devices.back().kv_block_bytes(),
                  .first_layer = s};
      for (std::uint32_t lane = 0; lane < options.n_lanes; ++lane)
        shard.binds.push_back({{.slot = 0, .pad = 0, .buffer = lane, .comm = nullptr}});
      compiled.shards.push_back(shard);
    }
  }
  FakeModel(const FakeModel&) = delete;
  FakeModel& operator=(const FakeModel&) = delete;

  /// Lets copies of a model hold slices of each other's sequences. They live equally long.
  static void let_slice(std::span<FakeModel* const> models) {
    for (std::size_t m = 0; m < models.size(); ++m) {
      models[m]->compiled.slice_set = models.front();
      models[m]->compiled.slice_place = static_cast<std::uint32_t>(m);
      for (std::size_t d = 0; d < models[m]->devices.size(); ++d)
        for (FakeModel* other : models)
          models[m]->devices[d].peers.push_back(d < other->devices.size() ? &other->devices[d]
                                                                          : nullptr);
    }
  }

  /// The oldest step of each device.
  bool complete() {
    bool any = false;
    for (FakeDevice& device : devices)
      any |= device.complete();
    return any;
  }
  [[nodiscard]] std::vector<std::string> faults() const {
    std::vector<std::string> all;
    for (const FakeDevice& device : devices)
      all.insert(all.end(), device.faults.begin(), device.faults.end());
    return all;
  }

  std::deque<FakeDevice> devices;
  model::CompiledModel compiled;

 private:
  static std::size_t n_out_rows_max(const FakeModelOptions& options) {
    return std::size_t{options.n_seqs_max} + options.n_draft_rows_max;
  }

  static constexpr luna_kv_blocks_if kKvBlocks = {
      sizeof(luna_kv_blocks_if), 0, &FakeDevice::kv_export, &FakeDevice::kv_import};

  luna_backend_if table_{};
  std::vector<float> logits_;
  std::vector<model::Candidate> candidates_;
};

}  // namespace luna::test
