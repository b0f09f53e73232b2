#include "core/app/role_balance.hpp"

#include "core/base/log.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace luna::app {
namespace {

/// How often loads are looked at. Two windows and a few more: a change is followed within seconds.
constexpr std::chrono::milliseconds kWindow{1000};

/// What the policy wishes.
struct Wishes {
  std::vector<std::pair<std::string, double>> weights;  // by role
  bool follows_load = false;
};

Wishes wishes_of(const plugin::Instance<luna_scheduler_if>& scheduler) {
  Wishes wishes;
  if (scheduler->head.ext == nullptr) return wishes;
  const auto* table = static_cast<const luna_role_weights_if*>(
      scheduler->head.ext(scheduler.self(), LUNA_EXT_ROLE_WEIGHTS));
  if (table == nullptr) return wishes;
  const luna_role_weight* rows = nullptr;
  const std::uint32_t n = table->weights(scheduler.self(), &rows);
  for (const luna_role_weight& row : std::span(rows, n))
    wishes.weights.emplace_back(std::string(view(row.role)), row.weight);
  wishes.follows_load = table->follows_load(scheduler.self()) != 0;
  return wishes;
}

Error wrong(Code code, std::string text) {
  return {code, "role_weights and dynamic_roles: " + std::move(text)};
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

Result<void> check_roles(const Wishes& wishes, const config::Settings& settings) {
  for (const auto& [role, weight] : wishes.weights) {
    const auto is_it = [&wanted = role](const config::StageSettings& stage) {
      return stage.role == wanted;
    };
    const auto stage = std::ranges::find_if(settings.stages, is_it);
    if (stage == settings.stages.end())
      return wrong(Code::invalid_argument, "no [[stage]] has the role '" + role + "'");
    if (!(weight > 0.0))
      return wrong(Code::invalid_argument, "the weight of '" + role + "' must be above 0");
    if (std::ranges::none_of(settings.stages, [&](const config::StageSettings& one) {
          return is_it(one) && one.model.has_value();
        }))
      logger("app")->warn("a role without a model takes nothing of a device role={}", role);
  }
  return {};
}

/// A role's weight; all are equal where none is named.
std::optional<double> weight_of(const Wishes& wishes, const std::string& role) {
  if (wishes.weights.empty()) return 1.0;
  const auto found = std::ranges::find(wishes.weights, role, [](const auto& w) { return w.first; });
  if (found == wishes.weights.end()) return std::nullopt;
  return found->second;
}

/// Roles of the stages that use the model, each once.
std::vector<std::string> roles_of(const config::Settings& settings, const std::string& model) {
  std::vector<std::string> roles;
  for (const config::StageSettings& stage : settings.stages)
    if (stage.model == model && std::ranges::find(roles, stage.role) == roles.end())
      roles.push_back(stage.role);
  return roles;
}

}  // namespace

Result<std::unique_ptr<RoleBalance>> RoleBalance::create(
    const config::Settings& settings, const plugin::Instance<luna_scheduler_if>& scheduler) {
  const Wishes wishes = wishes_of(scheduler);
  if (wishes.weights.empty() && !wishes.follows_load) return std::unique_ptr<RoleBalance>();
  if (settings.speculation.method == config::SpeculationMethod::draft)
    return wrong(
        Code::unsupported,
        "beside a draft model there are none: its steps belong to the model it drafts for");
  LUNA_TRY(check_roles(wishes, settings));
  std::unique_ptr<RoleBalance> balance(new RoleBalance(wishes.follows_load));
  for (const config::ModelSettings& model : settings.models) {
    Member member{model.name, {}, 0.0, false};
    for (const std::string& role : roles_of(settings, model.name)) {
      const double weight = weight_of(wishes, role).value_or(0.0);
      member.roles.emplace_back(role, weight);
      member.weight += weight;
    }
    if (member.roles.empty()) continue;
    if (model.has_joined_devices)
      return wrong(Code::unsupported,
                   "model " + model.name + " lies on the devices of workers, which one model has");
    balance->add(model, std::move(member));
  }
  LUNA_TRY(balance->check());
  balance->settle();
  return balance;
}

void RoleBalance::add(const config::ModelSettings& model, Member member) {
  std::vector<std::string> devices = model.devices;
  std::ranges::sort(devices);
  const auto same = std::ranges::find(sharings_, devices, &Sharing::devices);
  if (same != sharings_.end()) {
    same->members.push_back(std::move(member));
    return;
  }
  Sharing& own = sharings_.emplace_back();
  own.devices = std::move(devices);
  own.members.push_back(std::move(member));
}

Result<void> RoleBalance::check() const {
  bool any = false;
  for (const Sharing& sharing : sharings_) {
    const std::string devices = list_of(sharing.devices);
    for (const Sharing& other : sharings_) {
      const bool overlap = std::ranges::any_of(other.devices, [&](const std::string& device) {
        return std::ranges::binary_search(sharing.devices, device);
      });
      if (&other != &sharing && overlap)
        return wrong(Code::invalid_argument,
                     "models " + sharing.members.front().model + " (" + devices + ") and " +
                         other.members.front().model + " (" + list_of(other.devices) +
                         ") share some of their devices: they must share all or none");
    }
    if (sharing.members.size() < 2) continue;
    any = true;
    if (sharing.members.size() > engine::DeviceTurns::kMembersMax)
      return wrong(Code::unsupported,
                   std::to_string(sharing.members.size()) + " models share " + devices +
                       ": at most " + std::to_string(engine::DeviceTurns::kMembersMax) + " can");
    for (const Member& member : sharing.members)
      if (!(member.weight > 0.0))
        return wrong(Code::invalid_argument,
                     "model " + member.model + " shares " + devices +
                         ", and none of its roles has a weight: name one");
  }
  if (any) return {};
  return wrong(Code::unsupported,
               "no two models of stages lie on the same devices, so that roles have nothing to "
               "share; leave them out");
}

void RoleBalance::settle() {
  std::erase_if(sharings_, [](const Sharing& sharing) { return sharing.members.size() < 2; });
  for (Sharing& sharing : sharings_) {
    std::vector<double> weights;
    for (Member& member : sharing.members) {
      for (auto& [role, part] : member.roles)
        part /= member.weight;
      weights.push_back(member.weight);
    }
    sharing.shares.emplace(std::move(weights));
    for (std::size_t m = 0; m < sharing.members.size(); ++m)
      sharing.members[m].weight = sharing.shares->weights()[m];
    sharing.turns = std::make_unique<engine::DeviceTurns>(sharing.shares->weights());
    sharing.with_work.resize(sharing.members.size());
  }
}

RoleBalance::Sharing* RoleBalance::sharing_of(const std::string& model) {
  for (Sharing& sharing : sharings_)
    if (std::ranges::find(sharing.members, model, &Member::model) != sharing.members.end())
      return &sharing;
  return nullptr;
}

void RoleBalance::hold_back(const std::string& model, std::span<model::Device* const> devices) {
  const Sharing* const sharing = sharing_of(model);
  if (sharing == nullptr) return;
  double others = 0.0;
  for (const Member& member : sharing->members)
    if (member.model != model && !member.is_loaded) others += member.weight;
  for (model::Device* const device : devices)
    device->hold_back(
        static_cast<std::uint64_t>(others * static_cast<double>(device->memory_bytes())));
}

void RoleBalance::note_loaded(const std::string& model, std::span<model::Device* const> devices) {
  Sharing* const sharing = sharing_of(model);
  if (sharing == nullptr) return;
  std::ranges::find(sharing->members, model, &Member::model)->is_loaded = true;
  for (model::Device* const device : devices)
    device->hold_back(0);
}

std::optional<engine::DeviceTurn> RoleBalance::turn_of(const std::string& model) {
  Sharing* const sharing = sharing_of(model);
  if (sharing == nullptr) return std::nullopt;
  const auto member = std::ranges::find(sharing->members, model, &Member::model);
  return engine::DeviceTurn{sharing->turns.get(),
                            static_cast<std::uint32_t>(member - sharing->members.begin())};
}

void RoleBalance::start() {
  if (!follows_load_) return;
  thread_.emplace(kWindow, [this] {
    for (Sharing& sharing : sharings_)
      follow(sharing);
  });
}

void RoleBalance::follow(Sharing& sharing) {
  std::vector<double> loads;
  for (std::uint32_t m = 0; m < sharing.turns->n_members(); ++m) {
    const Nanoseconds now = sharing.turns->time_with_work(m);
    const Nanoseconds in_window = now - std::exchange(sharing.with_work[m], now);
    loads.push_back(std::chrono::duration<double>(in_window) / kWindow);
  }
  if (!sharing.shares->follow(loads)) return;
  for (std::uint32_t m = 0; m < sharing.turns->n_members(); ++m) {
    sharing.turns->set_weight(m, sharing.shares->weights()[m]);
    logger("app")->debug("weight of a model follows its load model={} weight={:.2f} load={:.2f}",
                         sharing.members[m].model,
                         sharing.shares->weights()[m],
                         loads[m]);
  }
}

std::vector<telemetry::RoleSource> RoleBalance::sources() const {
  std::vector<telemetry::RoleSource> sources;
  for (const Sharing& sharing : sharings_)
    for (std::uint32_t m = 0; m < sharing.members.size(); ++m)
      for (const auto& [role, part] : sharing.members[m].roles)
        sources.push_back(
            {role, sharing.members[m].model, [turns = sharing.turns.get(), m, share = part] {
               return turns->weight(m) * share;
             }});
  return sources;
}

}  // namespace luna::app
