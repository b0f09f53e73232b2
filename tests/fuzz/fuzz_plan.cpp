// Plans of a policy: whatever it answers, the engine refuses it or carries it out, loses no KV
// block and hangs no request. Bytes say what each plan is: a good one, a good one with a field
// changed, or actions from nothing. When they have run out the policy is a good one.
#include "core/base/log.hpp"
#include "support/engine_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace {

using luna::test::Asked;
using luna::test::EngineRig;

/// Bytes, one after the other; zeros behind the last.
class Feed {
 public:
  explicit Feed(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool is_empty() const { return bytes_.empty(); }
  std::uint32_t next() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::uint32_t below(std::uint32_t n) { return n == 0 ? 0 : next() % n; }

 private:
  std::span<const std::uint8_t> bytes_;
};

std::uint32_t device_of(Feed& feed, const luna_snapshot& s) {
  const std::uint32_t pick = feed.below(s.n_devices + 2);
  if (pick < s.n_devices) return s.devices[pick].device;
  return pick == s.n_devices ? LUNA_NO_DEVICE : feed.next() << 24U;
}

/// Small numbers, those that a row wants, and those that no row could.
std::uint32_t n_tokens_of(Feed& feed, const luna_snapshot& s, std::uint32_t row) {
  const std::uint32_t b = feed.next();
  if (b < 40) return b;
  if (b < 60) return UINT32_MAX - b;
  if (b < 100) return (b - 60) * LUNA_PARTITION_TOKENS;
  if (row >= s.n_reqs) return 1;
  return s.reqs[row].n_prompt - s.reqs[row].n_computed;
}

luna_action action_of(Feed& feed, const luna_snapshot& s) {
  luna_action action{};
  action.row = feed.below(s.n_reqs + 1);
  action.verb = static_cast<std::uint16_t>(feed.below(10));
  action.device = device_of(feed, s);
  action.n_tokens = n_tokens_of(feed, s, action.row);
  if (action.verb == LUNA_VERB_SLICE) action.first_token = n_tokens_of(feed, s, action.row);
  if (feed.below(16) == 0) action.arg = feed.next();
  return action;
}

void change(Feed& feed, const luna_snapshot& s, luna_plan& plan) {
  if (plan.n_actions == 0) return;
  luna_action& action = plan.actions[feed.below(plan.n_actions)];
  const luna_action other = action_of(feed, s);
  switch (feed.below(6)) {
    case 0:
      action.row = other.row;
      break;
    case 1:
      action.verb = other.verb;
      break;
    case 2:
      action.device = other.device;
      break;
    case 3:
      action.n_tokens = other.n_tokens;
      break;
    case 4:
      plan.n_actions = feed.below(4) == 0 ? plan.n_actions_max + 1 : plan.n_actions - 1;
      break;
    default:
      if (plan.n_actions < plan.n_actions_max) plan.actions[plan.n_actions++] = other;
  }
}

luna_status answer(Feed& feed,
                   const luna::plugin::Instance<luna_scheduler_if>& good,
                   const luna_snapshot& s,
                   luna_plan& plan) {
  luna_err err = luna::make_err();
  const std::uint32_t sort = feed.below(4);
  if (sort < 3 || feed.is_empty()) {
    const luna_status status = good->plan(good.self(), &s, &plan, &err);
    if (sort > 0) change(feed, s, plan);
    return status;
  }
  const std::uint32_t n = feed.below(12);
  for (std::uint32_t i = 0; i < n; ++i)
    plan.actions[plan.n_actions++] = action_of(feed, s);
  if (feed.below(8) == 0) plan.wake_at_ns = s.now_ns + feed.next() * 1'000'000ULL;
  return feed.below(32) == 31 ? LUNA_INTERNAL : LUNA_OK;
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  luna::init_logging(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Feed feed(std::span(data, size).first(std::min<std::size_t>(size, 2048)));
  const bool has_groups = feed.below(2) == 1;
  luna::test::FakeModelOptions model;
  model.n_lanes = 1 + feed.below(2);
  model.n_kv_blocks = 6 + feed.below(8);
  model.n_seqs_max = 1 + feed.below(5);
  const auto good = luna::test::static_scheduler();
  EngineRig rig(model,
                luna::test::scheduler_of([&](const luna_snapshot& s, luna_plan& plan) {
                  return answer(feed, good, s, plan);
                }),
                {.n_groups_max = has_groups ? 2U : 1U, .copies_at_once = true},
                has_groups ? std::vector{model} : std::vector<luna::test::FakeModelOptions>{});
  std::vector<Asked> asked;
  for (std::uint32_t i = 0; i < 7; ++i)
    asked.push_back(rig.submit(
        EngineRig::request(luna::test::some_prompt(1 + i * 23, i), 1 + feed.below(40)), 1 + i % 2));
  // What a plan that only waits costs, and more than all requests take.
  constexpr int kTurnsMax = 20'000;
  int n_turns = 0;
  for (; n_turns < kTurnsMax; ++n_turns) {
    const bool worked = rig.engine->advance();
    rig.clock.advance(std::chrono::milliseconds(1));
    require(rig.engine->audit_kv().empty());
    const bool completed = rig.complete();
    if (!worked && !completed && std::ranges::all_of(asked, &Asked::ended)) break;
  }
  require(n_turns < kTurnsMax);
  require(rig.fake.faults().empty());
  require(rig.stats.n_kv_audit_failures.load() == 0);
  require(rig.stats.n_kv_blocks_used.load() == 0);
  require(rig.stats.n_running.load() + rig.stats.n_waiting.load() == 0);
  return 0;
}
