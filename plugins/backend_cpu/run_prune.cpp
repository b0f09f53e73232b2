// kv_prune: attention is observed by (sequence, KV head, partition), sequences are pruned one a
// thread. Only steps that observe or prune have these ops (Width::observing).
#include "attend_share.hpp"
#include "head_view.hpp"

#include <luna/kv_prune.hpp>

namespace luna::cpu {
namespace {

class PruneOps : public HeadView {
 public:
  explicit PruneOps(const ThreadView& view) : HeadView(view) {}

  void observe(const CompiledOp& op) const {
    std::uint32_t task = 0;
    for (std::uint32_t seq = 0; seq < c_.step.n_seqs; ++seq) {
      const std::uint32_t n_observed = prune_of(c_.step, seq).n_observed;
      if (n_observed == 0) continue;
      const std::uint32_t end = c_.step.seq_first_row[seq + 1];
      const std::uint32_t n_partitions = n_partitions_of(slot_of(seq, end - 1) + 1);
      for (std::uint32_t head = 0; head < n_kv_heads(); ++head)
        for (std::uint32_t partition = 0; partition < n_partitions; ++partition)
          if (task++ % n_threads_ == thread_) observe_part(op, seq, head, partition);
    }
  }
  void prune(const CompiledOp& op) const {
    std::uint32_t task = 0;
    for (std::uint32_t seq = 0; seq < c_.step.n_seqs; ++seq)
      if (prune_of(c_.step, seq).n_keep != 0 && task++ % n_threads_ == thread_)
        prune_sequence(op, seq);
  }

 private:
  void observe_part(const CompiledOp& op,
                    std::uint32_t seq,
                    std::uint32_t kv_head,
                    std::uint32_t partition) const {
    const std::uint32_t end = c_.step.seq_first_row[seq + 1];
    const std::uint32_t first = end - prune_of(c_.step, seq).n_observed;
    for_runs(seq, n_rows(RowCount::step), [&](const RowRun& of_sequence) {
      const std::uint32_t last_row = of_sequence.first_row + of_sequence.n_rows;
      if (last_row <= first) return;
      RowRun run = of_sequence;
      run.first_row = std::max(run.first_row, first);
      run.n_rows = last_row - run.first_row;
      run.first_slot += run.first_row - of_sequence.first_row;
      kernels::ObserveArgs args;
      args.attend = attend_args(op, run, kv_head);
      args.log_sum_exp = log_sum_exps(op, run.first_row, kv_head);
      args.first = std::int64_t{partition} * kernels::kPartitionTokens;
      // Whole steps of 32 slots: what no row sees is given nothing.
      const std::int64_t n_slots = std::int64_t{run.first_slot} + run.n_rows;
      args.last =
          std::min<std::int64_t>(args.first + kernels::kPartitionTokens, (n_slots + 31) / 32 * 32);
      if (args.first < args.last) k_.observe(args);
    });
  }

  void prune_sequence(const CompiledOp& op, std::uint32_t seq) const {
    const std::uint32_t n_slots = slot_of(seq, c_.step.seq_first_row[seq + 1] - 1) + 1;
    const std::uint32_t n_keep = prune_of(c_.step, seq).n_keep;
    auto* weights = reinterpret_cast<float*>(own_ + s_.prune_lists);
    float* ranks = weights + n_slots;
    auto* kept = reinterpret_cast<std::uint32_t*>(ranks + n_slots);
    for (std::uint32_t slot = 0; slot < n_slots; ++slot) {
      float sum = 0.0F;
      for (std::uint32_t layer = op.group_first; layer <= op.layer; ++layer) {
        const kernels::KvView kv = kv_of(layer, seq);
        for (std::uint32_t head = 0; head < n_kv_heads(); ++head)
          sum += *kernels::kv_masses_at(kv, static_cast<int>(head), slot);
      }
      weights[slot] = sum;
    }
    select_kept_slots({weights, n_slots}, {ranks, n_slots}, {kept, n_slots}, n_keep);
    for (std::uint32_t layer = op.group_first; layer <= op.layer; ++layer) {
      const kernels::KvView kv = kv_of(layer, seq);
      for (std::uint32_t head = 0; head < n_kv_heads(); ++head)
        for (std::uint32_t to = 0; to < n_keep; ++to)  // kept[to] >= to: nothing is overwritten
          if (kept[to] != to) kernels::move_kv(kv, static_cast<int>(head), kept[to], to);
    }
  }
};

}  // namespace

void run_prune_op(const ThreadView& view, const CompiledOp& op) {
  const PruneOps ops(view);
  return op.action == Action::observe ? ops.observe(op) : ops.prune(op);
}

}  // namespace luna::cpu
