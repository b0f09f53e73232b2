#include "core/check/open_device.hpp"

#include <luna/backend_blocks.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

namespace luna::check {
namespace {

// Behind an output buffer's end as the program needs it: nobody writes there.
constexpr std::uint64_t kBehindBytes = 256;
constexpr unsigned char kUntouched = 0x5A;

std::string text_of_number(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", x);
  return text;
}

}  // namespace

RunningProgram::RunningProgram(OpenDevice& device,
                               const DrawnProgram& drawn,
                               std::uint32_t n_kv_blocks)
    : device_(device), drawn_(drawn), program_(drawn.program.abi()), n_kv_blocks_(n_kv_blocks) {
  for (std::uint32_t i = 0; i < program_.n_views; ++i) {
    const luna_view& view = program_.views[i];
    if (program_.slots[view.slot].kind == LUNA_SLOT_LOGITS) vocab_ = view.dims[1];
    if (program_.slots[view.slot].kind == LUNA_SLOT_CANDIDATES) candidate_words_ = view.dims[1];
  }
  if (drawn.has_comm) peer_ = std::make_unique<ScriptedPeer>(drawn.comm_rank);
}

std::unique_ptr<RunningProgram> RunningProgram::make(OpenDevice& device,
                                                     const DrawnProgram& drawn,
                                                     std::uint32_t n_kv_blocks,
                                                     std::optional<Error>* refusal) {
  std::unique_ptr<RunningProgram> made(new RunningProgram(device, drawn, n_kv_blocks));
  if (Result<void> loaded = made->load(); !loaded) {
    *refusal = loaded.error();
    return nullptr;
  }
  return made;
}

RunningProgram::~RunningProgram() {
  const luna_backend_if& table = device_.table();
  device_.run().phase("release");
  if (executable_ != nullptr) table.release(executable_);
  free_buffers();
  for (const std::uint64_t weight : weights_)
    table.weight_free(device_.device(), weight);
}

Result<void> RunningProgram::load() {
  for (const DrawnWeight& weight : drawn_.weights) {
    LUNA_TRY(const std::uint64_t handle, device_.load(weight, program_.numerics));
    weights_.push_back(handle);
  }
  luna_err err = make_err();
  device_.run().phase("compile");
  LUNA_TRY(to_result(device_.table().compile(device_.device(),
                                             &program_,
                                             weights_.data(),
                                             static_cast<std::uint32_t>(weights_.size()),
                                             &executable_,
                                             &err),
                     err,
                     "compile"));
  return bind_all();
}

Result<void> RunningProgram::bind_all() {
  luna_err err = make_err();
  if (drawn_.program.bound_slot(LUNA_SLOT_KV)) {
    std::uint64_t block_bytes = 0;
    LUNA_TRY(to_result(
        device_.table().kv_block_bytes(device_.device(), &program_.kv, &block_bytes, &err),
        err,
        "kv_block_bytes"));
    LUNA_TRY(bind(LUNA_SLOT_KV, LUNA_BUFFER_KV, n_kv_blocks_ * block_bytes, nullptr));
  }
  LUNA_TRY(
      bind(LUNA_SLOT_LOGITS, LUNA_BUFFER_OUT, out_bytes(program_, LUNA_SLOT_LOGITS), &logits_));
  LUNA_TRY(bind(LUNA_SLOT_CANDIDATES,
                LUNA_BUFFER_OUT,
                out_bytes(program_, LUNA_SLOT_CANDIDATES),
                &candidates_));
  if (const auto slot = drawn_.program.bound_slot(LUNA_SLOT_COMM))
    binds_.push_back({*slot, 0, 0, peer_->comm()});
  return {};
}

Result<void> RunningProgram::bind(std::uint32_t kind,
                                  std::uint32_t buffer_kind,
                                  std::uint64_t bytes,
                                  void** host) {
  const auto slot = drawn_.program.bound_slot(kind);
  if (!slot) return {};
  luna_bind bind{*slot, 0, 0, nullptr};
  luna_err err = make_err();
  void* memory = nullptr;
  const bool is_out = buffer_kind == LUNA_BUFFER_OUT;
  LUNA_TRY(to_result(device_.table().alloc(device_.device(),
                                           buffer_kind,
                                           bytes + (is_out ? kBehindBytes : 0),
                                           &bind.buffer,
                                           &memory,
                                           &err),
                     err,
                     "alloc"));
  binds_.push_back(bind);
  if (!is_out) return {};
  *host = memory;
  std::memset(memory, kUntouched, bytes + kBehindBytes);
  return {};
}

void RunningProgram::free_buffers() {
  for (const luna_bind& bind : binds_)
    if (bind.buffer != 0) device_.table().free_buffer(device_.device(), bind.buffer);
  binds_.clear();
}

bool RunningProgram::rebind() {
  const std::vector<luna_bind> before = std::exchange(binds_, {});
  const Result<void> bound = bind_all();
  // The old ones lie somewhere until the new ones are there, so that these lie elsewhere.
  for (const luna_bind& bind : before)
    if (bind.buffer != 0) device_.table().free_buffer(device_.device(), bind.buffer);
  if (!bound)
    device_.run().fail("D5", "buffers that there was room for: " + bound.error().message());
  return bound.has_value();
}

std::uint64_t RunningProgram::kv_buffer() const {
  const auto slot = drawn_.program.bound_slot(LUNA_SLOT_KV);
  for (const luna_bind& bind : binds_)
    if (slot && bind.slot == *slot) return bind.buffer;
  return 0;
}

void RunningProgram::on_done(void* context, const luna_step_result* result) {
  auto& me = *static_cast<RunningProgram*>(context);
  me.status_ = result->status;
  me.message_ = result->message != nullptr ? result->message : "";
  me.n_done_.fetch_add(1);
  me.n_done_.notify_all();
}

bool RunningProgram::submit(const DrawnStep& drawn) {
  luna_step step = drawn.abi();
  step.binds = binds_.data();
  step.n_binds = static_cast<std::uint32_t>(binds_.size());
  step.done = on_done;
  step.done_context = this;
  luna_err err = make_err();
  luna_status status = LUNA_OK;
  device_.run().phase("submit");
  if (!call_fenced(device_.run(), "submit", [&] {
        status = device_.table().submit(executable_, &step, &err);
      }))
    return false;
  if (status >= 0) return true;
  device_.run().fail("D6", drawn_.text + ": a step is refused: " + std::string(text_of(err)));
  return false;
}

// A step that never ends is found by the time limit of the case.
bool RunningProgram::wait(std::uint32_t n) {
  device_.run().phase("wait for the end of a step");
  for (std::uint32_t seen = n_done_.load(); seen < n; seen = n_done_.load())
    n_done_.wait(seen);
  if (status_ != LUNA_OK)
    device_.run().fail(
        "D6",
        drawn_.text + ": a step ends with status " + std::to_string(status_) + ": " + message_);
  return status_ == LUNA_OK && has_kept_its_room();
}

bool RunningProgram::run(const DrawnStep& step, StepOutput* output) {
  n_done_.store(0);
  if (!submit(step) || !wait(1)) return false;
  *output = output_of(step);
  if (n_done_.load() == 1) return true;
  device_.run().fail("D6", drawn_.text + ": `done` comes more than once");
  return false;
}

bool RunningProgram::run_queued(const DrawnStep& step, std::uint32_t n, StepOutput* last) {
  n_done_.store(0);
  for (std::uint32_t i = 0; i < n; ++i)
    if (!submit(step)) return false;
  if (!wait(n)) return false;
  *last = output_of(step);
  return true;
}

luna_status RunningProgram::submit_wrong(luna_step step, luna_err* err) {
  n_done_.store(0);
  step.done = on_done;
  step.done_context = this;
  luna_status status = LUNA_INTERNAL;
  device_.run().phase("submit of a step that cannot be");
  call_fenced(
      device_.run(), "submit", [&] { status = device_.table().submit(executable_, &step, err); });
  return status;
}

StepOutput RunningProgram::output_of(const DrawnStep& step) {
  StepOutput output;
  output.status = status_;
  const auto* const logits = static_cast<const float*>(logits_);
  const auto* const candidates = static_cast<const std::uint32_t*>(candidates_);
  if (logits != nullptr) output.logits.assign(logits, logits + step.out_rows.size() * vocab_);
  if (candidates != nullptr)
    output.candidates.assign(candidates, candidates + step.out_rows.size() * candidate_words_);
  if (peer_ != nullptr) output.sent = peer_->take_sent();
  return output;
}

bool RunningProgram::has_kept_its_room() {
  const auto is_kept = [&](const void* host, std::uint32_t kind) {
    if (host == nullptr) return true;
    const auto* const behind = static_cast<const unsigned char*>(host) + out_bytes(program_, kind);
    return std::all_of(
        behind, behind + kBehindBytes, [](unsigned char byte) { return byte == kUntouched; });
  };
  if (is_kept(logits_, LUNA_SLOT_LOGITS) && is_kept(candidates_, LUNA_SLOT_CANDIDATES)) return true;
  device_.run().fail("O3", drawn_.text + ": a step writes behind its output buffer");
  return false;
}

namespace {

/// One row of what a step gave, and all that is known of it.
class RowComparison {
 public:
  RowComparison(CaseRun& run, std::string_view rule, std::string what)
      : run_(run), rule_(rule), what_(std::move(what)) {}

  /// What the oracle's double precision may add to an error that is met exactly.
  static constexpr double kOwnRounding = 1.0 + 1e-9;

  /// The largest share of a bound that a number used; beyond 1 the run was told.
  double compare(std::span<const float> got, std::span<const Bounded> expected) {
    double used = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(double{got[i]} - expected[i].value);
      if (!(off <= expected[i].error * kOwnRounding)) {
        run_.fail(rule_,
                  what_ + ", column " + std::to_string(i) + " is " + text_of_number(got[i]) +
                      ", must be " + text_of_number(expected[i].value) + " within " +
                      text_of_number(expected[i].error));
        return 2.0;
      }
      if (expected[i].error > 0.0) used = std::max(used, off / expected[i].error);
    }
    return used;
  }

  /// The k largest of the row that the device itself wrote, ties to the lowest id, and their sum.
  void compare_candidates(std::span<const float> logits, std::span<const std::uint32_t> got) {
    const std::size_t k = got.size() / 2 - 1;
    std::vector<std::uint32_t> ids(logits.size());
    for (std::uint32_t i = 0; i < ids.size(); ++i)
      ids[i] = i;
    std::stable_sort(ids.begin(), ids.end(), [&](std::uint32_t a, std::uint32_t b) {
      return logits[a] > logits[b];
    });
    for (std::size_t i = 0; i < k; ++i)
      if (got[2 * i + 1] != ids[i] || got[2 * i] != std::bit_cast<std::uint32_t>(logits[ids[i]]))
        return run_.fail(rule_,
                         what_ + ", candidate " + std::to_string(i) + " is token " +
                             std::to_string(got[2 * i + 1]) + ", must be " +
                             std::to_string(ids[i]));
    const double max = logits[ids[0]];
    double sum = 0.0;
    for (const float logit : logits)
      sum += std::exp(logit - max);
    const double expected = max + std::log(sum);
    const double error = sum_unit(static_cast<double>(logits.size()) + 64.0) +
                         kF32Unit * (8.0 * std::abs(max) + 4.0 * std::abs(expected) + 32.0);
    const auto lse = std::bit_cast<float>(got[2 * k]);
    if (!(std::abs(lse - expected) <= error) || got[2 * k + 1] != 0)
      run_.fail(rule_,
                what_ + ", log-sum-exp is " + text_of_number(lse) + ", must be " +
                    text_of_number(expected) + " within " + text_of_number(error));
  }

 private:
  CaseRun& run_;
  std::string_view rule_;
  std::string what_;
};

}  // namespace

double compare_step(CaseRun& run,
                    std::string_view rule,
                    const std::string& what,
                    const DrawnStep& step,
                    const StepOutput& output,
                    const OpOracle& oracle) {
  const NumberTable& expected = oracle.logits();
  const std::size_t n = step.out_rows.size();
  const std::size_t vocab = expected.width;
  const std::size_t words = output.candidates.size() / std::max<std::size_t>(n, 1);
  double used = 0.0;
  for (std::size_t i = 0; i < n && !run.has_failed(); ++i) {
    RowComparison row(
        run, rule, what + ": row of position " + std::to_string(step.positions[step.out_rows[i]]));
    const bool has_logits = (step.out_flags[i] & LUNA_OUT_LOGITS) != 0;
    const std::span<const float> logits(output.logits.data() + i * vocab, vocab);
    if (has_logits)
      used = std::max(used,
                      row.compare(logits, std::span(expected.numbers).subspan(i * vocab, vocab)));
    if (has_logits && (step.out_flags[i] & LUNA_OUT_CANDIDATES) != 0 && !run.has_failed())
      row.compare_candidates(logits, std::span(output.candidates).subspan(i * words, words));
  }
  for (const auto& [tag, messages] : oracle.sent()) {
    const auto found = output.sent.find(tag);
    if (found == output.sent.end() || found->second.size() != messages.size()) {
      run.fail(rule,
               what + ": the other rank does not get what is sent with tag " + std::to_string(tag));
      return 2.0;
    }
    for (std::size_t m = 0; m < messages.size() && !run.has_failed(); ++m) {
      if (found->second[m].size() != messages[m].size()) {
        run.fail(rule, what + ": a message has another size");
        return 2.0;
      }
      RowComparison row(run, rule, what + ": a message with tag " + std::to_string(tag));
      used = std::max(used, row.compare(found->second[m], messages[m]));
    }
  }
  return used;
}

}  // namespace luna::check
