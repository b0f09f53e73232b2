// Which group of devices a request goes to: the three classic routers, as pure classes.
#pragma once

#include <luna/plan.hpp>
#include <luna/snapshot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace luna {

/// A group as a router sees it.
struct GroupLoad {
  double n_tokens = 0.0;      ///< of work that its rows have left, to their ends
  std::uint32_t n_found = 0;  ///< tokens of the request's prompt in its prefix cache
  bool is_open = true;        ///< it takes the request
};

/// Each group in its turn.
class RoundRobin {
 public:
  /// Returns  a place in `groups`; none: no group is open
  std::optional<std::size_t> choose(std::span<const GroupLoad> groups) {
    for (std::size_t n = 0; n < groups.size(); ++n) {
      const std::size_t g = (next_ + n) % groups.size();
      if (!groups[g].is_open) continue;
      next_ = g + 1;
      return g;
    }
    return std::nullopt;
  }

 private:
  std::size_t next_ = 0;
};

/// The group that has least work left; of equal ones the first.
class LeastOutstanding {
 public:
  [[nodiscard]] static std::optional<std::size_t> choose(std::span<const GroupLoad> groups) {
    std::optional<std::size_t> best;
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (groups[g].is_open && (!best || groups[g].n_tokens < groups[*best].n_tokens)) best = g;
    return best;
  }
};

/// The group whose prefix cache has most of the prompt, as long as it has not so much more work
/// left than the least loaded one; else that one.
class StickyPrefix {
 public:
  explicit StickyPrefix(double n_tokens_lead_max) : n_tokens_lead_max_(n_tokens_lead_max) {}

  [[nodiscard]] std::optional<std::size_t> choose(std::span<const GroupLoad> groups) const {
    const std::optional<std::size_t> least = LeastOutstanding::choose(groups);
    if (!least) return std::nullopt;
    std::size_t best = *least;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const GroupLoad& group = groups[g];
      if (!group.is_open || group.n_found == 0) continue;
      if (group.n_tokens > groups[*least].n_tokens + n_tokens_lead_max_) continue;
      const bool is_better =
          group.n_found > groups[best].n_found ||
          (group.n_found == groups[best].n_found && group.n_tokens < groups[best].n_tokens);
      if (is_better) best = g;
    }
    return best;
  }

 private:
  double n_tokens_lead_max_;
};

/// Gives waiting rows to groups by one of the routers. A value; [step].
class GroupRouter {
 public:
  /// The least work left.
  GroupRouter() = default;
  /// name               "round_robin", "sticky"; any other: "least_outstanding"
  /// n_tokens_lead_max  of StickyPrefix
  GroupRouter(std::string_view name, double n_tokens_lead_max) {
    if (name == "round_robin") router_ = RoundRobin{};
    if (name == "sticky") router_ = StickyPrefix(n_tokens_lead_max);
  }

  /// Assigns the rows that belong to no group and are in no plan yet, in order of arrival. Rows
  /// that no group could ever hold are left.
  void assign_waiting(const Snapshot& rows, Plan& out) {
    loads_.clear();
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      if (out.group_of(i) != nullptr || out.is_planned(i)) continue;
      if (loads_.empty()) sum_loads(rows, out);
      assign(i, rows, out);
    }
  }

 private:
  void sum_loads(const Snapshot& rows, const Plan& out) {
    loads_.resize(out.groups().size());
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i)
      if (const GroupBooks* group = out.group_of(i); group != nullptr)
        loads_[static_cast<std::size_t>(group - out.groups().data())].n_tokens +=
            rows[i].n_remaining();
  }
  void assign(std::uint32_t i, const Snapshot& rows, Plan& out) {
    const std::span<const GroupBooks> groups = out.groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const luna_prefix_row* const prefix = rows.prefix(i, groups[g].device);
      loads_[g].n_found = prefix != nullptr ? prefix->n_tokens : 0;
      loads_[g].is_open = out.can_assign(i, groups[g]);
    }
    const std::optional<std::size_t> chosen = std::visit(
        [this](auto& router) { return router.choose(std::span<const GroupLoad>(loads_)); },
        router_);
    if (!chosen || !out.assign(i, groups[*chosen].device)) return;
    loads_[*chosen].n_tokens += rows[i].n_remaining() - loads_[*chosen].n_found;
  }

  std::variant<LeastOutstanding, RoundRobin, StickyPrefix> router_;
  std::vector<GroupLoad> loads_;  // by group
};

}  // namespace luna
