// Groups E and F of schedulers: plans over machines of known costs in virtual time.
#include "core/check/allocation_watch.hpp"
#include "core/check/cases.hpp"
#include "core/check/child.hpp"
#include "core/check/decision_scene.hpp"
#include "core/check/policy_probe.hpp"
#include "core/check/workload.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdlib>
#include <malloc.h>
#include <set>
#include <string>

namespace luna::check {
namespace {

constexpr std::uint32_t kFleets = 24;
constexpr std::uint32_t kJobs = 120;  // of a fleet

/// Another workload for each fleet of a seed.
std::uint64_t seed_of(std::uint64_t seed, std::uint32_t fleet) {
  return seed * 0x9E3779B97F4A7C15U + fleet;
}

void tell_breaches(CaseRun& run, const Fleet& fleet, std::uint64_t seed) {
  for (const FleetBreach& found : fleet.breaches)
    run.fail(found.breach.rule,
             "plan " + std::to_string(found.plan) + " of workload " + std::to_string(seed) + ": " +
                 found.breach.text);
}

/// What the workloads had of what a policy may stumble over.
struct Tally {
  std::uint64_t n_shared_starts = 0;
  std::uint64_t n_slices = 0;
};

/// Runs one fleet of a seed to its end. False: the run was told what is wrong.
bool run_fleet(CaseRun& run,
               PolicyProbe& probe,
               std::uint64_t seed,
               std::uint64_t* hash = nullptr,
               Tally* tally = nullptr) {
  Workload workload(seed);
  Fleet fleet(workload.draw_fleet(probe.slices()), probe.call());
  const bool has_ended = workload.run(fleet, kJobs);
  tell_breaches(run, fleet, seed);
  if (!has_ended && fleet.breaches.empty())
    run.fail("S5",
             "workload " + std::to_string(seed) +
                 " does not come to an end: " + std::to_string(fleet.n_live()) +
                 " requests left, first " + fleet.describe_first());
  if (tally != nullptr) {
    tally->n_shared_starts += fleet.n_shared_starts;
    tally->n_slices += fleet.n_slices;
  }
  if (hash != nullptr) *hash = (*hash ^ fleet.plan_hash) * 0x100000001B3U;
  return !run.has_failed();
}

/// Runs fleets of the seed, each with an instance of its own. Returns the hash of all plans.
std::uint64_t run_fleets(CaseRun& run,
                         Subject& subject,
                         std::uint32_t n_fleets,
                         const Lending& lending = {},
                         Tally* tally = nullptr) {
  std::uint64_t hash = 0;
  for (std::uint32_t f = 0; f < n_fleets; ++f) {
    const auto probe = PolicyProbe::make(run, subject, lending);
    if (probe == nullptr || !run_fleet(run, *probe, seed_of(run.input().seed, f), &hash, tally))
      break;
  }
  return hash;
}

void check_legal_plans(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  Tally tally;
  run_fleets(run, *subject, kFleets, {}, &tally);
  run.figure("starts_with_shared_kv", std::to_string(tally.n_shared_starts));
  run.figure("slices", std::to_string(tally.n_slices));
}

void check_tables_unchanged(CaseRun& run) {
  if (const auto subject = Subject::load(run)) run_fleets(run, *subject, 2, {.read_only = true});
}

void check_tables_not_kept(CaseRun& run) {
  if (const auto subject = Subject::load(run)) run_fleets(run, *subject, 2, {.taken_away = true});
}

// A newer host's rows are longer: the plans are the same.
void check_wider_rows(CaseRun& run) {
  constexpr std::uint32_t kWorkloads = 3;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const std::uint64_t narrow = run_fleets(run, *subject, kWorkloads);
  if (run.has_failed()) return;
  std::uint64_t wide = 0;
  for (std::uint32_t f = 0; f < kWorkloads; ++f) {
    const auto probe = PolicyProbe::make(run, *subject, {.pad_bytes = 32});
    if (probe == nullptr) return;
    run.phase("plan over rows that are 32 bytes longer");
    Workload workload(seed_of(run.input().seed, f));
    Fleet fleet(workload.draw_fleet(probe->slices()), probe->call());
    workload.run(fleet, kJobs);
    wide = (wide ^ fleet.plan_hash) * 0x100000001B3U;
  }
  if (narrow != wide)
    run.fail("V7", "rows that are 32 bytes longer than this build's get other plans");
}

/// Makes this process unlike the one that it came from: what a plan must not depend on.
void look_different(std::uint64_t seed) {
  ::setenv("LANG", "de_DE.UTF-8", 1);
  std::setlocale(LC_ALL, "C.UTF-8");
  ::mallopt(M_PERTURB, 0x5A);
  // Pages and heap begin elsewhere.
  const std::size_t n_bytes = (1 + seed % 61) << 16U;
  [[maybe_unused]] void* const pages =
      ::mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (std::size_t n = 0; n < 64; ++n)
    [[maybe_unused]] void* const kept = std::malloc(48 + (n * 40 + seed) % 4096);
}

// In two processes of other addresses, heap contents, locale and time of day.
void check_same_plans(CaseRun& run) {
  constexpr std::chrono::seconds kLimit(40);
  std::array<std::string, 2> hashes;
  for (std::size_t p = 0; p < hashes.size(); ++p) {
    const ChildReport report = run_in_child(run.input(), kLimit, [p](CaseRun& inner) {
      if (p == 1) look_different(inner.input().seed);
      const auto subject = Subject::load(inner);
      if (subject == nullptr) return;
      if ((subject->library().descriptor().flags & LUNA_PLUGIN_DETERMINISTIC) == 0)
        return inner.skip("it does not claim to be deterministic");
      inner.figure("hash", std::to_string(run_fleets(inner, *subject, 6)));
    });
    if (!report.skipped.empty()) return run.skip(report.skipped);
    if (!report.is_fine()) return run.skip("its plans are wrong already: see legal_plans");
    hashes[p] = report.figures.empty() ? "" : report.figures.front().second;
  }
  if (hashes[0] != hashes[1])
    run.fail("S3", "two processes that were shown the same tables made other plans");
}

// Requests of all kinds that somebody may be left behind for, in a stream of short ones that is a
// little more than the machine can take. Each of them gets its first step, or is refused, within
// the bound.
void check_starvation(CaseRun& run) {
  constexpr std::uint64_t kBoundNs = 60'000'000'000;
  constexpr std::uint64_t kArrivalNs = 14'000'000;  // a job takes 16 ms of the machine
  constexpr std::uint64_t kDeadlineNs = 2'000'000'000;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto probe = PolicyProbe::make(run, *subject);
  if (probe == nullptr) return;
  FleetOptions options;
  options.groups.assign(1, {});
  Fleet fleet(options, probe->call());
  const std::uint64_t began_ns = fleet.now_ns;
  std::uint64_t next_ns = began_ns;
  const auto arrive = [&] {
    for (; next_ns <= fleet.now_ns; next_ns += kArrivalNs)
      fleet.add({.n_prompt = 64,
                 .n_generated_max = 8,
                 .tenant = 1,
                 .deadline_ns = next_ns + kDeadlineNs});
  };
  while (fleet.now_ns < began_ns + 2'000'000'000 && fleet.breaches.empty()) {
    arrive();
    if (!fleet.turn()) break;
  }
  struct Probe {
    const char* what;
    const FleetJob* job;
  };
  const std::array probes = {
      Probe{"a long one without a deadline",
            &fleet.add({.n_prompt = 1500, .n_generated_max = 300})},
      Probe{"a long one of the same tenant",
            &fleet.add({.n_prompt = 1200, .n_generated_max = 200, .tenant = 1})},
      Probe{"a short one with a late deadline",
            &fleet.add({.n_prompt = 64,
                        .n_generated_max = 8,
                        .tenant = 1,
                        .deadline_ns = fleet.now_ns + 10 * kBoundNs})}};
  const std::uint64_t asked_ns = fleet.now_ns;
  const auto is_served = [](const Probe& p) { return p.job->started_ns != 0 || p.job->has_ended; };
  while (fleet.now_ns < asked_ns + kBoundNs && fleet.breaches.empty() &&
         !std::ranges::all_of(probes, is_served)) {
    arrive();
    if (!fleet.turn()) break;
  }
  tell_breaches(run, fleet, 0);
  if (run.has_failed()) return;
  for (const Probe& p : probes)
    if (!is_served(p))
      run.fail("S4",
               std::string(p.what) + " waits for more than " +
                   std::to_string(kBoundNs / 1'000'000'000) +
                   " s while short requests that came later run");
  run.figure("virtual_seconds_until_all_ran",
             std::to_string(static_cast<double>(fleet.now_ns - asked_ns) * 1e-9));
}

// Processor time of a plan. The bounds are a tenth of a decode step of a small model, and what
// ten times the rows may take.
void check_decision_time(CaseRun& run) {
  struct Size {
    std::uint32_t n_rows;
    std::uint32_t n_plans;
    double us_max;
  };
  constexpr std::array kSizes = {Size{1'000, 300, 1'000.0}, Size{10'000, 60, 10'000.0}};
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for (const Size& size : kSizes) {
    const auto probe = PolicyProbe::make(run, *subject);
    if (probe == nullptr) return;
    DecisionScene scene(size.n_rows, run.input().seed);
    const std::vector<double> us = scene.time_plans(*probe, size.n_plans);
    if (us.empty())
      return run.fail("S5", "plan() failed over " + std::to_string(size.n_rows) + " rows");
    const double median = us[us.size() / 2];
    const std::string rows = std::to_string(size.n_rows);
    run.figure("plan_us_p50_" + rows + "_rows", std::to_string(median));
    run.figure("plan_us_p99_" + rows + "_rows", std::to_string(us[us.size() * 99 / 100]));
    if (median > size.us_max)
      run.fail("S6",
               "a plan over " + rows + " rows takes " + std::to_string(median) + " us, " +
                   std::to_string(size.us_max) + " are allowed");
  }
}

void check_reasons(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const luna_if& head = subject->head(LUNA_KIND_SCHEDULER);
  if ((head.flags & LUNA_SCHEDULER_REASONS) == 0) return;
  run.phase("ext without an instance");
  const auto* const found = static_cast<const luna_reasons*>(head.ext(nullptr, LUNA_EXT_REASONS));
  if (!LUNA_HAS(found, luna_reasons, reasons) ||
      (found->n_reasons > 0 && found->reasons == nullptr))
    return run.fail("S7", "it announces reasons and has none");
  std::set<std::uint32_t> codes;
  for (std::uint32_t i = 0; i < found->n_reasons; ++i) {
    const luna_reason& reason = found->reasons[i];
    const std::string code = std::to_string(reason.code);
    if (!codes.insert(reason.code).second) run.fail("S7", "code " + code + " stands twice");
    if (reason.name == nullptr || *reason.name == '\0' || reason.meaning == nullptr ||
        *reason.meaning == '\0')
      run.fail("S7", "code " + code + " has no name or no meaning");
    if (reason.verb == 0 || reason.verb > LUNA_VERB_ROLE)
      run.fail("S7", "code " + code + " is of verb " + std::to_string(reason.verb));
  }
}

void check_allocations(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  if (!AllocationWatch::install(&subject->library().descriptor()))
    return run.skip("not under a sanitizer");
  const auto probe = PolicyProbe::make(run, *subject);
  if (probe == nullptr) return;
  // Once to grow whatever grows, then the same again on the same instance.
  if (!run_fleet(run, *probe, seed_of(run.input().seed, 0))) return;
  probe->watch_allocations();
  if (!run_fleet(run, *probe, seed_of(run.input().seed, 0))) return;
  if (const std::uint64_t n = probe->n_allocations(); n > 0)
    run.fail("C1", std::to_string(n) + " allocations in plans over a workload that it had seen");
}

constexpr const char* kKind = LUNA_KIND_SCHEDULER;
constexpr auto kCases = std::to_array<Case>({
    {"E.scheduler.legal_plans", kKind, "U3", check_legal_plans},
    {"E.scheduler.tables_unchanged", kKind, "O1", check_tables_unchanged},
    {"E.scheduler.tables_not_kept", kKind, "O2", check_tables_not_kept},
    {"E.scheduler.wider_rows", kKind, "V7", check_wider_rows},
    {"E.scheduler.same_plans", kKind, "U3", check_same_plans},
    {"E.scheduler.starvation", kKind, "U3", check_starvation},
    {"E.scheduler.reasons", kKind, "U3", check_reasons},
    {"F.scheduler.decision_time", kKind, "U3", check_decision_time},
    {"F.scheduler.allocations", kKind, "U3", check_allocations},
});

}  // namespace

std::span<const Case> scheduler_cases() {
  return kCases;
}

}  // namespace luna::check
