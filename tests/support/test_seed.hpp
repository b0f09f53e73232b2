// The seed of a property test: LUNA_TEST_SEED, else a fixed one; printed, so that a failure
// repeats.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace luna::test {

inline std::uint32_t test_seed() {
  const char* given = std::getenv("LUNA_TEST_SEED");
  const auto seed = static_cast<std::uint32_t>(given ? std::strtoul(given, nullptr, 10) : 20240917);
  ::testing::Test::RecordProperty("LUNA_TEST_SEED", std::to_string(seed));
  return seed;
}

}  // namespace luna::test
