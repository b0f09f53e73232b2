#include "core/telemetry/engine_stats.hpp"

#include <gtest/gtest.h>

namespace luna::telemetry {
namespace {

TEST(Histogram, AnObservationLandsInTheFirstBucketThatHoldsIt) {
  Histogram<3> histogram({1.0, 2.0, 4.0});
  for (const double value : {0.5, 1.0, 1.5, 4.0, 5.0})
    histogram.observe(value);
  EXPECT_EQ(histogram.count(0), 2U);  // an upper bound is inside
  EXPECT_EQ(histogram.count(1), 1U);
  EXPECT_EQ(histogram.count(2), 1U);
  EXPECT_EQ(histogram.count(3), 1U);
  EXPECT_DOUBLE_EQ(histogram.sum(), 12.0);
}

TEST(Histogram, TheBoundsOfTheShippedOnesRise) {
  for (std::size_t i = 1; i < kRequestSeconds.size(); ++i)
    EXPECT_LT(kRequestSeconds[i - 1], kRequestSeconds[i]);
  for (std::size_t i = 1; i < kStepSeconds.size(); ++i)
    EXPECT_LT(kStepSeconds[i - 1], kStepSeconds[i]);
  EXPECT_GE(kRequestSeconds.back(), 120.0);
}

}  // namespace
}  // namespace luna::telemetry
