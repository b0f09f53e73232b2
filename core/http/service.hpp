// What the handlers need, gathered once. Everything outlives the server.
#pragma once

#include "core/http/key_ring.hpp"
#include "core/http/places.hpp"
#include "core/http/server_options.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/telemetry/health.hpp"
#include "core/telemetry/metrics.hpp"

#include <memory>
#include <string>

namespace luna::http {

struct Service {
  pipeline::Pipeline& pipeline;
  const telemetry::MetricsPage& metrics;
  telemetry::HttpStats& stats;
  const telemetry::Health& health;
  /// False when an engine can serve no more; then the server is neither live nor ready.
  bool (*is_alive)(void* context) = nullptr;
  void* is_alive_context = nullptr;
  KeyRing keys;
  ServerOptions options;
  std::unique_ptr<Places> places = nullptr;  ///< made by the server, from options and keys
};

}  // namespace luna::http
