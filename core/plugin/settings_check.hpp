// Every plugin that a configuration names, loaded and queried, and its settings checked. Nothing
// is started or created.
#pragma once

#include "core/config/settings.hpp"
#include "core/plugin/catalog.hpp"

#include <luna/result.hpp>

#include <vector>

namespace luna::plugin {

/// Checks backends, roles, the policy and the transport with the keys that belong to them; and the
/// [scheduler.<policy>] and [transport.<name>] tables of every installed plugin, so that changing
/// one word swaps it. `data = "auto"` names no transport. Each fallback must be another policy, and
/// each pin the pin of a plugin that is there. [start-up]
///
/// Returns  everything that is wrong; each message carries file:line:column
std::vector<Error> check_settings(const config::Settings& settings, Catalog& catalog);

/// The pins alone.
///
/// file  for messages
std::vector<Error> check_pins(const config::PluginSettings& settings,
                              const std::string& file,
                              const Catalog& catalog);

}  // namespace luna::plugin
