#include "core/engine/step_cost.hpp"

#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace luna::engine {
namespace {

/// Costs of the order of a small model on two cores.
constexpr StepCosts kTrue{.fixed_ns = 2.0e6, .per_row_ns = 1.8e5, .per_kv_token_ns = 900.0};

/// A served mix: decoding rows of growing context, now and then a chunk of a prompt.
class Mix {
 public:
  explicit Mix(std::uint64_t seed) : random_(seed) {}
  StepLoad next() {
    const std::uint32_t n_decoding = 1 + static_cast<std::uint32_t>(random_() % 8);
    const std::uint32_t context = 64 + static_cast<std::uint32_t>(random_() % 1000);
    StepLoad load{n_decoding, std::uint64_t{n_decoding} * context};
    if (random_() % 4 == 0) {
      const std::uint32_t n_chunk = 32U << random_() % 5;
      load.n_rows += n_chunk;
      load.n_kv_tokens += std::uint64_t{n_chunk} * (n_chunk + 1) / 2;
    }
    return load;
  }
  /// Within 1 +- share of what it should be.
  Nanoseconds jitter(double ns, double share) {
    return Nanoseconds(static_cast<std::int64_t>(
        ns * (1.0 + share * (static_cast<double>(random_() % 2001) / 1000.0 - 1.0))));
  }
  std::uint64_t number() { return random_(); }

 private:
  std::mt19937_64 random_;
};

void expect_near(const StepCosts& found, const StepCosts& wanted, double share) {
  EXPECT_NEAR(found.fixed_ns, wanted.fixed_ns, share * wanted.fixed_ns);
  EXPECT_NEAR(found.per_row_ns, wanted.per_row_ns, share * wanted.per_row_ns);
  EXPECT_NEAR(found.per_kv_token_ns, wanted.per_kv_token_ns, share * wanted.per_kv_token_ns);
}

TEST(StepCostFit, CostsAreZeroBeforeTheFirstStep) {
  EXPECT_EQ(StepCostFit().costs().step_ns({100, 100}), 0.0);
}

TEST(StepCostFit, ExactTimesGiveTheExactCosts) {
  Mix mix(1);
  StepCostFit fit;
  for (int i = 0; i < 200; ++i) {
    const StepLoad load = mix.next();
    fit.add(load, mix.jitter(kTrue.step_ns(load), 0.0));
  }
  expect_near(fit.costs(), kTrue, 1e-3);
}

TEST(StepCostFit, JitterAndRareOutliersChangeLittle) {
  const std::uint64_t seed = test::test_seed();
  Mix mix(seed);
  StepCostFit fit;
  for (int i = 0; i < 4000; ++i) {
    const StepLoad load = mix.next();
    const double late = mix.number() % 50 == 0 ? 20.0 : 1.0;  // a core taken away
    fit.add(load, mix.jitter(late * kTrue.step_ns(load), 0.1));
  }
  for (const StepLoad load : {StepLoad{1, 500}, StepLoad{8, 8000}, StepLoad{256, 32896}})
    EXPECT_NEAR(fit.costs().step_ns(load) / kTrue.step_ns(load), 1.0, 0.12) << "seed " << seed;
}

TEST(StepCostFit, AMachineThatBecomesSlowIsFollowed) {
  Mix mix(2);
  StepCostFit fit;
  for (int i = 0; i < 1000; ++i) {
    const StepLoad load = mix.next();
    fit.add(load, mix.jitter(kTrue.step_ns(load), 0.0));
  }
  for (int i = 0; i < 3000; ++i) {
    const StepLoad load = mix.next();
    fit.add(load, mix.jitter(3.0 * kTrue.step_ns(load), 0.0));
  }
  const StepLoad load{8, 4000};
  EXPECT_NEAR(fit.costs().step_ns(load) / kTrue.step_ns(load), 3.0, 0.15);
}

TEST(StepCostFit, LongSameStepsLeaveWhatOthersCostKnown) {
  Mix mix(3);
  StepCostFit fit;
  for (int i = 0; i < 500; ++i) {
    const StepLoad load = mix.next();
    fit.add(load, mix.jitter(kTrue.step_ns(load), 0.0));
  }
  for (int i = 0; i < 100'000; ++i)
    fit.add({1, 300}, mix.jitter(kTrue.step_ns({1, 300}), 0.05));
  const StepLoad prompt{512, 131'328};
  EXPECT_NEAR(fit.costs().step_ns(prompt) / kTrue.step_ns(prompt), 1.0, 0.1);
}

TEST(StepCostFit, CostsAreNeverNegative) {
  const std::uint64_t seed = test::test_seed();
  Mix mix(seed);
  StepCostFit fit;
  for (int i = 0; i < 20'000; ++i) {
    const StepLoad load = mix.next();
    fit.add(load, Nanoseconds(1 + static_cast<std::int64_t>(mix.number() % 10'000'000)));
    ASSERT_GE(fit.costs().fixed_ns, 0.0) << "seed " << seed << " step " << i;
    ASSERT_GE(fit.costs().per_row_ns, 0.0) << "seed " << seed << " step " << i;
    ASSERT_GE(fit.costs().per_kv_token_ns, 0.0) << "seed " << seed << " step " << i;
  }
}

TEST(StepCostFit, RowsCostSomethingHoweverTokensGrowWithThem) {
  const std::uint64_t seed = test::test_seed();
  for (std::uint64_t n = 0; n < 200; ++n) {
    Mix mix(seed + n);
    StepCostFit fit;
    double n_rows = 0.0;
    for (int i = 0; i < 12; ++i) {
      // A crowd of short requests: each row attends to about twenty tokens.
      const auto rows = static_cast<std::uint32_t>(16 + mix.number() % 240);
      const StepLoad load{rows, rows * (15 + mix.number() % 10)};
      fit.add(load, mix.jitter(1e6 * rows, 0.3));
      n_rows += rows;
    }
    EXPECT_GT(fit.costs().per_row_ns, 0.0) << "seed " << seed + n;
    const StepLoad mean{static_cast<std::uint32_t>(n_rows / 12),
                        static_cast<std::uint64_t>(n_rows / 12 * 19.5)};
    EXPECT_NEAR(fit.costs().step_ns(mean) / (n_rows / 12 * 1e6), 1.0, 0.35) << "seed " << seed + n;
  }
}

TEST(StepCostFit, OneKindOfStepIsAllFixedCost) {
  StepCostFit fit;
  for (int i = 0; i < 10; ++i)
    fit.add({1, 1}, Nanoseconds(3'000'000));
  EXPECT_NEAR(fit.costs().fixed_ns, 3.0e6, 3.0e3);
  EXPECT_TRUE(std::isfinite(fit.costs().step_ns({512, 1'000'000})));
}

TEST(StepCostFit, ExtremeLoadsAndAStandingClockAreTakenOrPassedOver) {
  StepCostFit fit;
  fit.add({0, 0}, Nanoseconds(1000));
  fit.add({4, 4}, Nanoseconds(0));
  EXPECT_EQ(fit.costs().fixed_ns, 0.0);
  fit.add({UINT32_MAX, UINT64_MAX}, Nanoseconds::max());
  fit.add({1, 1}, Nanoseconds(1));
  fit.add({1, UINT64_MAX}, Nanoseconds(1));
  EXPECT_TRUE(std::isfinite(fit.costs().step_ns({1, 1})));
  EXPECT_GE(fit.costs().step_ns({1, 1}), 0.0);
}

}  // namespace
}  // namespace luna::engine
