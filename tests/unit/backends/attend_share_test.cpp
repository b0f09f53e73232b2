// The cuts of attention: every partition belongs to one thread, in order, and shares are even.
#include "plugins/backend_cpu/attend_share.hpp"

#include "support/backend_fixture.hpp"

#include <gtest/gtest.h>

#include <random>

namespace luna::cpu {
namespace {

std::vector<AttendUnit> random_units(std::mt19937_64& rng, std::uint32_t n_heads) {
  std::vector<AttendUnit> units;
  std::uint64_t before = 0;
  const auto n_seqs = 1 + rng() % 6;
  for (std::uint64_t seq = 0; seq < n_seqs; ++seq) {
    const auto first = static_cast<std::uint32_t>(rng() % (rng() % 2 == 0 ? 300 : 9000));
    const auto n_rows = static_cast<std::uint32_t>(1 + rng() % 8);
    const auto window = static_cast<std::uint32_t>(rng() % 3 == 0 ? 1 + rng() % 1000 : 0);
    for (std::uint32_t head = 0; head < n_heads; ++head) {
      units.push_back({first, n_rows, window, before});
      before += units.back().cost();
    }
  }
  return units;
}

TEST(AttendShares, EveryPartitionHasOneThreadInOrder) {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) +
                 " LUNA_TEST_SEED=" + std::to_string(test::test_seed()));
    const auto units = random_units(rng, 1 + static_cast<std::uint32_t>(rng() % 8));
    const std::uint64_t total = units.back().before + units.back().cost();
    for (const std::uint32_t n_threads : {1U, 2U, 3U, 7U, 64U}) {
      const AttendShares shares(total, n_threads);
      for (const AttendUnit& unit : units) {
        std::uint32_t at = unit.partitions().first;
        for (std::uint32_t thread = 0; thread < n_threads; ++thread) {
          const PartitionRange part = shares.part_of(unit, thread);
          if (part.is_empty()) continue;
          ASSERT_EQ(part.first, at);
          at = part.last;
        }
        ASSERT_EQ(at, unit.partitions().last);
      }
    }
  }
}

TEST(AttendShares, NoThreadHasMoreThanItsShareAndOnePartition) {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 300; ++round) {
    const auto units = random_units(rng, 3);
    const std::uint64_t total = units.back().before + units.back().cost();
    const std::uint32_t n_threads = 2 + static_cast<std::uint32_t>(rng() % 7);
    std::uint64_t largest_partition = 0;
    for (const AttendUnit& unit : units)
      for (std::uint32_t p = unit.partitions().first; p < unit.partitions().last; ++p)
        largest_partition =
            std::max(largest_partition, unit.cost_below(p + 1) - unit.cost_below(p));
    for (std::uint32_t thread = 0; thread < n_threads; ++thread) {
      std::uint64_t own = 0;
      for (const AttendUnit& unit : units) {
        const PartitionRange part = AttendShares(total, n_threads).part_of(unit, thread);
        if (!part.is_empty()) own += unit.cost_below(part.last) - unit.cost_below(part.first);
      }
      ASSERT_LE(own, total / n_threads + 1 + largest_partition)
          << "LUNA_TEST_SEED=" << test::test_seed();
    }
  }
}

TEST(AttendShares, AThreadLeavesAtMostTwoPartsOfUnits) {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 300; ++round) {
    const auto units = random_units(rng, 3);
    const AttendShares shares(units.back().before + units.back().cost(), 4);
    for (std::uint32_t thread = 0; thread < 4; ++thread) {
      int n_begun_before = 0;
      int n_ending_after = 0;
      for (const AttendUnit& unit : units) {
        const PartitionRange part = shares.part_of(unit, thread);
        if (part.is_empty() || part == unit.partitions()) continue;
        (part.first == unit.partitions().first ? n_ending_after : n_begun_before) += 1;
      }
      ASSERT_LE(n_begun_before, 1) << "LUNA_TEST_SEED=" << test::test_seed();
      ASSERT_LE(n_ending_after, 1) << "LUNA_TEST_SEED=" << test::test_seed();
    }
  }
}

}  // namespace
}  // namespace luna::cpu
