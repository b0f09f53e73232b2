#include "core/base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <mutex>

namespace luna {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %n: %v";

// Loggers live in spdlog's own registry; the mutex only keeps two threads from making one twice.
std::mutex& creation_mutex() {
  static std::mutex mutex;
  return mutex;
}

spdlog::sink_ptr shared_sink() {
  static auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  return sink;
}

}  // namespace

void init_logging(spdlog::level::level_enum level) {
  spdlog::set_level(level);
  spdlog::apply_all([level](const std::shared_ptr<spdlog::logger>& l) { l->set_level(level); });
}

std::shared_ptr<spdlog::logger> logger(const std::string& folder) {
  if (auto found = spdlog::get(folder)) return found;
  const std::lock_guard lock(creation_mutex());
  if (auto found = spdlog::get(folder)) return found;
  auto made = std::make_shared<spdlog::logger>(folder, shared_sink());
  made->set_pattern(kPattern);
  made->flush_on(spdlog::level::info);
  spdlog::initialize_logger(made);
  return made;
}

}  // namespace luna
