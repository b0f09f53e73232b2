// Rows that wait for prompt to be computed, in the order in which they are served, kept from plan
// to plan: a row that comes or goes costs its own place, not a sort of all.
#pragma once

#include "plugins/scheduler_rules/tenant_accounts.hpp"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <set>
#include <vector>

namespace luna::scheduler_flowsplit {

/// Nodes of equal size for ordered sets: what goes is used again, so that nothing is allocated once
/// there were as many as there ever are. [step], owned by the policy; outlives its sets.
class NodePool final : public std::pmr::memory_resource {
 public:
  /// Makes nodes ahead, so many in all.
  void reserve(std::size_t n_nodes) {
    if (n_nodes <= n_nodes_) return;
    const std::size_t n = n_nodes - n_nodes_;
    chunks_.push_back(std::make_unique<Node[]>(n));
    free_.reserve(n_nodes);
    for (std::size_t i = n; i-- > 0;)
      free_.push_back(&chunks_.back()[i]);
    n_nodes_ = n_nodes;
  }

 private:
  // A set's node: three pointers, a colour, a key of four words.
  struct alignas(std::max_align_t) Node {
    std::byte bytes[80];
  };
  void* do_allocate(std::size_t n_bytes, std::size_t /*alignment*/) override {
    if (n_bytes > sizeof(Node)) return ::operator new(n_bytes);
    if (free_.empty()) reserve(std::max<std::size_t>(2 * n_nodes_, kNodesMin));
    Node* node = free_.back();
    free_.pop_back();
    return node;
  }
  void do_deallocate(void* p, std::size_t n_bytes, std::size_t /*alignment*/) override {
    if (n_bytes > sizeof(Node)) return ::operator delete(p);
    free_.push_back(static_cast<Node*>(p));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  static constexpr std::size_t kNodesMin = 256;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::vector<Node*> free_;
  std::size_t n_nodes_ = 0;
};

/// A row's place in a queue: within its tenant first those whose deadline presses, the earliest
/// first, then by seniority.
struct QueueKey {
  std::uint32_t account = 0;
  std::uint32_t is_calm = 1;  ///< 0: its deadline presses
  std::int64_t order = 0;     ///< the deadline of those that press, the rank of the others
  std::uint64_t id = 0;

  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};
using TurnQueue = std::pmr::set<QueueKey>;

/// Of two rows: by their tenants' turns, then as within a tenant.
inline bool comes_before(std::uint64_t turn_a,
                         const QueueKey& a,
                         std::uint64_t turn_b,
                         const QueueKey& b) {
  if (turn_a != turn_b) return turn_a < turn_b;
  if (a.is_calm != b.is_calm) return a.is_calm < b.is_calm;
  return a.order != b.order ? a.order < b.order : a.id < b.id;
}

/// Walks a queue in its order: among tenants the one that was served least goes first, where what
/// it was given on the walk counts as served. Costs the tenants once and then a little a row,
/// however many wait behind. [step], reused from plan to plan.
///
/// Source  start-time fair queueing; the accounts are those of TenantAccounts
class TurnWalk {
 public:
  void reserve() { heads_.reserve(scheduling::TenantAccounts::kAccounts); }

  /// The queue does not change during the walk.
  void begin(const TurnQueue& queue, const scheduling::TenantAccounts& accounts) {
    heads_.clear();
    for (auto place = queue.begin(); place != queue.end();) {
      heads_.push_back({accounts.served(place->account), place});
      const QueueKey next_account{
          .account = place->account + 1, .is_calm = 0, .order = INT64_MIN, .id = 0};
      place = queue.lower_bound(next_account);
    }
    end_ = queue.end();
    std::make_heap(heads_.begin(), heads_.end(), comes_later);
  }
  [[nodiscard]] bool is_over() const { return heads_.empty(); }
  /// The row whose turn it is, and what its tenant has been served when it comes.
  [[nodiscard]] const QueueKey& key() const { return *heads_.front().place; }
  [[nodiscard]] std::uint64_t turn() const { return heads_.front().turn; }
  /// Goes on to the next; its tenant's next row stands n_tokens behind.
  void next(std::uint32_t n_tokens) {
    std::pop_heap(heads_.begin(), heads_.end(), comes_later);
    Head& head = heads_.back();
    const std::uint32_t account = head.place->account;
    ++head.place;
    if (head.place == end_ || head.place->account != account) {
      heads_.pop_back();
      return;
    }
    head.turn += n_tokens;
    std::push_heap(heads_.begin(), heads_.end(), comes_later);
  }

 private:
  struct Head {
    std::uint64_t turn;  // what its tenant has been served
    TurnQueue::const_iterator place;
  };
  static bool comes_later(const Head& a, const Head& b) {
    return comes_before(b.turn, *b.place, a.turn, *a.place);
  }

  std::vector<Head> heads_;  // a heap: one a tenant
  TurnQueue::const_iterator end_;
};

}  // namespace luna::scheduler_flowsplit
