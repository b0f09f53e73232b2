#include "core/app/cluster_host.hpp"

#include "core/base/log.hpp"
#include "core/cluster/memory_alarm.hpp"
#include "core/cluster/process_identity.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <utility>

namespace luna::app {
namespace {

namespace json = boost::json;

// How often a wait looks whether the process shall end.
constexpr std::chrono::milliseconds kLook{100};

json::array list_of(const std::vector<std::string>& texts) {
  json::array list;
  for (const std::string& text : texts)
    list.emplace_back(text);
  return list;
}

json::object to_json(const cluster::MemoryReport& memory, std::uint32_t alarm_percent) {
  json::object object;
  object["resident_bytes"] = memory.resident;
  object["planned_bytes"] = memory.fixed;
  object["kv_bytes"] = memory.kv;
  object["spare_bytes"] = memory.spare;
  object["held_bytes"] = cluster::bytes_held(memory);
  object["alarm_bytes"] = cluster::bytes_held_max(memory, alarm_percent);
  return object;
}

json::object to_json(const cluster::WorkerStatus& worker, std::uint32_t alarm_percent) {
  json::object object;
  object["name"] = worker.name;
  object["peer"] = worker.peer;
  object["devices"] = list_of(worker.devices);
  object["roles"] = list_of(worker.roles);
  object["memory_bytes"] = worker.memory_bytes;
  object["draining"] = worker.leaves_as.has_value();
  if (worker.memory) object["memory"] = to_json(*worker.memory, alarm_percent);
  return object;
}

json::object to_json(const PlacementStatus& model) {
  json::object object;
  object["name"] = model.model;
  json::array groups;
  for (const auto& group : model.groups)
    groups.push_back(list_of(group));
  object["groups"] = std::move(groups);
  object["degraded"] = model.is_degraded;
  object["last_error"] = model.last_error;
  return object;
}

}  // namespace

Result<std::unique_ptr<ClusterHost>> ClusterHost::open(plugin::Catalog& catalog,
                                                       const config::Settings& settings,
                                                       std::string version) {
  auto host = std::unique_ptr<ClusterHost>(new ClusterHost(settings));
  host->transport_ = settings.transport.data;
  if (host->transport_ != "auto") {
    LUNA_TRY(const plugin::Library* library, catalog.load(LUNA_KIND_TRANSPORT, host->transport_));
    host->transport_ = library->descriptor().name;
  }
  const config::ClusterSettings& wanted = *settings.cluster;
  cluster::ControllerOptions options;
  options.host = wanted.host;
  options.port = wanted.port;
  options.token_file = wanted.token_file;
  options.heartbeat = wanted.heartbeat;
  options.timeout = wanted.timeout;
  options.version = std::move(version);
  options.plugins = cluster::plugin_identities(catalog);
  LUNA_TRY(host->controller_, cluster::Controller::open(std::move(options)));
  // The controller's own end may find a call under way, when controller_ is empty already.
  host->controller_->on_change([raw = host.get(), controller = host->controller_.get()] {
    {
      const std::lock_guard lock(raw->mutex_);
      ++raw->n_changes_;
      raw->changed_.notify_all();
    }
    raw->dismiss_free(*controller);
    const std::lock_guard lock(raw->listeners_mutex_);
    for (const auto& [owner, tell] : raw->listeners_)
      tell();
  });
  return host;
}

// First the controller, whose thread tells of changes.
ClusterHost::~ClusterHost() {
  controller_.reset();
}

std::uint64_t ClusterHost::n_changes() const {
  const std::lock_guard lock(mutex_);
  return n_changes_;
}

Result<void> ClusterHost::wait_for_change(std::uint64_t known,
                                          std::chrono::milliseconds limit,
                                          const std::function<bool()>& keep_going) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (keep_going()) {
    std::unique_lock lock(mutex_);
    if (n_changes_ != known || std::chrono::steady_clock::now() >= end) return {};
    changed_.wait_for(lock, kLook);
  }
  return Error{Code::cancelled, "told to end"};
}

Result<void> ClusterHost::wait_for_devices(telemetry::Health& health,
                                           const std::function<bool()>& keep_going) {
  for (;;) {
    const std::uint64_t known = n_changes();
    const std::size_t n_here = controller_->staying_devices().size();
    const std::uint32_t n_wanted = settings_.cluster->n_devices_min;
    if (n_here >= n_wanted) return {};
    health.set(telemetry::State::waiting,
               std::to_string(n_here) + " of " + std::to_string(n_wanted) +
                   " devices have joined; workers join port " +
                   std::to_string(controller_->port()));
    LUNA_TRY(wait_for_change(known, std::chrono::hours(1), keep_going));
  }
}

Result<JoinedDevices> ClusterHost::join(
    const std::vector<std::shared_ptr<model::Device>>& devices) const {
  JoinedDevices joined;
  joined.devices = devices;
  const auto endpoints = controller_->endpoints_of(devices);
  if (endpoints.empty()) return Error{Code::unavailable, "no worker is here"};
  if (devices.size() > 1) {
    LUNA_TRY(joined.collective.transport, cluster::choose_transport(transport_, endpoints));
  }
  return joined;
}

std::optional<model::Collective> ClusterHost::slices_between(
    const std::vector<std::shared_ptr<model::Device>>& devices,
    const std::optional<std::string>& transport) const {
  const auto endpoints = controller_->endpoints_of(devices);
  if (endpoints.empty()) return std::nullopt;
  const auto chosen = cluster::choose_transport(transport.value_or(transport_), endpoints);
  if (!chosen) {
    logger("cluster")->warn("no slices between groups reason=\"{}\"", chosen.error().message());
    return std::nullopt;
  }
  model::Collective slices;
  slices.transport = *chosen;
  return slices;
}

void ClusterHost::listen(const void* owner, std::function<void()> changed) {
  const std::lock_guard lock(listeners_mutex_);
  if (changed)
    listeners_.insert_or_assign(owner, std::move(changed));
  else
    listeners_.erase(owner);
}

void ClusterHost::hold(const void* owner,
                       const std::vector<std::shared_ptr<model::Device>>& devices) {
  {
    const std::lock_guard lock(held_mutex_);
    if (devices.empty())
      held_.erase(owner);
    else
      held_[owner] = devices;
  }
  dismiss_free(*controller_);
}

bool ClusterHost::is_free(const cluster::LeavingWorker& worker) const {
  const std::lock_guard lock(held_mutex_);
  for (const auto& [owner, devices] : held_)
    for (const auto& device : devices)
      if (std::ranges::find(worker.devices, device.get()) != worker.devices.end()) return false;
  return true;
}

/// But for those that the memory alarm has drained, who watches it dismisses.
void ClusterHost::dismiss_free(cluster::Controller& controller) const {
  for (const cluster::LeavingWorker& worker : controller.leaving())
    if (worker.farewell != cluster::Farewell::restart && is_free(worker))
      controller.dismiss(worker.name);
}

std::string ClusterHost::render(const std::vector<PlacementStatus>& models) const {
  const cluster::ClusterStatus status = controller_->status();
  const telemetry::ClusterStats& stats = controller_->stats();
  json::object root;
  json::array workers;
  for (const cluster::WorkerStatus& worker : status.workers)
    workers.push_back(to_json(worker, settings_.cluster->memory_alarm_percent));
  root["workers"] = std::move(workers);
  json::array placed;
  for (const PlacementStatus& model : models)
    placed.push_back(to_json(model));
  root["models"] = std::move(placed);
  root["port"] = controller_->port();
  root["min_devices"] = settings_.cluster->n_devices_min;
  root["devices"] = stats.n_devices.load();
  root["joined"] = stats.n_joined.load();
  root["lost"] = stats.n_lost.load();
  root["drained"] = stats.n_drained.load();
  root["refused"] = stats.n_refused.load();
  root["last_refusal"] = status.last_refusal;
  root["last_loss"] = status.last_loss;
  root["last_kept"] = status.last_kept;
  return json::serialize(root);
}

}  // namespace luna::app
