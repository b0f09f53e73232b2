#include "core/check/step_draft.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace luna::check {
namespace {

constexpr std::uint32_t kSeqsAtOnce = 4;
constexpr std::uint32_t kOutBoth = LUNA_OUT_LOGITS | LUNA_OUT_CANDIDATES;
// The shortest that pruning leaves something to choose of, and rows after it.
constexpr std::uint32_t kPrunedMin = LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT + 20;
constexpr std::uint32_t kAfterPruning = 6;
constexpr std::uint32_t kObservedMax = 12;

std::uint32_t below(std::mt19937_64& random, std::uint32_t n) {
  return static_cast<std::uint32_t>(random() % n);
}

/// A sequence on its way.
struct Growing {
  std::uint32_t number;  // in the conversation
  std::uint32_t n_done = 0;
  std::uint32_t n_pruned = 0;
  std::vector<std::uint32_t> blocks = {};
};

/// Draws the steps of one conversation. Lives for one call.
class Batches {
 public:
  Batches(const DrawnProgram& drawn, const Conversation& conversation, std::mt19937_64& random)
      : drawn_(drawn),
        program_(drawn.program.abi()),
        conversation_(conversation),
        random_(random),
        free_(conversation.n_kv_blocks) {
    std::iota(free_.begin(), free_.end(), 0U);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  std::vector<DrawnStep> run() {
    std::vector<DrawnStep> steps;
    while (next_ < conversation_.sequences.size() || !growing_.empty()) {
      while (growing_.size() < kSeqsAtOnce && next_ < conversation_.sequences.size() &&
             (growing_.empty() || below(random_, 2) == 0))
        growing_.push_back({next_++});
      steps.push_back(step());
    }
    return steps;
  }

 private:
  DrawnStep step() {
    DrawnStep step;
    step.table_stride = program_.n_blocks_per_seq_max;
    std::shuffle(growing_.begin(), growing_.end(), random_);
    const std::size_t n_seqs = 1 + below(random_, static_cast<std::uint32_t>(growing_.size()));
    for (std::size_t i = 0; i < n_seqs; ++i) {
      const auto n_left = static_cast<std::uint32_t>(program_.n_rows_max - step.token_ids.size());
      if (n_left == 0) break;
      add_rows(step, growing_[i], n_left);
    }
    for (std::size_t i = growing_.size(); i-- > 0;) {
      if (growing_[i].n_done < tokens_of(growing_[i]).size()) continue;
      free_.insert(free_.begin(), growing_[i].blocks.begin(), growing_[i].blocks.end());
      growing_.erase(growing_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return step;
  }

  [[nodiscard]] const std::vector<std::uint32_t>& tokens_of(const Growing& seq) const {
    return conversation_.sequences[seq.number];
  }

  void add_rows(DrawnStep& step, Growing& seq, std::uint32_t n_rows_max) {
    const std::vector<std::uint32_t>& tokens = tokens_of(seq);
    const auto n_all = static_cast<std::uint32_t>(tokens.size());
    // A sequence that is pruned is so at the end of its prompt.
    const bool is_pruned = drawn_.can_prune && n_all >= kPrunedMin + kAfterPruning;
    const std::uint32_t prune_at = is_pruned ? n_all - kAfterPruning : n_all;
    const std::uint32_t n_open = (seq.n_done < prune_at ? prune_at : n_all) - seq.n_done;
    std::uint32_t n = std::min(n_open, n_rows_max);
    if (below(random_, 3) == 0) n = 1 + below(random_, n);
    if (is_pruned && seq.n_done >= prune_at) n = 1;
    luna_seq_prune prune{seq.n_pruned, 0, 0, 0};
    if (is_pruned && seq.n_done + n == prune_at) {
      prune.n_observed = std::min(n, kObservedMax);
      prune.n_keep = LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT + 1 +
                     below(random_, prune_at - LUNA_PRUNE_FIRST - LUNA_PRUNE_RECENT - 1);
    }
    take_blocks(step, seq, n);
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto row = static_cast<std::uint32_t>(step.token_ids.size());
      if (i + 1 == n || below(random_, 4) == 0) {
        step.out_rows.push_back(row);
        constexpr std::array<std::uint32_t, 4> kFlags = {
            kOutBoth, kOutBoth, LUNA_OUT_LOGITS, LUNA_OUT_CANDIDATES};
        step.out_flags.push_back(kFlags[below(random_, 4)]);
      }
      step.token_ids.push_back(tokens[seq.n_done + i]);
      step.positions.push_back(seq.n_done + i);
      step.seq_of_row.push_back(seq.number);
    }
    step.seq_first_row.push_back(static_cast<std::uint32_t>(step.token_ids.size()));
    step.tables.insert(step.tables.end(), seq.blocks.begin(), seq.blocks.end());
    step.tables.resize((step.seq_first_row.size() - 1) * step.table_stride);
    if (drawn_.can_prune) step.seq_prunes.push_back(prune);
    seq.n_done += n;
    if (prune.n_keep != 0) seq.n_pruned = prune_at - prune.n_keep;
  }

  void take_blocks(DrawnStep& step, Growing& seq, std::uint32_t n_rows) {
    if (!drawn_.has_kv) return;
    const std::uint32_t n_slots = seq.n_done + n_rows - seq.n_pruned;
    const std::uint32_t block_tokens = program_.kv.block_tokens;
    if (drawn_.can_copy_kv && !seq.blocks.empty() && below(random_, 2) == 0) {
      std::uint32_t& block =
          seq.blocks[below(random_, static_cast<std::uint32_t>(seq.blocks.size()))];
      const std::uint32_t to = take();
      step.kv_copies.push_back({block, to});
      // What it was copied from belongs to somebody else until the conversation ends.
      lent_.push_back(std::exchange(block, to));
    }
    while (seq.blocks.size() * block_tokens < n_slots)
      seq.blocks.push_back(take());
  }

  // There is a block for all that may be taken at once, and for copies while they last.
  std::uint32_t take() {
    if (free_.empty()) std::swap(free_, lent_);
    const std::uint32_t block = free_.back();
    free_.pop_back();
    return block;
  }

  const DrawnProgram& drawn_;
  const luna_program program_;
  const Conversation& conversation_;
  std::mt19937_64& random_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> lent_;
  std::vector<Growing> growing_;
  std::uint32_t next_ = 0;
};

}  // namespace

luna_step DrawnStep::abi() const {
  luna_step step{};
  step.struct_size = sizeof(step);
  step.n_rows = static_cast<std::uint32_t>(token_ids.size());
  step.n_seqs = static_cast<std::uint32_t>(seq_first_row.size() - 1);
  step.n_out_rows = static_cast<std::uint32_t>(out_rows.size());
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.seq_first_row = seq_first_row.data();
  step.block_tables = tables.data();
  step.block_table_stride = table_stride;
  step.n_kv_copies = static_cast<std::uint32_t>(kv_copies.size());
  step.kv_copies = kv_copies.data();
  step.out_rows = out_rows.data();
  step.out_flags = out_flags.data();
  step.seq_prunes = seq_prunes.empty() ? nullptr : seq_prunes.data();
  return step;
}

Conversation draw_conversation(const DrawnProgram& drawn, std::mt19937_64& random) {
  const luna_program program = drawn.program.abi();
  Conversation conversation;
  const std::uint32_t n_seqs = 2 + below(random, 4);
  for (std::uint32_t s = 0; s < n_seqs; ++s) {
    std::uint32_t n = 1 + below(random, drawn.has_kv ? 60 : 20);
    // One goes as far as positions go; those that are pruned are long enough for it.
    if (s == 0 && drawn.has_kv) n = program.n_positions_max - below(random, 20);
    if (drawn.can_prune && s == 1) n = kPrunedMin + kAfterPruning + below(random, 30);
    std::vector<std::uint32_t>& tokens = conversation.sequences.emplace_back();
    for (std::uint32_t i = 0; i < n; ++i)
      tokens.push_back(below(random, ProgramDraft::kVocab));
  }
  // Twice what four sequences may hold: blocks that were copied stay a while.
  conversation.n_kv_blocks = 2 * kSeqsAtOnce * program.n_blocks_per_seq_max;
  return conversation;
}

std::vector<DrawnStep> draw_batches(const DrawnProgram& drawn,
                                    const Conversation& conversation,
                                    std::mt19937_64& random) {
  return Batches(drawn, conversation, random).run();
}

std::vector<DrawnStep> steps_alone(const DrawnProgram& drawn,
                                   const Conversation& conversation,
                                   std::uint32_t sequence) {
  const luna_program program = drawn.program.abi();
  const std::vector<std::uint32_t>& tokens = conversation.sequences[sequence];
  std::vector<DrawnStep> steps;
  for (std::uint32_t first = 0; first < tokens.size(); first += program.n_rows_max) {
    const auto n = std::min<std::uint32_t>(program.n_rows_max,
                                           static_cast<std::uint32_t>(tokens.size()) - first);
    DrawnStep& step = steps.emplace_back();
    step.table_stride = program.n_blocks_per_seq_max;
    step.tables.resize(step.table_stride);
    std::iota(step.tables.rbegin(), step.tables.rend(), 0U);
    for (std::uint32_t i = 0; i < n; ++i) {
      step.token_ids.push_back(tokens[first + i]);
      step.positions.push_back(first + i);
      step.seq_of_row.push_back(sequence);
      step.out_rows.push_back(i);
      step.out_flags.push_back(kOutBoth);
    }
    step.seq_first_row.push_back(n);
  }
  return steps;
}

}  // namespace luna::check
