// What a recording of plans says of its origin, as TOML that people can read.
#pragma once

#include "core/config/settings.hpp"

#include <luna/result.hpp>

#include <string>
#include <string_view>

namespace luna::app {

/// Whose plans they are.
struct PlanText {
  std::string model;
  std::string policy;          ///< as the configuration named it
  std::string plugin_version;  ///< of the policy's plugin
  config::RawGroup settings;   ///< the policy's, as they were given
};

std::string print_plan_text(const PlanText& text);
/// file    for messages
/// Errors  corrupt: not such a text
Result<PlanText> parse_plan_text(std::string_view text, const std::string& file);

}  // namespace luna::app
