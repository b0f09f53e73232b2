// Group E of backends: what a device computes, op by op, form by form, program by program.
#include "core/base/assert.hpp"
#include "core/check/cases.hpp"
#include "core/check/device_offers.hpp"
#include "core/check/open_device.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace luna::check {
namespace {

constexpr std::uint32_t kDraws = 4;      // of a row or form
constexpr std::uint32_t kKvDraws = 1;    // of a row with KV, which comes with every type of KV
constexpr std::uint32_t kPrograms = 12;  // random ones of a class
constexpr std::uint32_t kRedraws = 40;   // of what hangs on the last bit

/// Draws differ from offer to offer.
std::uint64_t kind_of(const DeviceOffer& offer) {
  return (std::uint64_t{offer.numerics} * 16 + offer.kv_dtype) * 10'000;
}

/// What is drawn of a class is shared out among its types of KV.
std::uint32_t share_of(std::uint32_t n, const OpenDevice& device) {
  return std::max(n / n_kv_types(device), 1U);
}

/// One device and what it has been asked so far.
class OpBench {
 public:
  OpBench(CaseRun& run, OpenDevice& device) : run_(run), device_(device) {}

  enum class Answer : std::uint8_t { computed, not_offered, undecided, wrong };

  /// Runs a conversation of the program and holds every row against the oracle.
  Answer try_program(const DrawnProgram& drawn, std::uint64_t seed) {
    const luna_program program = drawn.program.abi();
    std::mt19937_64 random(seed);
    const Conversation conversation = draw_conversation(drawn, random);
    const std::vector<DrawnStep> steps = draw_batches(drawn, conversation, random);
    const bool is_offered = is_supported(device_, program);
    std::optional<Error> refusal;
    const auto running = RunningProgram::make(device_, drawn, conversation.n_kv_blocks, &refusal);
    if (run_.has_failed()) return Answer::wrong;
    if (running == nullptr) return refused(drawn, *refusal, is_offered);
    if (!is_offered) {
      run_.fail("D2", drawn.text + ": supports() says no, and compile() takes it");
      return Answer::wrong;
    }
    OpOracle oracle(program, drawn.weights, conversation.n_kv_blocks);
    double used = 0.0;
    for (const DrawnStep& step : steps) {
      oracle.run(step.abi());
      if (oracle.is_undecided()) return Answer::undecided;
      StepOutput output;
      if (!running->run(step, &output)) return Answer::wrong;
      used = std::max(used, compare_step(run_, "D3", drawn.text, step, output, oracle));
      if (run_.has_failed()) return Answer::wrong;
    }
    double& largest = used_[program.numerics];
    largest = std::max(largest, used);
    return Answer::computed;
  }

  /// The largest share of a bound that any number used, by class.
  void tell_bounds_used() {
    for (const auto& [numerics, used] : used_)
      run_.figure("bound_used_" + class_name(numerics), std::to_string(used));
  }

 private:
  Answer refused(const DrawnProgram& drawn, const Error& refusal, bool is_offered) {
    if (!is_offered || refusal.code() == Code::unsupported) {
      if (refusal.message().empty()) run_.fail("E2", drawn.text + " is refused without a reason");
      // A weight may be of a form that the device does not take; a program may not.
      if (!is_offered || !refusal.message().starts_with("compile")) return Answer::not_offered;
    }
    run_.fail("D2", drawn.text + ": supports() says yes, and it is refused: " + refusal.message());
    return Answer::wrong;
  }

  CaseRun& run_;
  OpenDevice& device_;
  std::map<std::uint32_t, double> used_;
};

DrawnProgram drawn_of(Result<DrawnProgram> drawn) {
  LUNA_VERIFY(drawn.has_value());  // rows make programs that hold
  return *std::move(drawn);
}

void check_ops(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kOpBudgetBytes});
  if (device == nullptr) return;
  OpBench bench(run, *device);
  std::set<std::uint32_t> computed;
  std::set<std::uint32_t> all;
  for (const DeviceOffer& offer : offers_of(*device, run.input().seed))
    for (std::uint64_t r = 0; r < op_rows().size(); ++r) {
      const OpRow& row = op_rows()[r];
      all.insert(row.op);
      if (!row.uses_kv && !is_first_kv(*device, offer)) continue;
      const std::uint32_t n_draws = row.uses_kv ? kKvDraws : kDraws;
      std::uint32_t n_computed = 0;
      for (std::uint64_t n = 0; n < kRedraws && n_computed < n_draws; ++n) {
        const std::uint64_t seed = mixed_seed(run.input().seed, kind_of(offer) + r, n);
        const auto answer =
            bench.try_program(drawn_of(ProgramDraft::of_row(row, seed, offer)), seed);
        if (answer == OpBench::Answer::wrong) return;
        if (answer == OpBench::Answer::not_offered) break;
        if (answer == OpBench::Answer::computed) ++n_computed;
      }
      if (n_computed > 0) computed.insert(row.op);
    }
  run.figure("ops_computed", std::to_string(computed.size()) + " of " + std::to_string(all.size()));
  bench.tell_bounds_used();
}

void check_weight_forms(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kOpBudgetBytes});
  if (device == nullptr) return;
  OpBench bench(run, *device);
  for (const DeviceOffer& offer : offers_of(*device, run.input().seed)) {
    if (!is_first_kv(*device, offer)) continue;
    std::uint32_t n_computed = 0;
    for (std::uint64_t f = 0; f < offer.forms.size(); ++f) {
      bool is_computed = false;
      for (std::uint64_t n = 0; n < kDraws; ++n) {
        const std::uint64_t seed = mixed_seed(run.input().seed, kind_of(offer) + 1000 + f, n);
        const auto answer =
            bench.try_program(drawn_of(ProgramDraft::of_form(offer.forms[f], seed, offer)), seed);
        if (answer == OpBench::Answer::wrong) return;
        is_computed |= answer == OpBench::Answer::computed;
      }
      if (is_computed) ++n_computed;
    }
    run.figure("weight_forms_" + class_name(offer.numerics),
               std::to_string(n_computed) + " of " + std::to_string(weight_forms().size()));
  }
  bench.tell_bounds_used();
}

void check_programs(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kOpBudgetBytes});
  if (device == nullptr) return;
  OpBench bench(run, *device);
  std::uint32_t n_run = 0;
  for (const DeviceOffer& offer : offers_of(*device, run.input().seed)) {
    const std::vector<const OpRow*> rows = rows_offered(*device, offer, [](const OpRow& row) {
      return row.op != LUNA_OP_KV_PRUNE;  // it may hang on the last bit of what came before
    });
    if (rows.empty()) continue;
    for (std::uint64_t n = 0; n < share_of(kPrograms, *device); ++n) {
      const std::uint64_t seed = mixed_seed(run.input().seed, kind_of(offer) + 2000, n);
      const auto answer =
          bench.try_program(drawn_of(ProgramDraft::of_rows(rows, seed, offer)), seed);
      if (answer == OpBench::Answer::wrong) return;
      if (answer == OpBench::Answer::computed) ++n_run;
    }
  }
  run.figure("programs_run", std::to_string(n_run));
  bench.tell_bounds_used();
}

/// Rows of logits by sequence and position, as bits.
class RowBits {
 public:
  void add(const DrawnStep& step, const StepOutput& output, std::uint32_t vocab) {
    for (std::size_t i = 0; i < step.out_rows.size(); ++i) {
      if ((step.out_flags[i] & LUNA_OUT_LOGITS) == 0) continue;
      const std::uint32_t row = step.out_rows[i];
      std::vector<std::uint32_t> bits;
      for (std::uint32_t d = 0; d < vocab; ++d)
        bits.push_back(std::bit_cast<std::uint32_t>(output.logits[i * vocab + d]));
      rows_[{step.seq_of_row[row], step.positions[row]}] = std::move(bits);
    }
  }
  /// The first row that both have and that differs, as text; empty: none.
  [[nodiscard]] std::string difference(const RowBits& other) const {
    for (const auto& [place, bits] : rows_) {
      const auto found = other.rows_.find(place);
      if (found == other.rows_.end() || found->second == bits) continue;
      return "sequence " + std::to_string(place.first) + ", position " +
             std::to_string(place.second);
    }
    return {};
  }
  [[nodiscard]] std::size_t size() const { return rows_.size(); }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> rows_;
};

/// Runs steps one by one and keeps their rows. False: the run was told what is wrong.
bool run_steps(RunningProgram& running, std::span<const DrawnStep> steps, RowBits* rows) {
  for (const DrawnStep& step : steps) {
    StepOutput output;
    if (!running.run(step, &output)) return false;
    rows->add(step, output, running.vocab());
  }
  return true;
}

/// In batches and once more over other buffers, then each sequence alone on another device.
/// False: the run was told what is wrong.
bool has_same_bits(CaseRun& run,
                   OpenDevice& device,
                   OpenDevice& other,
                   const DrawnProgram& drawn,
                   std::uint64_t seed,
                   std::size_t* n_rows) {
  std::mt19937_64 random(seed);
  const Conversation conversation = draw_conversation(drawn, random);
  const std::vector<DrawnStep> batches = draw_batches(drawn, conversation, random);
  std::optional<Error> refusal;
  const auto running = RunningProgram::make(device, drawn, conversation.n_kv_blocks, &refusal);
  if (running == nullptr) return !run.has_failed();
  RowBits in_batches;
  if (!run_steps(*running, batches, &in_batches)) return false;
  RowBits again;
  if (!running->rebind() || !run_steps(*running, batches, &again)) return false;
  if (const std::string where = in_batches.difference(again); !where.empty())
    run.fail("D4", drawn.text + ": " + where + " has other bits over other buffers");
  for (std::uint32_t s = 0; s < conversation.sequences.size() && !run.has_failed(); ++s) {
    const auto alone = RunningProgram::make(other, drawn, conversation.n_kv_blocks, &refusal);
    if (alone == nullptr) return !run.has_failed();
    RowBits by_itself;
    if (!run_steps(*alone, steps_alone(drawn, conversation, s), &by_itself)) return false;
    if (const std::string where = in_batches.difference(by_itself); !where.empty())
      run.fail("D4",
               drawn.text + ": " + where +
                   " has other bits alone, in other chunks, by two threads and a fresh program");
  }
  *n_rows += in_batches.size();
  return !run.has_failed();
}

void check_same_bits(CaseRun& run) {
  constexpr std::uint32_t kDrawn = 6;  // of a class
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kOpBudgetBytes});
  if (device == nullptr) return;
  const auto other =
      OpenDevice::open(run, *subject, {.memory_bytes = kOpBudgetBytes, .n_threads = 2});
  if (other == nullptr) return;
  std::size_t n_rows = 0;
  for (const DeviceOffer& offer : offers_of(*device, run.input().seed)) {
    const std::vector<const OpRow*> rows = rows_offered(*device, offer, [](const OpRow& row) {
      return row.op != LUNA_OP_KV_PRUNE && !row.uses_comm;
    });
    if (rows.empty()) continue;
    for (std::uint64_t n = 0; n < share_of(kDrawn, *device); ++n) {
      const std::uint64_t seed = mixed_seed(run.input().seed, kind_of(offer) + 3000, n);
      if (!has_same_bits(run,
                         *device,
                         *other,
                         drawn_of(ProgramDraft::of_rows(rows, seed, offer)),
                         seed,
                         &n_rows))
        return;
    }
  }
  run.figure("rows_compared", std::to_string(n_rows));
}

constexpr const char* kKind = LUNA_KIND_BACKEND;
constexpr auto kCases = std::to_array<Case>({
    {"E.backend.ops", kKind, "U3", check_ops},
    {"E.backend.weight_forms", kKind, "U3", check_weight_forms},
    {"E.backend.programs", kKind, "U3", check_programs},
    {"E.backend.same_bits", kKind, "U3", check_same_bits},
});

}  // namespace

std::span<const Case> op_cases() {
  return kCases;
}

}  // namespace luna::check
