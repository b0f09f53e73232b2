// Group D: calls of one instance come one at a time, from whatever thread is free.
#include "core/check/cases.hpp"
#include "core/check/policy_probe.hpp"
#include "core/check/role_driver.hpp"
#include "core/check/workload.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

namespace luna::check {
namespace {

/// Runs `call` on a thread of its own, to its end.
template <typename Call>
void elsewhere(Call&& call) {
  std::thread(std::forward<Call>(call)).join();
}

/// A session of plans, and what was wrong with them.
struct Session {
  std::uint64_t plan_hash = 0;
  std::string breach;  ///< the first; empty: none
};

Session run_session(CaseRun& run, Fleet::PlanCall plan) {
  constexpr std::uint32_t kJobs = 60;
  Workload workload(run.input().seed);
  Fleet fleet(workload.draw_fleet(false), std::move(plan));
  workload.run(fleet, kJobs);
  return {fleet.plan_hash, fleet.breaches.empty() ? "" : fleet.breaches.front().breach.text};
}

// Made here, asked on a thread of its own for each plan, given back on one more: the same plans.
void check_plans(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto at_home = PolicyProbe::make(run, *subject);
  if (at_home == nullptr) return;
  const Session expected = run_session(run, at_home->call());
  if (!expected.breach.empty()) return run.skip("its plans are wrong already: see legal_plans");
  auto moved = PolicyProbe::make(run, *subject);
  if (moved == nullptr) return;
  run.phase("plan, each on another thread");
  const auto plan = [&](const luna_snapshot& snapshot, luna_plan& answer, luna_err& err) {
    luna_status status = LUNA_INTERNAL;
    elsewhere([&] { status = moved->plan(snapshot, answer, err); });
    return status;
  };
  const Session found = run_session(run, plan);
  run.phase("destroy on another thread");
  elsewhere([&] { moved.reset(); });
  if (!found.breach.empty())
    run.fail("T2", "on another thread than that of create(): " + found.breach);
  else if (found.plan_hash != expected.plan_hash)
    run.fail("T2", "with each plan asked for on another thread the plans are others");
}

/// What a role makes of some requests, each batch on the thread that `on` gives it.
template <typename On>
std::string answers_of(CaseRun& run, const plugin::Instance<luna_role_if>& role, const On& on) {
  constexpr std::array<std::string_view, 4> kTexts = {
      "", "one line", "a\nb \"c\"\n", "\xC3\xA9 1234567 end."};
  constexpr int kBatchesMax = 1000;
  RoleDriver driver(run, role, run.input().seed);
  std::uint64_t request = 0;
  for (const std::string_view before : kTexts)
    for (const std::string_view answer : kTexts)
      driver.add(++request, std::string(before), std::string(answer));
  bool waits = true;
  for (int n = 0; n < kBatchesMax && waits; ++n)
    on([&] { waits = driver.step(4); });
  std::string all;
  for (const auto& [id, answer] : driver.answers())
    all += std::to_string(id) + ": " + answer.text + "|" + answer.end + "|" + answer.error + "\n";
  return all;
}

void check_batches(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  auto role = subject->make<luna_role_if>(LUNA_KIND_ROLE);
  if (!role) return;
  const std::string expected = answers_of(run, role, [](const auto& batch) { batch(); });
  role = subject->make<luna_role_if>(LUNA_KIND_ROLE);
  if (!role || run.has_failed()) return;
  run.phase("run, each batch on another thread");
  const std::string found =
      answers_of(run, role, [](const auto& batch) { elsewhere([&] { batch(); }); });
  run.phase("destroy on another thread");
  elsewhere([&] { role = {}; });
  if (!run.has_failed() && found != expected)
    run.fail("T2", "with each batch on another thread the answers are others");
}

constexpr auto kCases = std::to_array<Case>({
    {"D.scheduler.threads", LUNA_KIND_SCHEDULER, "T2", check_plans},
    {"D.role.threads", LUNA_KIND_ROLE, "T2", check_batches},
});

}  // namespace

std::span<const Case> thread_cases() {
  return kCases;
}

}  // namespace luna::check
