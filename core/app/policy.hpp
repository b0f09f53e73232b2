// The scheduling policy that a configuration names.
#pragma once

#include "core/config/settings.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/instance.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <vector>

namespace luna::app {

/// Its table of the TOML; where there is none, an empty one in its place.
config::RawGroup policy_settings(const config::Settings& settings);

/// An instance of its own: policies keep state. [start-up]
/// Errors  of the catalog: no such plugin, settings that it refuses
Result<plugin::Instance<luna_scheduler_if>> make_policy(plugin::Catalog& catalog,
                                                        const config::Settings& settings);

/// Those that the configuration names as its fallbacks, likewise.
Result<std::vector<plugin::Instance<luna_scheduler_if>>> make_fallbacks(
    plugin::Catalog& catalog, const config::Settings& settings);

}  // namespace luna::app
