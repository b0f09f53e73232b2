// What the policy remembers from plan to plan, against what it would read anew; and its queues.
#include "plugins/scheduler_flowsplit/fleet.hpp"
#include "plugins/scheduler_flowsplit/row_book.hpp"
#include "plugins/scheduler_flowsplit/turn_queue.hpp"
#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace luna::test {
namespace {

using scheduler_flowsplit::Fleet;
using scheduler_flowsplit::Home;
using scheduler_flowsplit::NodePool;
using scheduler_flowsplit::QueueKey;
using scheduler_flowsplit::RowBook;
using scheduler_flowsplit::TurnQueue;
using scheduler_flowsplit::TurnWalk;
using scheduling::Seniority;
using scheduling::TenantAccounts;

constexpr std::uint32_t kGroups = 3;

/// A table that changes as an engine's does: rows come, are forked, change in any way, and go.
class ChangingTable {
 public:
  explicit ChangingTable(std::uint64_t seed) : random_(seed), devices_(kGroups) {
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      devices_[g].device = 10 + g;
      devices_[g].group = g;
    }
  }

  void change() {
    now_ns_ += below(50'000'000);
    const std::uint32_t gone = below(8);
    std::erase_if(rows_, [&](const luna_req_row&) { return below(10) < gone && below(4) == 0; });
    for (std::uint32_t n = below(5); n > 0; --n)
      come();
    for (luna_req_row& row : rows_)
      if (below(4) == 0) alter(row);
  }
  luna_snapshot snapshot() {
    luna_snapshot s{};
    s.struct_size = sizeof(s);
    s.req_stride = sizeof(luna_req_row);
    s.device_stride = sizeof(luna_device_row);
    s.n_reqs = static_cast<std::uint32_t>(rows_.size());
    s.n_devices = kGroups;
    s.n_rows_max = 64;
    s.n_seqs_max = 8;
    s.kv_block_tokens = 32;
    s.now_ns = now_ns_;
    s.reqs = rows_.data();
    s.devices = devices_.data();
    return s;
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint32_t device() { return below(4) == 0 ? LUNA_NO_DEVICE : 10 + below(kGroups); }

  void come() {
    luna_req_row row{};
    last_id_ += 2 * (1 + below(2));  // an odd id is kept for its fork
    row.id = last_id_;
    row.arrival_ns = now_ns_;
    row.priority = static_cast<std::int32_t>(below(3));
    row.tenant = below(4);
    row.deadline_ns = below(3) == 0 ? now_ns_ + 1 + below(400'000'000) : 0;
    row.n_prompt = 1 + below(100);
    row.n_generated_max = 1 + below(50);
    row.device = device();
    row.moving_to = LUNA_NO_DEVICE;
    rows_.push_back(row);
  }
  void alter(luna_req_row& row) {
    row.state = below(3);
    row.device = row.state == LUNA_REQ_WAITING ? device() : 10 + below(kGroups);
    row.n_computed = below(row.n_prompt + 1);
    if (row.state == LUNA_REQ_DECODE) row.n_computed = row.n_prompt + below(20);
    row.n_steps = row.state == LUNA_REQ_WAITING ? 0 : below(3);
    row.n_generated = below(row.n_generated_max);
    if (row.id % 2 == 0 && below(10) == 0) fork(row);
  }
  // A second choice of a request stands behind it, with an id that was kept for it.
  void fork(const luna_req_row& first) {
    luna_req_row twin = first;
    ++twin.id;
    const auto behind = std::ranges::upper_bound(rows_, first.id, {}, &luna_req_row::id);
    if (behind == rows_.end() || behind->id > twin.id) forked_.push_back(twin);
  }

 public:
  void insert_forks() {
    for (const luna_req_row& twin : forked_) {
      const auto place = std::ranges::lower_bound(rows_, twin.id, {}, &luna_req_row::id);
      if (place == rows_.end() || place->id != twin.id) rows_.insert(place, twin);
    }
    forked_.clear();
  }

 private:
  std::mt19937_64 random_;
  std::vector<luna_device_row> devices_;
  std::vector<luna_req_row> rows_;
  std::vector<luna_req_row> forked_;
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t last_id_ = 0;
};

void expect_equal(const Home& a, const Home& b) {
  const auto held = [](const Home& home) {
    std::vector<std::uint64_t> ids;
    for (const auto& row : home.held)
      ids.push_back(row.id);
    return ids;
  };
  EXPECT_EQ(held(a), held(b));
  EXPECT_EQ(a.n_waiting, b.n_waiting);
  EXPECT_EQ(a.n_waiting_tokens, b.n_waiting_tokens);
  EXPECT_EQ(a.n_decoding, b.n_decoding);
  EXPECT_EQ(a.n_prompt_tokens, b.n_prompt_tokens);
  EXPECT_EQ(a.n_kv_tokens, b.n_kv_tokens);
  EXPECT_EQ(a.n_output_tokens, b.n_output_tokens);
  // Once a deadline presses it does so for good: rows that press here may not, seen anew.
  const auto ids = [](const TurnQueue& queue) {
    std::vector<std::uint64_t> found;
    for (const QueueKey& key : queue)
      found.push_back(key.id);
    std::ranges::sort(found);
    return found;
  };
  EXPECT_EQ(ids(a.queue), ids(b.queue));
}

TEST(RowBook, WhatIsKeptFromPlanToPlanIsWhatWouldBeReadAnew) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ChangingTable table(test_seed() + seed);
    NodePool nodes;
    Fleet fleet(nodes);
    RowBook book({Seniority(1'000'000'000), true});
    for (int plan = 0; plan < 100; ++plan) {
      table.change();
      table.insert_forks();
      const luna_snapshot raw = table.snapshot();
      const Snapshot rows(&raw);
      fleet.read(rows);
      book.read(rows, fleet);
      NodePool other_nodes;
      Fleet anew(other_nodes);
      RowBook other({Seniority(1'000'000'000), true});
      anew.read(rows);
      other.read(rows, anew);
      ASSERT_EQ(fleet.groups().size(), kGroups);
      for (std::size_t g = 0; g < kGroups; ++g)
        expect_equal(fleet.memory_of(fleet.groups()[g]).home,
                     anew.memory_of(anew.groups()[g]).home);
      expect_equal(fleet.nowhere(), anew.nowhere());
      EXPECT_EQ(book.n_waiting(), other.n_waiting());
      for (std::uint32_t account = 0; account < 4; ++account)
        EXPECT_EQ(book.n_tokens_of(account), other.n_tokens_of(account));
      std::vector<std::uint32_t> accounts(book.accounts().begin(), book.accounts().end());
      std::vector<std::uint32_t> others(other.accounts().begin(), other.accounts().end());
      std::ranges::sort(accounts);
      std::ranges::sort(others);
      EXPECT_EQ(accounts, others);
      for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
        EXPECT_EQ(book.index_of(rows[i]->id), i);
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << test_seed() + seed;
    }
  }
}

TEST(RowBook, ARowThatCameIsAnArrivalOnce) {
  ChangingTable table(7);
  NodePool nodes;
  Fleet fleet(nodes);
  RowBook book({Seniority(0), false});
  table.change();
  luna_snapshot raw = table.snapshot();
  const Snapshot rows(&raw);
  fleet.read(rows);
  book.read(rows, fleet);
  EXPECT_EQ(book.n_arrived(), rows.n_rows());
  book.read(rows, fleet);
  EXPECT_EQ(book.n_arrived(), 0U);
}

/// The order in which a walk gives the rows of a queue, each of so many tokens.
std::vector<std::uint64_t> walked(const TurnQueue& queue,
                                  const TenantAccounts& accounts,
                                  std::uint32_t n_tokens) {
  TurnWalk walk;
  std::vector<std::uint64_t> ids;
  for (walk.begin(queue, accounts); !walk.is_over(); walk.next(n_tokens))
    ids.push_back(walk.key().id);
  return ids;
}

TEST(TurnWalk, TenantsAlternateAndWithinATenantTheOrderHolds) {
  NodePool nodes;
  TurnQueue queue(&nodes);
  queue.insert({.account = 1, .order = 10, .id = 1});
  queue.insert({.account = 1, .order = 20, .id = 2});
  queue.insert({.account = 1, .is_calm = 0, .order = 900, .id = 3});
  queue.insert({.account = 5, .order = 30, .id = 4});
  queue.insert({.account = 5, .order = 5, .id = 5});
  EXPECT_EQ(walked(queue, TenantAccounts(), 10), (std::vector<std::uint64_t>{3, 5, 1, 4, 2}));
}

TEST(TurnWalk, EveryRowIsWalkedOnceWhateverTheTenants) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    NodePool nodes;
    TurnQueue queue(&nodes);
    const std::uint64_t n = random() % 200;
    for (std::uint64_t id = 1; id <= n; ++id)
      queue.insert({.account = static_cast<std::uint32_t>(random() % 7),
                    .is_calm = static_cast<std::uint32_t>(random() % 2),
                    .order = static_cast<std::int64_t>(random() % 50),
                    .id = id});
    auto ids = walked(queue, TenantAccounts(), 1 + static_cast<std::uint32_t>(random() % 20));
    std::ranges::sort(ids);
    ASSERT_EQ(ids.size(), n);
    for (std::uint64_t id = 1; id <= n; ++id)
      ASSERT_EQ(ids[id - 1], id);
  }
}

}  // namespace
}  // namespace luna::test
