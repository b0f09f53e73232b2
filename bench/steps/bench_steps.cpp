// Whole steps of a model on one device, without server, engine or sampler: what the kernels and the
// backend's schedule give.
//   bench_steps --model FILE [--backend cpu] [--numerics i12] [--kv bf16] [--threads 2]
//               [--context 128] [--ms 500] [--plugins DIR] [--only "decode 8"]
//               [--json FILE]
// Prompts of 128, 512 and 2048 tokens in one step each, then one decoded token a sequence for 1, 8,
// 32 and 64 sequences that hold `context` tokens. Medians.
#include "core/base/clock.hpp"
#include "core/model/model_loader.hpp"
#include "core/plugin/catalog.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>

namespace luna {
namespace {

constexpr std::uint32_t kBlockTokens = 32;
constexpr std::uint32_t kPrompts[] = {128, 512, 2048};
constexpr std::uint32_t kBatches[] = {1, 8, 32, 64};

using Options = std::map<std::string, std::string, std::less<>>;

Result<Options> read_options(int argc, char** argv) {
  Options options = {{"--model", ""},
                     {"--backend", "cpu"},
                     {"--numerics", "i12"},
                     {"--kv", "bf16"},
                     {"--threads", "2"},
                     {"--context", "128"},
                     {"--ms", "500"},
                     {"--plugins", LUNA_PLUGIN_DIR},
                     {"--only", ""},
                     {"--json", ""}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = options.find(std::string_view(argv[i]));
    if (found == options.end() || i + 1 == argc)
      return Error{Code::invalid_argument, std::string(argv[i]) + " is not known or has no value"};
    found->second = argv[i + 1];
  }
  if (options["--model"].empty()) return Error{Code::invalid_argument, "--model is required"};
  return options;
}
Result<std::uint32_t> number(const Options& options, std::string_view name) {
  const std::string& text = options.find(name)->second;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > 1000000)
    return Error{Code::invalid_argument, std::string(name) + " = " + text + ": must be above 0"};
  return value;
}

/// Steps of n_seqs sequences of n_new tokens each, after `first` tokens; waits for each.
class StepTimer {
 public:
  /// KV blocks of a sequence.
  static std::uint32_t blocks_of(std::uint32_t n_tokens) {
    return (n_tokens + kBlockTokens - 1) / kBlockTokens;
  }
  StepTimer(const model::CompiledModel& compiled, std::uint32_t blocks_per_seq)
      : compiled_(compiled), blocks_per_seq_(blocks_per_seq) {}

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
        tables[std::size_t{s} * blocks_per_seq_ + i] = s * n_blocks + i;
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
    step.binds = shard.binds.data();
    step.n_binds = static_cast<std::uint32_t>(shard.binds.size());
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
  std::atomic<bool> is_done_{false};
  luna_status status_ = LUNA_OK;
};

struct Row {
  std::string name;
  double ms = 0;
  double tokens_per_s = 0;
};

Result<std::vector<Row>> measure(const model::CompiledModel& compiled, const Options& options) {
  LUNA_TRY(const std::uint32_t ms_min, number(options, "--ms"));
  LUNA_TRY(const std::uint32_t context, number(options, "--context"));
  StepTimer timer(compiled, StepTimer::blocks_of(compiled.limits.n_positions_max));
  const std::string& only = options.find("--only")->second;
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
  for (const std::uint32_t n : kBatches)
    LUNA_TRY(add("decode " + std::to_string(n), n, 1));
  return rows;
}

Result<void> run(int argc, char** argv) {
  LUNA_TRY(const Options options, read_options(argc, argv));
  RealClock clock;
  plugin::HostServices services({.clock = &clock, .seed = 0, .parallel_for = {}});
  const auto catalog = plugin::Catalog::scan({{options.find("--plugins")->second}, &services});
  LUNA_TRY(const auto backend,
           catalog->create<luna_backend_if>(options.find("--backend")->second, {}));
  std::vector<plugin::Instance<luna_quant_if>> quants;
  LUNA_TRY(auto gguf, catalog->create<luna_quant_if>("gguf", {}));
  quants.push_back(std::move(gguf));

  model::ModelOptions model;
  model.name = "bench";
  model.path = options.find("--model")->second;
  const std::string& numerics = options.find("--numerics")->second;
  for (std::uint32_t n = LUNA_NUMERICS_F32; n <= LUNA_NUMERICS_BF16; ++n)
    if (model::numerics_name(n) == numerics) model.numerics = n;
  if (model::numerics_name(model.numerics) != numerics)
    return Error{Code::invalid_argument, "--numerics " + numerics + ": must be i12, i8 or bf16"};
  if (options.find("--kv")->second == "int8") model.kv_dtype = LUNA_DTYPE_I8;
  LUNA_TRY(const std::uint32_t context, number(options, "--context"));
  model.limits.n_rows_max = 2048;
  model.limits.n_seqs_max = 64;
  model.limits.n_out_rows_max = 64;
  model.limits.n_positions_max = std::max(2048U, context + 1);
  model.kv_blocks_max = std::max(StepTimer::blocks_of(model.limits.n_positions_max),
                                 64 * StepTimer::blocks_of(context + 1));
  model::DeviceOptions device_options;
  device_options.name = "a0";
  device_options.memory_bytes = std::uint64_t{16} << 30;
  LUNA_TRY(device_options.n_threads, number(options, "--threads"));
  LUNA_TRY(const auto device, model::Device::open(backend, device_options));
  model::Device* const devices[] = {device.get()};
  LUNA_TRY(const auto loaded, model::Model::load(model, {quants, devices, std::nullopt}));
  LUNA_TRY(const std::vector<Row> rows, measure(loaded->compiled(), options));
  std::ofstream json;
  if (!options.find("--json")->second.empty()) json.open(options.find("--json")->second);
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
  if (const luna::Result<void> done = luna::run(argc, argv); !done) {
    std::cerr << "bench_steps: " << done.error().message() << "\n";
    return 1;
  }
  return 0;
}
