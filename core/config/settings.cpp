#include "core/config/settings.hpp"

namespace luna::config {

std::vector<std::vector<std::string>> ModelSettings::device_groups() const {
  if (groups) return *groups;
  if (layout != Layout::replicas) return {devices};
  std::vector<std::vector<std::string>> each;
  for (const std::string& device : devices)
    each.push_back({device});
  return each;
}

std::string locate(const std::string& file, Position at) {
  // kSaidByOverride
  if (at.line == 0 && at.column > 0) return "--set";
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

}  // namespace luna::config
