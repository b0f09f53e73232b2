// Policies of one page each, as they are shipped: who goes before whom. That their plans are legal
// and leave nobody behind, the validator says (tests/unit/check).
#include "core/check/fleet.hpp"
#include "support/plugin_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

namespace luna::test {
namespace {

using check::Fleet;
using check::FleetJob;
using check::FleetOptions;

constexpr std::uint64_t kMs = 1'000'000;

/// One group of devices, which a shipped policy plans for.
class Gallery {
 public:
  explicit Gallery(const std::string& policy,
                   const SettingValues& settings = {},
                   FleetOptions options = one_group())
      : table_(load_table<luna_scheduler_if>("scheduler_" + policy, LUNA_KIND_SCHEDULER)),
        self_(*make_instance(*table_, host_, settings)),
        fleet(std::move(options), [this](const luna_snapshot& s, luna_plan& plan, luna_err& err) {
          return table_->plan(self_, &s, &plan, &err);
        }) {}
  Gallery(const Gallery&) = delete;
  Gallery& operator=(const Gallery&) = delete;
  ~Gallery() { table_->head.destroy(self_); }

  static FleetOptions one_group() {
    FleetOptions options;
    options.groups.assign(1, {});
    options.n_rows_max = 64;
    options.n_seqs_max = 4;
    return options;
  }

 private:
  FakeHost host_;
  const luna_scheduler_if* table_;
  void* self_;

 public:
  Fleet fleet;
};

TEST(Srf, AShortRequestOvertakesALongPrompt) {
  Gallery gallery("srf");
  const FleetJob& longer = gallery.fleet.add({.n_prompt = 2000, .n_generated_max = 50});
  gallery.fleet.turn();
  const FleetJob& shorter = gallery.fleet.add({.n_prompt = 40, .n_generated_max = 5});
  EXPECT_TRUE(gallery.fleet.run());
  EXPECT_LT(shorter.ended_ns, longer.ended_ns);
}

TEST(Srf, WaitingMakesUpForWorkAsFastAsTheSettingSays) {
  const auto started_ms = [](double aging) {
    Gallery gallery("srf", {{"aging", aging}});
    const FleetJob& longer = gallery.fleet.add({.n_prompt = 1000, .n_generated_max = 10});
    for (std::uint64_t n = 0; longer.started_ns == 0 && n < 4000; ++n) {
      // Always one more that is shorter.
      while (gallery.fleet.n_live() < 12)
        gallery.fleet.add({.n_prompt = 60, .n_generated_max = 4});
      if (!gallery.fleet.turn()) break;
    }
    return static_cast<double>(longer.started_ns - longer.arrival_ns) / kMs;
  };
  const double patient = started_ms(0.25);
  const double eager = started_ms(2.0);
  EXPECT_GT(eager, 100.0);
  EXPECT_LT(eager, 1500.0);
  EXPECT_GT(patient, 2.0 * eager);
}

TEST(Edf, TheEarlierDeadlineStartsFirstWhoeverCameFirst) {
  Gallery gallery("edf");
  const std::uint64_t now = gallery.fleet.now_ns;
  const FleetJob& late =
      gallery.fleet.add({.n_prompt = 640, .n_generated_max = 5, .deadline_ns = now + 5000 * kMs});
  const FleetJob& early =
      gallery.fleet.add({.n_prompt = 640, .n_generated_max = 5, .deadline_ns = now + 500 * kMs});
  EXPECT_TRUE(gallery.fleet.run());
  EXPECT_LT(early.ended_ns, late.ended_ns);
}

TEST(Edf, WithoutADeadlineARequestIsDueByTheSlack) {
  Gallery gallery("edf", {{"slack_ms", std::int64_t{100}}});
  const std::uint64_t now = gallery.fleet.now_ns;
  const FleetJob& dated =
      gallery.fleet.add({.n_prompt = 640, .n_generated_max = 5, .deadline_ns = now + 90 * kMs});
  const FleetJob& free = gallery.fleet.add({.n_prompt = 640, .n_generated_max = 5});
  const FleetJob& far =
      gallery.fleet.add({.n_prompt = 640, .n_generated_max = 5, .deadline_ns = now + 9000 * kMs});
  EXPECT_TRUE(gallery.fleet.run());
  EXPECT_LT(dated.ended_ns, free.ended_ns);
  // As due as the one without: the one that came first.
  EXPECT_LT(free.ended_ns, far.ended_ns);
}

TEST(Fair, ATenantWithOneRequestDoesNotWaitForAnothersForty) {
  Gallery gallery("fair");
  for (int i = 0; i < 40; ++i)
    gallery.fleet.add({.n_prompt = 128, .n_generated_max = 4, .tenant = 1});
  gallery.fleet.turn();
  const FleetJob& only = gallery.fleet.add({.n_prompt = 128, .n_generated_max = 4, .tenant = 2});
  EXPECT_TRUE(gallery.fleet.run());
  int n_before = 0;
  for (const FleetJob& job : gallery.fleet.jobs)
    n_before += job.tenant == 1 && job.ended_ns < only.ended_ns ? 1 : 0;
  EXPECT_LE(n_before, 8);
}

TEST(Fair, TenantsWithBacklogGetEqualTokensWhateverTheSizeOfTheirRequests) {
  Gallery gallery("fair", {{"quantum_tokens", std::int64_t{64}}});
  const auto fill = [&](std::uint32_t tenant, std::uint32_t n_prompt, std::uint32_t n) {
    for (; n > 0; --n)
      gallery.fleet.add({.n_prompt = n_prompt, .n_generated_max = 1, .tenant = tenant});
  };
  fill(1, 600, 30);
  fill(2, 60, 300);
  std::array<double, 2> n_tokens{};
  for (int n = 0; n < 150; ++n)
    gallery.fleet.turn();
  for (const FleetJob& job : gallery.fleet.jobs)
    if (job.has_ended) n_tokens[job.tenant - 1] += job.n_prompt;
  EXPECT_GT(n_tokens[0], 1000.0);
  EXPECT_NEAR(n_tokens[0] / n_tokens[1], 1.0, 0.3);
}

}  // namespace
}  // namespace luna::test
