// The C++ side of abi/scheduler.h: a policy is a class with one function, plan(). Header-only.
//
//   struct Srf final : luna::Scheduler {          // shortest remaining work first
//     double aging;
//     explicit Srf(const luna::Settings& settings) : aging(settings.number("aging")) {}
//     void plan(const luna::Snapshot& rows, luna::Plan& out) override {
//       auto& order = out.order();
//       std::ranges::sort(order, {}, [&](std::uint32_t i) {  // a stable sort would allocate
//         return std::pair(rows[i].n_remaining() - aging * rows[i].waited_ms(), i);
//       });
//       for (const std::uint32_t i : order)
//         if (!out.take(i)) break;
//     }
//   };
//   LUNA_SCHEDULER(Srf, "com.example.srf", "srf", "1.0.0", "Shortest remaining work first.",
//                  luna::param(LUNA_TYPE_FLOAT, "aging", "0.5", "0", "100", nullptr,
//                              "Tokens forgiven per millisecond of waiting."))
#pragma once

#include <luna/group_choice.hpp>
#include <luna/group_view.hpp>
#include <luna/plan.hpp>
#include <luna/plugin.hpp>
#include <luna/snapshot.hpp>

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace luna {

/// A scheduling policy. An interface: derive, take `const Settings&` (or nothing) in the
/// constructor, and name the class in LUNA_SCHEDULER. One whose settings may be wrong together has
/// `static Result<std::unique_ptr<Class>> create(const Settings&)` instead.
///
/// Where several groups of devices hold copies of the model, the base class gives each waiting row
/// to one of them (a class with `static GroupRouter router(const Settings&)` says how; else: the
/// least work left), and each group has a policy of its own, a copy, which sees the rows and
/// devices of that group only. A class with `static constexpr bool kPlansAllGroups = true` does all
/// of that itself: one plan() sees all rows, and assigns them; what it leaves, the base class
/// assigns, unless `static constexpr bool kHoldsBack = true` says that it shall wait.
///
/// `static constexpr bool kSlices = true` lets requests in that are larger than a group, which the
/// policy then has to SLICE; `bool slices() const` beside it says whether this instance does. A
/// class may tell what its reason codes mean: `static constexpr luna_reason kReasons[]`.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Chooses the work of one step. [step]
  virtual void plan(const Snapshot& rows, Plan& out) = 0;
};

/// What models of roles shall get of devices that they share: see luna_role_weights_if. A policy
/// class that has `static Result<RoleWeights> role_weights(const Settings&)` says it.
struct RoleWeights {
  std::vector<std::pair<std::string, double>> weights;  ///< by role
  bool follows_load = false;
};

namespace detail {

/// As the C table tells them.
class RoleWeightRows {
 public:
  explicit RoleWeightRows(RoleWeights weights = {}) : weights_(std::move(weights)) {
    for (const auto& [role, weight] : weights_.weights)
      rows_.push_back({to_abi(role), weight});
  }
  RoleWeightRows(RoleWeightRows&&) noexcept = default;
  RoleWeightRows& operator=(RoleWeightRows&&) noexcept = default;
  RoleWeightRows(const RoleWeightRows&) = delete;
  RoleWeightRows& operator=(const RoleWeightRows&) = delete;

  [[nodiscard]] const std::vector<luna_role_weight>& rows() const { return rows_; }
  [[nodiscard]] bool follows_load() const { return weights_.follows_load; }

 private:
  RoleWeights weights_;
  std::vector<luna_role_weight> rows_;  // point into weights_, whose elements stay where they are
};

}  // namespace detail

/// The C table's instance of policy T.
template <typename T>
class SchedulerInstance {
 public:
  static Result<std::unique_ptr<SchedulerInstance>> create(Host /*host*/,
                                                           const Settings& settings) {
    std::unique_ptr<T> policy;
    if constexpr (requires { T::create(settings); }) {
      LUNA_TRY(policy, T::create(settings));
    } else if constexpr (std::is_constructible_v<T, const Settings&>) {
      policy = std::make_unique<T>(settings);
    } else {
      policy = std::make_unique<T>();
    }
    GroupRouter router;
    if constexpr (requires { T::router(settings); }) router = T::router(settings);
    auto made = std::make_unique<SchedulerInstance>(std::move(policy), std::move(router));
    if constexpr (kHasRoleWeights) {
      LUNA_TRY(RoleWeights weights, T::role_weights(settings));
      made->role_weights_ = detail::RoleWeightRows(std::move(weights));
    }
    return made;
  }
  explicit SchedulerInstance(std::unique_ptr<T> policy, GroupRouter router = {})
      : policy_(std::move(policy)), router_(std::move(router)) {
    if constexpr (kTellsSlices) traits_.flags = policy_->slices() ? LUNA_SCHEDULER_SLICES : 0;
  }

  /// self  null: what is true of every instance
  static const void* ext([[maybe_unused]] void* self, [[maybe_unused]] const char* id) noexcept {
    if constexpr (kTellsSlices)
      if (self != nullptr && std::string_view(id) == LUNA_EXT_SCHEDULER_TRAITS)
        return &static_cast<SchedulerInstance*>(self)->traits_;
    if constexpr (kHasRoleWeights) {
      static constexpr luna_role_weights_if kTable = {
          sizeof(luna_role_weights_if), 0, role_weights, follows_load};
      if (std::string_view(id) == LUNA_EXT_ROLE_WEIGHTS) return &kTable;
    }
    if constexpr (requires { T::kReasons; }) {
      static constexpr luna_reasons kTable = {
          sizeof(luna_reasons), static_cast<std::uint32_t>(std::size(T::kReasons)), T::kReasons};
      if (std::string_view(id) == LUNA_EXT_REASONS) return &kTable;
    }
    return nullptr;
  }

  static luna_status plan(void* self,
                          const luna_snapshot* snapshot,
                          luna_plan* plan,
                          luna_err* err) noexcept {
    auto* instance = static_cast<SchedulerInstance*>(self);
    return fenced(err, [&]() -> luna_status {
      instance->plan_all(*snapshot, *plan);
      return LUNA_OK;
    });
  }

 private:
  static constexpr bool kHasRoleWeights = requires(const Settings& settings) {
    T::role_weights(settings);
  };
  static std::uint32_t role_weights(void* self, const luna_role_weight** weights) noexcept {
    const auto& rows = static_cast<SchedulerInstance*>(self)->role_weights_.rows();
    *weights = rows.data();
    return static_cast<std::uint32_t>(rows.size());
  }
  static std::uint32_t follows_load(void* self) noexcept {
    return static_cast<SchedulerInstance*>(self)->role_weights_.follows_load() ? 1 : 0;
  }

  static constexpr bool kPlansAllGroups = [] {
    if constexpr (requires { T::kPlansAllGroups; }) return T::kPlansAllGroups;
    return false;
  }();
  static constexpr bool kHoldsBack = [] {
    if constexpr (requires { T::kHoldsBack; }) return T::kHoldsBack;
    return false;
  }();
  static constexpr bool kTellsSlices = requires(const T& policy) { policy.slices(); };
  static_assert(kPlansAllGroups || std::is_copy_constructible_v<T>,
                "each group of devices has a copy of the policy");

  /// A group's own policy, and the tables and the plan as it sees them.
  struct OfGroup {
    std::uint32_t group = 0;
    std::unique_ptr<T> policy;
    GroupView view;
    Plan plan;
  };

  void plan_all(const luna_snapshot& snapshot, luna_plan& out) {
    plan_.begin(&snapshot, &out);
    if constexpr (kPlansAllGroups) {
      policy_->plan(Snapshot(&snapshot), plan_);
      plan_.end();
      if constexpr (!kHoldsBack) router_.assign_waiting(Snapshot(&snapshot), plan_);
    } else if (plan_.groups().size() == 1) {
      of_group(Snapshot(&snapshot).device(0).group).policy->plan(Snapshot(&snapshot), plan_);
      plan_.end();
    } else {
      router_.assign_waiting(Snapshot(&snapshot), plan_);
      for (const GroupBooks& books : plan_.groups())
        if (books.n_steps_free > 0) plan_group(snapshot, books, out);
    }
  }

  void plan_group(const luna_snapshot& snapshot, const GroupBooks& books, luna_plan& out) {
    OfGroup& own = of_group(Snapshot(&snapshot).device(books.first_row).group);
    if (!own.view.open(snapshot, plan_, books, out)) return;
    own.plan.begin(&own.view.snapshot(), &own.view.plan(), plan_.n_reqs_max());
    own.policy->plan(Snapshot(&own.view.snapshot()), own.plan);
    own.plan.end();
    own.view.close(out);
  }

  OfGroup& of_group(std::uint32_t group) {
    for (const auto& own : groups_)
      if (own->group == group) return *own;
    groups_.push_back(std::make_unique<OfGroup>());
    OfGroup& own = *groups_.back();
    own.group = group;
    if constexpr (!kPlansAllGroups) own.policy = std::make_unique<T>(*policy_);
    return own;
  }

  luna_scheduler_traits traits_{sizeof(luna_scheduler_traits), 0};
  std::unique_ptr<T> policy_;  // where each group has its own: as it was made
  GroupRouter router_;
  detail::RoleWeightRows role_weights_;
  Plan plan_;
  std::vector<std::unique_ptr<OfGroup>> groups_;
};

template <typename T>
constexpr luna_scheduler_if make_scheduler_table(std::span<const luna_param> params) {
  luna_if head = make_head<SchedulerInstance<T>, luna_scheduler_if>(params);
  head.ext = SchedulerInstance<T>::ext;
  if constexpr (requires { T::kSlices; }) head.flags |= T::kSlices ? LUNA_SCHEDULER_SLICES : 0;
  if constexpr (requires { T::kReasons; }) head.flags |= LUNA_SCHEDULER_REASONS;
  return {head, SchedulerInstance<T>::plan};
}

/// The settings named in LUNA_SCHEDULER as a table of static storage; none is fine.
template <typename... Params>
constexpr std::array<luna_param, sizeof...(Params)> scheduler_params(Params... params) {
  return {params...};
}

}  // namespace luna

/// LUNA_SCHEDULER(Class, "reverse.dns.id", "short name", "version", "One sentence.", params...):
/// makes the shared library a scheduler plugin. At namespace scope, once a plugin.
#define LUNA_SCHEDULER(CLASS, ID, NAME, VERSION, SUMMARY, ...)                         \
  static constexpr auto luna_scheduler_params = ::luna::scheduler_params(__VA_ARGS__); \
  static constexpr luna_scheduler_if luna_scheduler_table =                            \
      ::luna::make_scheduler_table<CLASS>(luna_scheduler_params);                      \
  LUNA_DEFINE_PLUGIN(ID, NAME, VERSION, SUMMARY, LUNA_KIND_SCHEDULER, luna_scheduler_table)
