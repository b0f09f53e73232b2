// Names of one table that stand in another: devices of models, models of stages, the draft model.
#pragma once

#include "core/config/settings.hpp"
#include "core/config/toml_document.hpp"

#include <string>
#include <vector>

namespace luna::config {

/// Something that is wrong, and where.
struct Found {
  Position at;
  std::string message;
};

/// Where the records of the settings stand in the tree, which they do not outlive.
struct SettingsNodes {
  bool has_cluster = false;
  std::vector<const TomlNode*> devices;  ///< as Settings::devices
  std::vector<const TomlNode*> models;
  std::vector<const TomlNode*> stages;
  const TomlNode* speculation = nullptr;  ///< if there is one
};

/// Finds what every name refers to, and completes the models by it: paths, devices of workers.
///
/// Returns  everything that is wrong, in no order
std::vector<Found> check_links(Settings& settings, const SettingsNodes& nodes);

}  // namespace luna::config
