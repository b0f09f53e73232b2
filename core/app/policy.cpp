#include "core/app/policy.hpp"

#include <string>
#include <utility>

namespace luna::app {
namespace {

config::RawGroup settings_of(const config::Settings& settings, const std::string& policy) {
  const config::SchedulerSettings& scheduler = settings.scheduler;
  const auto found = scheduler.policies.find(policy);
  if (found != scheduler.policies.end()) return found->second;
  config::RawGroup empty;
  empty.file = settings.file;
  empty.table = "scheduler." + policy;
  return empty;
}

}  // namespace

config::RawGroup policy_settings(const config::Settings& settings) {
  return settings_of(settings, settings.scheduler.policy);
}

Result<plugin::Instance<luna_scheduler_if>> make_policy(plugin::Catalog& catalog,
                                                        const config::Settings& settings) {
  return catalog.create<luna_scheduler_if>(settings.scheduler.policy, policy_settings(settings));
}

Result<std::vector<plugin::Instance<luna_scheduler_if>>> make_fallbacks(
    plugin::Catalog& catalog, const config::Settings& settings) {
  std::vector<plugin::Instance<luna_scheduler_if>> fallbacks;
  for (const std::string& name : settings.scheduler.fallback) {
    LUNA_TRY(auto fallback, catalog.create<luna_scheduler_if>(name, settings_of(settings, name)));
    fallbacks.push_back(std::move(fallback));
  }
  return fallbacks;
}

}  // namespace luna::app
