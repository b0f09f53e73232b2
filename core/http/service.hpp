// What sessions need, gathered once. Everything outlives the server.
#pragma once

#include "core/http/key_ring.hpp"
#include "core/http/places.hpp"
#include "core/http/server_options.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/telemetry/health.hpp"
#include "core/telemetry/metrics.hpp"

#include <luna/result.hpp>

#include <atomic>
#include <memory>
#include <string>

namespace luna::http {

/// What is served once the models are loaded.
struct ModelService {
  pipeline::Pipeline& pipeline;
  const telemetry::MetricsPage& metrics;
  /// False when an engine can serve no more; then the server is neither live nor ready.
  bool (*is_alive)(void* context) = nullptr;
  void* is_alive_context = nullptr;
  /// False while a request would wait for devices; of the same context. Null: never.
  bool (*is_ready)(void* context) = nullptr;
};

/// What /admin/cluster shows and /admin/drain does, also while the models are loaded. [any]
struct ClusterPage {
  std::string (*render)(void* context) = nullptr;  ///< null: there is no cluster
  /// Errors  not_found: no worker of this name; unavailable: not yet
  Result<void> (*drain)(void* context, const std::string& worker) = nullptr;
  void* context = nullptr;
};

/// Made by Server::start(), read by sessions. [io]
struct Service {
  telemetry::HttpStats& stats;
  const telemetry::Health& health;
  KeyRing keys;
  ServerOptions options;
  std::unique_ptr<Places> places;  ///< for completions
  /// None while the models are loaded: probes are answered, the rest is told to come again.
  std::atomic<const ModelService*> models{nullptr};
  ClusterPage cluster{};
};

}  // namespace luna::http
