// Whole steps of a model on one device, without server, engine or sampler: what the kernels and the
// backend's schedule give.
//   bench_steps --model FILE [--backend cpu] [--numerics i12] [--kv bf16] [--threads 2]
//               [--context 128] [--shared 1] [--ms 500] [--plugins DIR]
//               [--only "decode 8"] [--batches 1,8,32,64] [--json FILE]
// Prompts of 128, 512 and 2048 tokens in one step each, then one decoded token a sequence for 1, 8,
// 32 and 64 sequences that hold `context` tokens, the whole blocks of the first `shared` of them
// the same for all. Medians.
#include "tests/support/direct_model.hpp"
#include "tests/support/program_options.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace luna {
namespace {

constexpr std::uint32_t kBlockTokens = 32;
constexpr std::uint32_t kPrompts[] = {128, 512, 2048};
constexpr std::uint32_t kBatchMax = 64;

class StepTimer {
 public:
  /// KV blocks of a sequence.
  static std::uint32_t blocks_of(std::uint32_t n_tokens) {
    return (n_tokens + kBlockTokens - 1) / kBlockTokens;
  }
  StepTimer(const model::CompiledModel& compiled,
            std::uint32_t blocks_per_seq,
            std::uint32_t n_shared_blocks)
      : compiled_(compiled), blocks_per_seq_(blocks_per_seq), n_shared_blocks_(n_shared_blocks) {}

  /// Milliseconds of one step. What the KV holds does not matter to its time.
  Result<double> run(std::uint32_t n_seqs, std::uint32_t first, std::uint32_t n_new) {
    const std::uint32_t n_rows = n_seqs * n_new;
    std::vector<std::uint32_t> tokens(n_rows);
    std::vector<std::uint32_t> positions(n_rows);
    std::vector<std::uint32_t> first_rows(n_seqs + 1);
    std::vector<std::uint32_t> out_rows(n_seqs);
    const std::vector<std::uint32_t> out_flags(n_seqs, LUNA_OUT_CANDIDATES);
    std::vector<std::uint32_t> tables(std::size_t{n_seqs} * blocks_per_seq_);
    const std::uint32_t n_blocks = blocks_of(first + n_new);
    for (std::uint32_t s = 0; s < n_seqs; ++s)
      for (std::uint32_t i = 0; i < n_blocks; ++i)
        tables[std::size_t{s} * blocks_per_seq_ + i] =
            (i < n_shared_blocks_ ? 0 : s * n_blocks) + i;
    for (std::uint32_t s = 0; s <= n_seqs; ++s)
      first_rows[s] = s * n_new;
    for (std::uint32_t s = 0; s < n_seqs; ++s)
      out_rows[s] = (s + 1) * n_new - 1;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      tokens[row] = (row * 7919 + 13) % compiled_.config.vocab_size;
      positions[row] = first + row % n_new;
    }
    const model::Shard& shard = compiled_.shards.front();
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = n_rows;
    step.n_seqs = n_seqs;
    step.n_out_rows = n_seqs;
    step.token_ids = tokens.data();
    step.positions = positions.data();
    step.seq_first_row = first_rows.data();
    step.block_tables = tables.data();
    step.block_table_stride = blocks_per_seq_;
    step.out_rows = out_rows.data();
    step.out_flags = out_flags.data();
    step.binds = shard.binds.front().data();
    step.n_binds = static_cast<std::uint32_t>(shard.binds.front().size());
    step.done_context = this;
    step.done = [](void* context, const luna_step_result* result) {
      auto* timer = static_cast<StepTimer*>(context);
      timer->status_ = result->status;
      timer->is_done_.store(true);
      timer->is_done_.notify_all();
    };
    is_done_.store(false);
    luna_err err = make_err();
    const auto start = std::chrono::steady_clock::now();
    LUNA_TRY(to_result(shard.backend->submit(shard.executable, &step, &err), err, "submit"));
    is_done_.wait(false);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (status_ != LUNA_OK) return Error{static_cast<Code>(status_), "the step failed"};
    return took.count();
  }

  /// The median of steps for ms_min milliseconds, at least 5, after as long a warm-up.
  Result<double> median(std::uint32_t n_seqs,
                        std::uint32_t first,
                        std::uint32_t n_new,
                        std::uint32_t ms_min) {
    std::vector<double> times;
    double total = 0;
    while (total < ms_min) {  // the KV's pages are still being touched at first
      LUNA_TRY(const double ms, run(n_seqs, first, n_new));
      total += ms;
    }
    total = 0;
    while (times.size() < 5 || total < ms_min) {
      LUNA_TRY(const double ms, run(n_seqs, first, n_new));
      times.push_back(ms);
      total += ms;
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }

 private:
  const model::CompiledModel& compiled_;
  const std::uint32_t blocks_per_seq_;
  const std::uint32_t n_shared_blocks_;  // of every sequence's first
  std::atomic<bool> is_done_{false};
  luna_status status_ = LUNA_OK;
};

struct Row {
  std::string name;
  double ms = 0;
  double tokens_per_s = 0;
};

Result<std::vector<std::uint32_t>> read_batches(const std::string& list) {
  std::vector<std::uint32_t> batches;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ',');) {
    std::uint32_t n = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), n);
    if (error != std::errc() || end != part.data() + part.size() || n == 0 || n > kBatchMax)
      return Error{Code::invalid_argument,
                   "--batches " + part + ": must be numbers of 1 to " + std::to_string(kBatchMax)};
    batches.push_back(n);
  }
  return batches;
}

Result<std::vector<Row>> measure(const model::CompiledModel& compiled,
                                 const ProgramOptions& options) {
  LUNA_TRY(const std::uint32_t ms_min, options.number("--ms"));
  LUNA_TRY(const std::uint32_t context, options.number("--context"));
  LUNA_TRY(const std::uint32_t shared, options.number("--shared"));
  StepTimer timer(
      compiled, StepTimer::blocks_of(compiled.limits.n_positions_max), shared / kBlockTokens);
  const std::string& only = options.text("--only");
  LUNA_TRY(const std::vector<std::uint32_t> batches, read_batches(options.text("--batches")));
  std::vector<Row> rows;
  const auto add =
      [&](const std::string& name, std::uint32_t n_seqs, std::uint32_t n_new) -> Result<void> {
    if (!only.empty() && name != only) return {};
    LUNA_TRY(const double ms, timer.median(n_seqs, n_new == 1 ? context : 0, n_new, ms_min));
    rows.push_back({name, ms, 1e3 * n_seqs * n_new / ms});
    return {};
  };
  for (const std::uint32_t n : kPrompts)
    LUNA_TRY(add("prefill " + std::to_string(n), 1, n));
  for (const std::uint32_t n : batches)
    LUNA_TRY(add("decode " + std::to_string(n), n, 1));
  return rows;
}

Result<void> run(std::span<char*> arguments) {
  LUNA_TRY(const ProgramOptions options,
           ProgramOptions::read(arguments,
                                {{"--model", ""},
                                 {"--backend", "cpu"},
                                 {"--numerics", "i12"},
                                 {"--kv", "bf16"},
                                 {"--threads", "2"},
                                 {"--context", "128"},
                                 {"--shared", "1"},
                                 {"--ms", "500"},
                                 {"--plugins", LUNA_PLUGIN_DIR},
                                 {"--only", ""},
                                 {"--batches", "1,8,32,64"},
                                 {"--json", ""}},
                                {"--model"}));
  DirectModel::Options direct;
  direct.plugin_folder = options.text("--plugins");
  direct.backend = options.text("--backend");
  LUNA_TRY(direct.n_threads, options.number("--threads"));
  model::ModelOptions& model = direct.model;
  model.name = "bench";
  model.path = options.text("--model");
  const std::string& numerics = options.text("--numerics");
  LUNA_TRY(model.numerics, numerics_of(numerics));
  LUNA_TRY(model.kv_dtype, kv_dtype_of(options.text("--kv")));
  LUNA_TRY(const std::uint32_t context, options.number("--context"));
  model.limits.n_rows_max = 2048;
  model.limits.n_seqs_max = kBatchMax;
  model.limits.n_out_rows_max = kBatchMax;
  model.limits.n_positions_max = std::max(2048U, context + 1);
  model.kv_blocks_max = std::max(StepTimer::blocks_of(model.limits.n_positions_max),
                                 kBatchMax * StepTimer::blocks_of(context + 1));
  LUNA_TRY(const auto loaded, DirectModel::load(direct));
  LUNA_TRY(const std::vector<Row> rows, measure(loaded->compiled(), options));
  std::ofstream json;
  if (!options.text("--json").empty()) json.open(options.text("--json"));
  json << "{\"numerics\": \"" << numerics << "\", \"rows\": [";
  for (const Row& row : rows) {
    std::printf("%-6s %-13s %9.3f ms %9.1f tokens/s\n",
                numerics.c_str(),
                row.name.c_str(),
                row.ms,
                row.tokens_per_s);
    json << (&row == rows.data() ? "" : ", ") << "{\"name\": \"" << row.name
         << "\", \"ms\": " << row.ms << ", \"tokens_per_s\": " << row.tokens_per_s << "}";
  }
  json << "]}\n";
  return {};
}

}  // namespace
}  // namespace luna

int main(int argc, char** argv) {
  if (const luna::Result<void> done = luna::run({argv, static_cast<std::size_t>(argc)}); !done) {
    std::cerr << "bench_steps: " << done.error().message() << "\n";
    return 1;
  }
  return 0;
}
