#include "core/app/canary.hpp"

#include "core/app/prompt_runner.hpp"
#include "core/base/log.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace luna::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{500};
// A server that nobody asks is asked so often.
constexpr std::chrono::seconds kQuiet{3};
// One token of a small prompt, on devices that do nothing else.
constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kPromptTokens = 4;

}  // namespace

Canary::Canary(pipeline::Pipeline& pipeline, const std::vector<Subject>& subjects)
    : pipeline_(pipeline),
      states_(subjects.begin(), subjects.end()),
      thread_(kLook, [this] { look_at_all(); }) {}

void Canary::look_at_all() {
  for (State& state : states_)
    look_at(state);
  is_well_.store(std::ranges::all_of(states_, &State::is_well), std::memory_order_relaxed);
}

void Canary::look_at(State& state) {
  const telemetry::EngineStats& stats = *state.subject.stats;
  const auto now = Clock::now();
  const std::uint64_t n_steps = stats.n_steps.load(std::memory_order_relaxed);
  if (n_steps != state.n_steps) {
    state.n_steps = n_steps;
    state.quiet_since = now;
    state.is_well = true;
    return;
  }
  // Work without steps is judged by whoever looks at progress.
  const bool has_work = stats.n_running.load() > 0 || stats.n_waiting.load() > 0;
  if (has_work || now - state.quiet_since < kQuiet) return;
  const bool was_well = std::exchange(state.is_well, answers_as_before(state));
  if (was_well && !state.is_well && !thread_.is_stopping())
    logger("app")->error("an idle model did not answer as it should model={}", state.subject.model);
  state.n_steps = stats.n_steps.load(std::memory_order_relaxed);
  state.quiet_since = Clock::now();
}

/// Whether one token comes in time, and the right one.
bool Canary::answers_as_before(State& state) {
  pipeline::Request request;
  request.id = "canary";
  request.endpoint = pipeline::Endpoint::completion;
  request.model = state.subject.model;
  request.prompt_ids.assign(kPromptTokens, 0);
  request.n_generated_max = 1;
  request.sampling.temperature = 0.0F;
  request.stop.ignore_eos = true;
  std::string text;
  const auto deadline = Clock::now() + kPatience;
  const auto outcome = run_prompt(
      pipeline_,
      std::move(request),
      [&text](std::string_view piece) { text += piece; },
      [&] { return Clock::now() < deadline && !thread_.is_stopping(); });
  if (!outcome || outcome->finish != pipeline::FinishReason::length) return false;
  if (!state.expected) state.expected = text;
  return text == *state.expected;
}

}  // namespace luna::app
