#include "core/app/policy.hpp"

namespace luna::app {

config::RawGroup policy_settings(const config::Settings& settings) {
  const config::SchedulerSettings& scheduler = settings.scheduler;
  const auto found = scheduler.policies.find(scheduler.policy);
  if (found != scheduler.policies.end()) return found->second;
  config::RawGroup empty;
  empty.file = settings.file;
  empty.table = "scheduler." + scheduler.policy;
  return empty;
}

Result<plugin::Instance<luna_scheduler_if>> make_policy(plugin::Catalog& catalog,
                                                        const config::Settings& settings) {
  return catalog.create<luna_scheduler_if>(settings.scheduler.policy, policy_settings(settings));
}

}  // namespace luna::app
