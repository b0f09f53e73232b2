// The metrics page: every series of every model, in Prometheus' text format.
#pragma once

#include "core/telemetry/cluster_stats.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace luna::telemetry {

/// Answers of the server by class; counted on the I/O threads.
struct HttpStats {
  std::atomic<std::uint64_t> n_connections{0};  ///< open now
  std::atomic<std::uint64_t> n_requests{0};     ///< completions being answered now
  std::atomic<std::uint64_t> n_2xx{0};
  std::atomic<std::uint64_t> n_4xx{0};
  std::atomic<std::uint64_t> n_5xx{0};
};

/// What a role has of the devices' time that its model shares with others.
struct RoleSource {
  std::string role;
  std::string model;
  std::function<double()> weight;
};

/// Renders the page. The set of series is fixed once the sources are added, so the first scrape has
/// them all, at zero; but those of groups of devices, which come and go. Sources outlive the page.
/// [any]
class MetricsPage {
 public:
  /// version   goes into luna_build_info
  MetricsPage(std::string version, const HttpStats& http)
      : version_(std::move(version)), http_(http) {}

  /// Adds a model's series. [start-up]
  void add_model(std::string name, const EngineStats& stats) {
    models_.push_back({std::move(name), &stats});
  }

  /// Calls into stage roles, and the nanoseconds in them; both outlive the page. [start-up]
  void set_role_runs(const std::atomic<std::uint64_t>& n_role_runs,
                     const std::atomic<std::uint64_t>& role_run_ns) {
    n_role_runs_ = &n_role_runs;
    role_run_ns_ = &role_run_ns;
  }

  /// Adds the weights of roles; what they read outlives the page. [start-up]
  void set_roles(std::vector<RoleSource> roles) { roles_ = std::move(roles); }

  /// Adds the cluster's series; the counters outlive the page. [start-up]
  void set_cluster(const ClusterStats& cluster) { cluster_ = &cluster; }

  /// The page in text format 0.0.4.
  [[nodiscard]] std::string render() const;

  /// The last n steps at most of every model, oldest first: a line of JSON each.
  [[nodiscard]] std::string render_steps(std::size_t n) const;

  /// How every group of devices of every model stands that is here now: a line of JSON each.
  [[nodiscard]] std::string render_groups() const;

  /// The weights of roles whose models share devices: a line of JSON each.
  [[nodiscard]] std::string render_roles() const;

  /// What the check of outputs found, of every model: a line of JSON each.
  [[nodiscard]] std::string render_checks() const;

 private:
  struct Source {
    std::string name;
    const EngineStats* stats;
  };
  std::string version_;
  const HttpStats& http_;
  std::vector<Source> models_;
  const std::atomic<std::uint64_t>* n_role_runs_ = nullptr;
  const std::atomic<std::uint64_t>* role_run_ns_ = nullptr;
  const ClusterStats* cluster_ = nullptr;
  std::vector<RoleSource> roles_;
};

}  // namespace luna::telemetry
