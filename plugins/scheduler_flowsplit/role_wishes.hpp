// role_weights and dynamic_roles: what models of roles shall get of devices that they share.
#pragma once

#include <luna/scheduler.hpp>

#include <charconv>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace luna::scheduler_flowsplit {

/// Errors  invalid_argument: a weight that is no number in (0, 1]
inline Result<RoleWeights> role_weights_of(const Settings& settings) {
  RoleWeights wished;
  wished.follows_load = settings.flag("dynamic_roles");
  const std::vector<std::string> entries = settings.list("role_weights");
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    const std::string& text = entries[i + 1];
    double weight = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (!is_number || !(weight > 0.0 && weight <= 1.0))
      return Error{
          Code::invalid_argument,
          "role_weights." + entries[i] + " = " + text + ": must be a number above 0 and at most 1"};
    wished.weights.emplace_back(entries[i], weight);
  }
  return wished;
}

}  // namespace luna::scheduler_flowsplit
