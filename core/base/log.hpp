// Logging: one spdlog logger a folder. A line is a fixed sentence with key=value data.
#pragma once

#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace luna {

/// Sets the level and the destination (standard error) of every logger. [start-up]
///
/// level    trace, debug, info, warn, error or off
void init_logging(spdlog::level::level_enum level);

/// The logger of a folder ("http", "engine"); made on first use. [any]
/// The engine's step and kernels do not log: they count, and others tell.
std::shared_ptr<spdlog::logger> logger(const std::string& folder);

}  // namespace luna
