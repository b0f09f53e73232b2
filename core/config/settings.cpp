#include "core/config/settings.hpp"

namespace luna::config {

std::string locate(const std::string& file, Position at) {
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

}  // namespace luna::config
