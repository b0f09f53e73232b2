// The composition root: builds every part by hand, in order, and ends them in reverse.
#pragma once

#include "core/config/settings.hpp"
#include "core/model/memory_plan.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/pipeline_model.hpp"
#include "core/telemetry/health.hpp"
#include "core/telemetry/metrics.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

/// Owns plugins, models, engines and the pipeline of one process. [main]
class App {
 public:
  struct Options {
    std::vector<std::filesystem::path> plugin_folders;  ///< searched first
    std::string version;
    std::uint32_t first_cpu = 0;  ///< position of the first device's first core
  };

  /// Holds nothing yet but its state, which probes may ask for while load() works.
  App(config::Settings settings, Options options);
  /// An App that is loaded, for whom nobody asks meanwhile.
  static Result<std::unique_ptr<App>> create(config::Settings settings, const Options& options);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  /// Loads plugins and models and starts the engines; every named plugin starts, or nothing does.
  /// Once.
  /// Where models lie on devices of workers, it waits for these, and for others where they cannot
  /// hold the models; health() says what for.
  /// Errors  cancelled: keep_going turned false meanwhile
  Result<void> load(const std::function<bool()>& keep_going = [] { return true; });

  // ---- after load()
  [[nodiscard]] pipeline::Pipeline& pipeline();
  /// A model of the pipeline, by its name there.
  [[nodiscard]] std::optional<pipeline::PipelineModel> model(const std::string& name) const;
  /// What it takes of its devices, and what its engine counts; null: there is no such model.
  [[nodiscard]] const model::MemoryPlan* memory(const std::string& name) const;
  [[nodiscard]] const telemetry::EngineStats* stats(const std::string& name) const;
  [[nodiscard]] const telemetry::MetricsPage& metrics() const;
  /// False when an engine or the pipeline can serve no more: see telemetry::is_alive. [any]
  [[nodiscard]] bool is_alive() const;
  /// Whether every model has devices that could answer. [any]
  [[nodiscard]] bool is_ready() const;

  /// Runs a small step of each kind with every model, for real tokens; then the state is ready.
  /// Gives up, without an error and not ready, when `keep_going` turns false.
  Result<void> warm_up(const std::function<bool()>& keep_going);
  /// Refuses new requests; running ones end within `timeout` or are cancelled.
  void drain(std::chrono::milliseconds timeout);

  // ---- always
  [[nodiscard]] telemetry::HttpStats& http_stats();
  [[nodiscard]] const telemetry::Health& health() const;
  /// The cluster as JSON; empty before it listens. There must be one. [any]
  [[nodiscard]] std::string cluster_page() const;
  [[nodiscard]] bool has_cluster() const;
  /// Has a worker leave, once what lies on its devices lies elsewhere. [any]
  /// Errors  not_found: no such worker; unavailable: the cluster does not listen yet
  Result<void> drain_worker(const std::string& name);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::app
