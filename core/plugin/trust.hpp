// What an operator asks of a plugin's file before any code of it runs.
#pragma once

#include "core/config/settings.hpp"

#include <luna/plugin.h>
#include <luna/result.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace luna::plugin {

/// The terms that files are held to. Accidents are what they find: a plugin that was built anew, a
/// copy of another release, one that nobody checked. Plugins are code of the process all the same,
/// and who can write the folder can write what is asked for.
struct Trust {
  bool require_checked = false;
  std::vector<config::PluginPin> pins;
};

Trust trust_of(const config::PluginSettings& settings);

/// Reads the whole file if anything is asked of it; else nothing. [start-up]
///
/// file    absolute
/// Errors  unsupported: the pin that it does not have; no record, a broken one, one of another
///         file, version or contract, one that did not pass; each with what to do. io: the file
Result<void> check_trust(const std::filesystem::path& file,
                         const luna_note& note,
                         const Trust& trust);

/// "pinned", "checked", "pinned, checked", or "": what a plugin is held to.
std::string describe_trust(const luna_note& note, const Trust& trust);

}  // namespace luna::plugin
