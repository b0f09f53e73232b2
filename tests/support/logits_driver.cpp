// Teacher-forced logits of a model, for the tests of numerics:
//   luna_logits --model FILE --backend reference|cpu [--numerics i12] --tokens ids.json
//               --out logits.f32 [--threads N] [--rows-per-step N] [--kv bf16|int8]
//               [--prompt N --keep-percent P] [--plugins FOLDER]
// With --keep-percent below 100 the KV of the first N tokens is pruned before the others follow.
// Writes raw FP32 [n_tokens, vocab_size]; the time inside steps goes to stderr.
#include "core/engine/kv_pruning.hpp"
#include "tests/support/direct_model.hpp"
#include "tests/support/program_options.hpp"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <span>
#include <thread>

namespace luna {
namespace {

/// A JSON list of numbers; nothing else is understood.
Result<std::vector<std::uint32_t>> read_ids(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::uint32_t> ids;
  char mark = 0;
  std::uint32_t id = 0;
  if (!(file >> mark) || mark != '[')
    return Error{Code::corrupt, path + ": must be a list of token ids"};
  while (file >> id) {
    ids.push_back(id);
    if (!(file >> mark) || (mark != ',' && mark != ']'))
      return Error{Code::corrupt, path + ": must be a list of token ids"};
  }
  if (mark != ']' || ids.empty()) return Error{Code::corrupt, path + ": the list has no end"};
  return ids;
}

/// Runs steps of one sequence and waits for each.
class StepLoop {
 public:
  StepLoop(const model::CompiledModel& compiled, std::span<const std::uint32_t> ids)
      : compiled_(compiled), ids_(ids), blocks_(compiled.n_kv_blocks) {
    std::iota(blocks_.begin(), blocks_.end(), 0U);
  }

  Result<void> run(std::uint32_t first, std::uint32_t n) {
    std::vector<std::uint32_t> positions(n);
    std::iota(positions.begin(), positions.end(), first);
    std::vector<std::uint32_t> out_rows(n);
    std::iota(out_rows.begin(), out_rows.end(), 0U);
    const std::vector<std::uint32_t> out_flags(n, LUNA_OUT_LOGITS);
    const std::uint32_t seq_first_row[] = {0, n};
    const model::Shard& shard = compiled_.shards.front();
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = n;
    step.n_seqs = 1;
    step.n_out_rows = n;
    step.token_ids = ids_.data() + first;
    step.positions = positions.data();
    step.seq_first_row = seq_first_row;
    step.block_tables = blocks_.data();
    step.block_table_stride = static_cast<std::uint32_t>(blocks_.size());
    step.out_rows = out_rows.data();
    step.out_flags = out_flags.data();
    step.binds = shard.binds.front().data();
    step.n_binds = static_cast<std::uint32_t>(shard.binds.front().size());
    step.seq_prunes = &prune_;
    step.done_context = this;
    step.done = [](void* context, const luna_step_result* result) {
      auto* loop = static_cast<StepLoop*>(context);
      loop->status_ = result->status;
      loop->message_ = result->message;
      loop->busy_ns_ += result->busy_ns;
      loop->is_done_.store(true);
      loop->is_done_.notify_all();
    };
    is_done_.store(false);
    luna_err err = make_err();
    LUNA_TRY(to_result(shard.backend->submit(shard.executable, &step, &err), err, "submit"));
    is_done_.wait(false);
    if (status_ != LUNA_OK) return Error{static_cast<Code>(status_), message_};
    return {};
  }
  /// What the next steps say of pruning.
  void set_prune(const luna_seq_prune& prune) { prune_ = prune; }
  [[nodiscard]] std::uint64_t busy_ns() const { return busy_ns_; }

 private:
  const model::CompiledModel& compiled_;
  std::span<const std::uint32_t> ids_;
  std::vector<std::uint32_t> blocks_;
  luna_seq_prune prune_{};
  std::atomic<bool> is_done_{false};
  luna_status status_ = LUNA_OK;
  std::string message_;
  std::uint64_t busy_ns_ = 0;
};

/// Tokens [0, n_prompt) are a prompt, which is pruned at its end; what follows sees what is left.
Result<void> write_logits(const model::CompiledModel& compiled,
                          std::span<const std::uint32_t> ids,
                          std::uint32_t n_prompt,
                          const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  StepLoop loop(compiled, ids);
  const engine::KvPruning pruning{compiled.prune_keep_percent, compiled.kv_block_tokens};
  const std::uint32_t n_pruned = pruning.n_pruned(n_prompt);
  const auto n_ids = static_cast<std::uint32_t>(ids.size());
  std::uint32_t n_steps = 0;
  std::uint32_t n = 0;
  for (std::uint32_t first = 0; first < n_ids; first += n) {
    const std::uint32_t end = first < n_prompt ? n_prompt : n_ids;
    n = std::min(compiled.limits.n_rows_max, end - first);
    luna_seq_prune prune{};
    if (first >= n_prompt) {
      prune.n_pruned = n_pruned;
    } else if (n_pruned != 0) {
      const std::uint32_t observed = n_prompt - LUNA_PRUNE_RECENT;
      if (first + n > observed) prune.n_observed = std::min(n, first + n - observed);
      if (first + n == n_prompt) prune.n_keep = n_prompt - n_pruned;
    }
    loop.set_prune(prune);
    LUNA_TRY(loop.run(first, n));
    const std::size_t bytes = std::size_t{n} * compiled.config.vocab_size * sizeof(float);
    out.write(reinterpret_cast<const char*>(compiled.outputs.front().logits),
              static_cast<std::streamsize>(bytes));
    ++n_steps;
  }
  out.close();
  if (!out) return Error{Code::io, path + ": could not be written"};
  std::cerr << n_ids << " tokens in " << n_steps << " steps, "
            << static_cast<double>(loop.busy_ns()) / 1e6 / n_steps << " ms a step\n";
  return {};
}

Result<void> run(std::span<char*> arguments) {
  LUNA_TRY(const ProgramOptions options,
           ProgramOptions::read(arguments,
                                {{"--model", ""},
                                 {"--backend", ""},
                                 {"--tokens", ""},
                                 {"--out", ""},
                                 {"--numerics", ""},
                                 {"--threads", "1"},
                                 {"--rows-per-step", "64"},
                                 {"--kv", "bf16"},
                                 {"--prompt", "1"},
                                 {"--keep-percent", "100"},
                                 {"--plugins", ""}},
                                {"--model", "--backend", "--tokens", "--out"}));
  LUNA_TRY(const std::vector<std::uint32_t> ids, read_ids(options.text("--tokens")));
  DirectModel::Options direct;
  direct.plugin_folder = LUNA_PLUGIN_DIR;
  direct.more_plugins = options.text("--plugins");
  direct.backend = options.text("--backend");
  LUNA_TRY(direct.n_threads, options.number("--threads"));
  model::ModelOptions& model = direct.model;
  model.name = "logits";
  model.path = options.text("--model");
  const std::string& numerics = options.text("--numerics");
  LUNA_TRY(model.numerics,
           numerics_of(!numerics.empty()               ? numerics
                       : direct.backend == "reference" ? "f32"
                                                       : "i12"));
  LUNA_TRY(model.kv_dtype, kv_dtype_of(options.text("--kv")));
  LUNA_TRY(model.prune_keep_percent, options.number("--keep-percent"));
  LUNA_TRY(const std::uint32_t prompt, options.number("--prompt"));
  if (prompt > ids.size()) return Error{Code::invalid_argument, "--prompt is beyond the tokens"};
  LUNA_TRY(model.limits.n_rows_max, options.number("--rows-per-step"));
  model.limits.n_seqs_max = 1;
  model.limits.n_out_rows_max = model.limits.n_rows_max;
  model.limits.n_positions_max = static_cast<std::uint32_t>(ids.size());
  model.kv_blocks_max = std::max(2U, (model.limits.n_positions_max + 31) / 32);  // two at least
  model.n_candidates = 1;
  LUNA_TRY(const auto loaded, DirectModel::load(direct));
  return write_logits(loaded->compiled(), ids, prompt, options.text("--out"));
}

}  // namespace
}  // namespace luna

int main(int argc, char** argv) {
  if (const luna::Result<void> done = luna::run({argv, static_cast<std::size_t>(argc)}); !done) {
    std::cerr << "luna_logits: " << done.error().message() << "\n";
    return 1;
  }
  return 0;
}
