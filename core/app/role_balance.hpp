// Models of roles that share devices: what each gets of their memory and their time.
#pragma once

#include "core/app/periodic_thread.hpp"
#include "core/config/settings.hpp"
#include "core/engine/device_turns.hpp"
#include "core/engine/role_shares.hpp"
#include "core/model/device.hpp"
#include "core/plugin/instance.hpp"
#include "core/telemetry/metrics.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::app {

/// By the weights of roles that the scheduler's settings wish. Memory is divided when models are
/// loaded and stays so; steps take turns by weights that stay, or follow the load. Owned by App;
/// outlives the models. [start-up] unless tagged otherwise.
class RoleBalance {
 public:
  /// What the policy wishes for the models of the settings; null: it wishes nothing.
  ///
  /// Errors  invalid_argument: a role that is no stage's, a model among those that share devices
  ///         without a weight, devices that are shared in part; unsupported: nothing is shared,
  ///         models on devices of workers or on several groups, a draft model
  static Result<std::unique_ptr<RoleBalance>> create(
      const config::Settings& settings, const plugin::Instance<luna_scheduler_if>& scheduler);

  /// Leaves to the models that come later what is theirs of the devices. Before each load.
  void hold_back(const std::string& model, std::span<model::Device* const> devices);
  /// The model has been loaded: it has what it needs, and may leave more than the others' part.
  void note_loaded(const std::string& model, std::span<model::Device* const> devices);
  /// Of a model that shares devices.
  [[nodiscard]] std::optional<engine::DeviceTurn> turn_of(const std::string& model);
  /// Weights follow the load from now on, where that is wished.
  void start();
  /// What each role has now; lives as long as this.
  [[nodiscard]] std::vector<telemetry::RoleSource> sources() const;

 private:
  /// A model that shares devices with the others of its set.
  struct Member {
    std::string model;
    std::vector<std::pair<std::string, double>> roles;  // and their parts of the model's weight
    double weight = 0.0;
    bool is_loaded = false;
  };
  /// Models on the same devices.
  struct Sharing {
    std::vector<std::string> devices;  // ascending
    std::vector<Member> members;
    std::unique_ptr<engine::DeviceTurns> turns;
    std::optional<engine::RoleShares> shares;
    std::vector<Nanoseconds> with_work;  // of members, when looked at last
  };

  explicit RoleBalance(bool follows_load) : follows_load_(follows_load) {}
  void add(const config::ModelSettings& model, Member member);
  Result<void> check() const;
  void settle();
  void follow(Sharing& sharing);
  [[nodiscard]] Sharing* sharing_of(const std::string& model);

  const bool follows_load_;
  std::vector<Sharing> sharings_;
  std::optional<PeriodicThread> thread_;  // last: it uses the others
};

}  // namespace luna::app
