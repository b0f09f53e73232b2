#include "core/app/app.hpp"

#include "core/app/canary.hpp"
#include "core/app/cluster_host.hpp"
#include "core/app/devices.hpp"
#include "core/app/joined_placement.hpp"
#include "core/app/known_models.hpp"
#include "core/app/layout_choice.hpp"
#include "core/app/memory_watch.hpp"
#include "core/app/plan_text.hpp"
#include "core/app/policy.hpp"
#include "core/app/prompt_runner.hpp"
#include "core/app/role_balance.hpp"
#include "core/app/served_model.hpp"
#include "core/base/clock.hpp"
#include "core/base/log.hpp"
#include "core/engine/scheduler_gate.hpp"
#include "core/pipeline/staged_pipeline.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/host_services.hpp"
#include "core/plugin/scheduler_traits.hpp"
#include "core/plugin/settings_check.hpp"

#include <luna/abi/transport.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <utility>

namespace luna::app {
namespace {

// A step of any supported model on any supported device ends well within this; what does not is
// stuck.
constexpr std::chrono::seconds kSilenceMax{30};

// More rows than a backend treats as few, in a context as short as a configuration may ask for.
constexpr std::size_t kWarmUpTokens = 12;

// A worker's file may come without anybody joining.
constexpr std::chrono::seconds kPlaceAgain{5};

}  // namespace

/// Members stand in the order in which they are built; they are destroyed in reverse.
struct App::Impl {
  const config::Settings settings;
  const Options options;
  RealClock clock;
  telemetry::HttpStats http_stats;
  telemetry::Health health;
  telemetry::MetricsPage metrics;
  plugin::HostServices services;
  std::unique_ptr<plugin::Catalog> catalog;
  std::vector<plugin::Instance<luna_quant_if>> quants;
  std::optional<DataTransport> transport;
  std::deque<OpenDevice> devices;
  std::unique_ptr<ClusterHost> cluster;
  std::atomic<ClusterHost*> cluster_seen{nullptr};  // by probes
  std::deque<JoinedPlacement> placements;           // of models on devices of workers
  std::unique_ptr<RoleBalance> role_balance;        // where the policy wishes one
  std::deque<std::unique_ptr<ServedModel>> models;
  std::deque<plugin::Instance<luna_role_if>> roles;
  pipeline::PipelineStats pipeline_stats;
  WakeSignal pipeline_wake;
  std::unique_ptr<pipeline::StagedPipeline> pipeline;
  std::unique_ptr<Canary> canary;                   // where devices may be elsewhere
  std::atomic<const Canary*> canary_seen{nullptr};  // by probes
  std::unique_ptr<MemoryWatch> memory_watch;        // of workers

  Impl(config::Settings s, Options o)
      : settings(std::move(s)),
        options(std::move(o)),
        metrics(options.version, http_stats),
        services({&clock, 0, {}}) {}

  Result<void> find_plugins();
  Result<void> open_devices();
  [[nodiscard]] std::vector<model::Device*> devices_of(const std::vector<std::string>& names) const;
  [[nodiscard]] const ServedModel* find_model(const std::string& name) const;
  [[nodiscard]] Result<config::Layout> layout_of(const config::ModelSettings& model) const;
  Result<void> open_cluster();
  Result<void> load_models(const std::function<bool()>& keep_going);
  Result<void> load_model(const config::ModelSettings& wanted,
                          const std::optional<DraftParts>& draft);
  Result<void> load_joined_model(const config::ModelSettings& wanted,
                                 const std::function<bool()>& keep_going);
  Result<std::unique_ptr<ServedModel>> load_on(const config::ModelSettings& wanted,
                                               const std::vector<JoinedGroup>& groups,
                                               JoinedPlacement& placement);
  Result<ModelParts> parts_of(const config::ModelSettings& wanted);
  Result<void> balance_roles();
  Result<void> build_pipeline();
  void start_canary();
  Result<bool> policy_may_slice();
  void start_memory_watch();
  Result<engine::PlanRecorder::Options> plan_record_of(const std::string& model);
};

Result<void> App::Impl::find_plugins() {
  plugin::Catalog::Options search;
  search.folders = plugin::search_folders(options.plugin_folders, settings.plugins.paths);
  search.services = &services;
  search.trust = plugin::trust_of(settings.plugins);
  catalog = plugin::Catalog::scan(std::move(search));
  const std::vector<Error> wrong = plugin::check_settings(settings, *catalog);
  if (!wrong.empty()) {
    std::string lines;
    for (const Error& error : wrong)
      lines += (lines.empty() ? "" : "\n") + error.message();
    return Error{wrong.front().code(), std::move(lines)};
  }
  for (const std::string& name : catalog->names(LUNA_KIND_QUANT)) {
    LUNA_TRY(auto quant, catalog->create<luna_quant_if>(name, config::RawGroup{}));
    quants.push_back(std::move(quant));
  }
  return {};
}

Result<void> App::Impl::open_devices() {
  std::uint32_t next_cpu = options.first_cpu;
  for (const config::DeviceSettings& wanted : settings.devices) {
    LUNA_TRY(OpenDevice opened, open_device(*catalog, wanted, next_cpu));
    next_cpu += wanted.n_threads;
    devices.push_back(std::move(opened));
  }
  LUNA_TRY(const bool slices, policy_may_slice());
  const bool needs_transport =
      std::ranges::any_of(settings.models, [slices](const config::ModelSettings& m) {
        const auto groups = m.device_groups();
        return (slices && groups.size() > 1) ||
               std::ranges::any_of(groups, [](const auto& g) { return g.size() > 1; });
      });
  if (needs_transport) {
    LUNA_TRY(transport, choose_transport(*catalog, settings.transport));
  }
  return {};
}

/// Whether copies of a model may have to tell each other of KV that lies with them.
Result<bool> App::Impl::policy_may_slice() {
  const std::string kind = LUNA_KIND_SCHEDULER;
  LUNA_TRY(const plugin::Library* library, catalog->load(kind, settings.scheduler.policy));
  LUNA_TRY(const luna_if* head, library->table(kind, sizeof(luna_if)));
  return (head->flags & LUNA_SCHEDULER_SLICES) != 0;
}

/// Each model has a policy and a recording of its own.
Result<engine::PlanRecorder::Options> App::Impl::plan_record_of(const std::string& model) {
  const config::SchedulerSettings& scheduler = settings.scheduler;
  LUNA_TRY(const plugin::Library* library, catalog->load(LUNA_KIND_SCHEDULER, scheduler.policy));
  const bool is_only = settings.models.size() == 1;
  std::filesystem::path file = *scheduler.record;
  if (!is_only) file += "." + model;
  return engine::PlanRecorder::Options{
      .file = std::move(file),
      .text = print_plan_text(
          {model, scheduler.policy, library->descriptor().version, policy_settings(settings)}),
      .file_bytes_max = scheduler.record_bytes_max};
}

std::vector<model::Device*> App::Impl::devices_of(const std::vector<std::string>& names) const {
  std::vector<model::Device*> found;
  for (const std::string& name : names) {
    const auto device = std::find_if(devices.begin(), devices.end(), [&](const OpenDevice& d) {
      return d.device->name() == name;
    });
    // The settings reader has checked that every name is a device.
    found.push_back(device->device.get());
  }
  return found;
}

const ServedModel* App::Impl::find_model(const std::string& name) const {
  for (const auto& model : models)
    if (model->pipeline_model().name == name) return model.get();
  return nullptr;
}

/// As it is given, or the best one.
Result<config::Layout> App::Impl::layout_of(const config::ModelSettings& model) const {
  if (model.layout != config::Layout::automatic) return model.layout;
  if (model.devices.size() < 2 || model.groups) return config::Layout::pipeline;
  const std::vector<model::Device*> found = devices_of(model.devices);
  model::ModelResources resources{quants, found, std::nullopt};
  if (transport) resources.collective = transport->collective;
  LUNA_TRY(const auto policy, make_policy(*catalog, settings));
  return choose_layout(
      model, settings.speculation, resources, {.policy_slices = plugin::does_slice(policy)});
}

Result<void> App::Impl::open_cluster() {
  if (!settings.cluster) return {};
  LUNA_TRY(cluster, ClusterHost::open(*catalog, settings, options.version));
  metrics.set_cluster(cluster->controller().stats());
  cluster_seen.store(cluster.get());
  return {};
}

Result<void> App::Impl::load_models(const std::function<bool()>& keep_going) {
  const config::SpeculationSettings& speculation = settings.speculation;
  std::optional<DraftParts> draft;
  for (const config::ModelSettings& model : settings.models)
    if (speculation.method == config::SpeculationMethod::draft &&
        model.name == speculation.draft_model)
      draft = {model, devices_of(model.devices)};
  for (config::ModelSettings wanted : settings.models) {
    // It answers nothing itself: each of the others has one of its own.
    if (wanted.name == speculation.draft_model) continue;
    LUNA_TRY(wanted.layout, layout_of(wanted));
    LUNA_TRY(wanted.has_joined_devices ? load_joined_model(wanted, keep_going)
                                       : load_model(wanted, draft));
  }
  return {};
}

Result<ModelParts> App::Impl::parts_of(const config::ModelSettings& wanted) {
  ModelParts parts;
  for (const std::vector<std::string>& names : wanted.device_groups())
    parts.groups.push_back(devices_of(names));
  LUNA_TRY(parts.scheduler, make_policy(*catalog, settings));
  LUNA_TRY(parts.fallbacks, make_fallbacks(*catalog, settings));
  parts.plan_budget = settings.scheduler.plan_budget;
  parts.n_plan_faults_max = settings.scheduler.n_plan_faults_max;
  if (settings.scheduler.record) {
    LUNA_TRY(parts.plan_record, plan_record_of(wanted.name));
  }
  parts.quants = quants;
  if (transport) parts.collective = parts.slices = transport->collective;
  parts.clock = &clock;
  parts.wake = &pipeline_wake;
  parts.n_requests_max = settings.server.n_requests_max;
  parts.recovery_timeout = settings.server.recovery_timeout;
  parts.speculation = settings.speculation;
  return parts;
}

Result<void> App::Impl::load_model(const config::ModelSettings& wanted,
                                   const std::optional<DraftParts>& draft) {
  health.set(telemetry::State::loading);
  LUNA_TRY(ModelParts parts, parts_of(wanted));
  parts.draft = draft;
  const std::vector<model::Device*> on = devices_of(wanted.devices);
  if (role_balance) {
    parts.turn = role_balance->turn_of(wanted.name);
    if (parts.turn && parts.groups.size() > 1)
      return Error{Code::unsupported,
                   "role_weights and dynamic_roles: model " + wanted.name + " has " +
                       std::to_string(parts.groups.size()) +
                       " groups of devices; models that share devices have one each"};
    role_balance->hold_back(wanted.name, on);
  }
  LUNA_TRY(auto model, ServedModel::load(wanted, std::move(parts)));
  if (role_balance) role_balance->note_loaded(wanted.name, on);
  metrics.add_model(wanted.name, model->stats());
  models.push_back(std::move(model));
  return {};
}

// What is wrong with the devices that are here, others may put right: a worker that goes while it
// loads, one that lacks the file, too little memory.
Result<void> App::Impl::load_joined_model(const config::ModelSettings& wanted,
                                          const std::function<bool()>& keep_going) {
  JoinedPlacement& placement =
      placements.emplace_back(*cluster, wanted, cluster->controller().stats());
  for (;;) {
    const std::uint64_t known = cluster->n_changes();
    LUNA_TRY(cluster->wait_for_devices(health, keep_going));
    health.set(telemetry::State::loading);
    const JoinedGroup staying = cluster->controller().staying_devices();
    if (staying.empty()) continue;
    const std::vector<JoinedGroup> groups = placement.groups_of(staying);
    auto model = load_on(wanted, groups, placement);
    if (model) {
      metrics.add_model(wanted.name, (*model)->stats());
      placement.start(**model, groups);
      models.push_back(std::move(*model));
      return {};
    }
    logger("app")->warn("model not placed, waiting for other devices reason=\"{}\"",
                        model.error().message());
    health.set(telemetry::State::waiting, model.error().message());
    LUNA_TRY(cluster->wait_for_change(known, kPlaceAgain, keep_going));
  }
}

Result<std::unique_ptr<ServedModel>> App::Impl::load_on(const config::ModelSettings& wanted,
                                                        const std::vector<JoinedGroup>& groups,
                                                        JoinedPlacement& placement) {
  LUNA_TRY(ModelParts parts, parts_of(wanted));
  parts.groups.clear();
  parts.slices.reset();
  if (groups.size() > 1) parts.slices = cluster->slices_between(devices_of_groups(groups), {});
  for (const JoinedGroup& group : groups) {
    LUNA_TRY(const JoinedDevices joined, cluster->join(group));
    if (group.size() > 1) parts.collective = joined.collective;
    parts.groups.push_back(pointers_of(group));
  }
  parts.on_group_gone = &JoinedPlacement::note_gone;
  parts.group_context = &placement;
  parts.n_groups_max = placement.n_groups_max();
  return ServedModel::load(wanted, std::move(parts));
}

Result<void> App::Impl::balance_roles() {
  LUNA_TRY(const auto policy, make_policy(*catalog, settings));
  LUNA_TRY(role_balance, RoleBalance::create(settings, policy));
  if (role_balance) metrics.set_roles(role_balance->sources());
  return {};
}

Result<void> App::Impl::build_pipeline() {
  pipeline::PipelineSetup setup;
  for (const auto& model : models)
    setup.models.push_back(model->pipeline_model());
  for (const config::StageSettings& stage : settings.stages) {
    LUNA_TRY(auto role, catalog->create<luna_role_if>(stage.role, stage.own));
    roles.push_back(std::move(role));
    setup.stages.push_back({&roles.back(), stage.model});
  }
  setup.n_requests_max = settings.server.n_requests_max * 2;
  LUNA_TRY(
      pipeline,
      pipeline::StagedPipeline::create(std::move(setup), clock, pipeline_wake, pipeline_stats));
  metrics.set_role_runs(pipeline_stats.n_role_runs, pipeline_stats.role_run_ns);
  pipeline->launch();
  return {};
}

void App::Impl::start_canary() {
  std::vector<Canary::Subject> subjects;
  for (const auto& model : models) {
    const std::string name = model->pipeline_model().name;
    // A model that no stage begins with cannot be asked for by its name.
    const auto asked = pipeline->model_names();
    if (std::ranges::find(asked, name) != asked.end()) subjects.push_back({name, &model->stats()});
  }
  canary = std::make_unique<Canary>(*pipeline, subjects);
  canary_seen.store(canary.get());
}

void App::Impl::start_memory_watch() {
  const config::ClusterSettings& wanted = *settings.cluster;
  MemoryWatch::Hands hands;
  hands.drop_prefix_caches = [this] {
    for (JoinedPlacement& placement : placements)
      placement.drop_prefix_cache();
  };
  hands.move_sequences = [this](const std::vector<std::string>& names) {
    bool any = false;
    for (JoinedPlacement& placement : placements)
      any |= placement.relieve(names);
    return any;
  };
  memory_watch = std::make_unique<MemoryWatch>(
      *cluster,
      cluster::MemoryAlarm::Options{wanted.memory_alarm_percent, wanted.memory_alarm},
      std::move(hands));
}

App::App(config::Settings settings, Options options)
    : impl_(std::make_unique<Impl>(std::move(settings), std::move(options))) {}

App::~App() {
  if (impl_->canary) impl_->canary->stop();
  if (impl_->memory_watch) impl_->memory_watch->stop();
  for (JoinedPlacement& placement : impl_->placements)
    placement.stop();
  if (impl_->pipeline) impl_->pipeline->drain(std::chrono::nanoseconds(0));
  for (const auto& model : impl_->models)
    model->stop();
}

Result<std::unique_ptr<App>> App::create(config::Settings settings, const Options& options) {
  auto app = std::make_unique<App>(std::move(settings), options);
  LUNA_TRY(app->load());
  return app;
}

Result<void> App::load(const std::function<bool()>& keep_going) {
  LUNA_TRY(impl_->find_plugins());
  LUNA_TRY(impl_->open_cluster());
  LUNA_TRY(impl_->balance_roles());
  LUNA_TRY(impl_->open_devices());
  LUNA_TRY(impl_->load_models(keep_going));
  if (impl_->role_balance) impl_->role_balance->start();
  LUNA_TRY(impl_->build_pipeline());
  if (has_cluster()) impl_->start_memory_watch();
  return {};
}

pipeline::Pipeline& App::pipeline() {
  return *impl_->pipeline;
}
std::optional<pipeline::PipelineModel> App::model(const std::string& name) const {
  const ServedModel* found = impl_->find_model(name);
  if (found == nullptr) return std::nullopt;
  return found->pipeline_model();
}
const model::MemoryPlan* App::memory(const std::string& name) const {
  const ServedModel* found = impl_->find_model(name);
  return found == nullptr ? nullptr : &found->memory();
}
const telemetry::EngineStats* App::stats(const std::string& name) const {
  const ServedModel* found = impl_->find_model(name);
  return found == nullptr ? nullptr : &found->stats();
}
const telemetry::MetricsPage& App::metrics() const {
  return impl_->metrics;
}
telemetry::HttpStats& App::http_stats() {
  return impl_->http_stats;
}
const telemetry::Health& App::health() const {
  return impl_->health;
}

bool App::has_cluster() const {
  return impl_->settings.cluster.has_value();
}
Result<void> App::drain_worker(const std::string& name) {
  ClusterHost* const cluster = impl_->cluster_seen.load();
  if (cluster == nullptr) return Error{Code::unavailable, "the cluster does not listen yet"};
  return cluster->controller().drain(name, cluster::Farewell::drained);
}
std::string App::cluster_page() const {
  const ClusterHost* cluster = impl_->cluster_seen.load();
  if (cluster == nullptr) return "{}";
  // Placements are there once models are loaded; before, none is shown.
  std::vector<PlacementStatus> models;
  if (impl_->health.state() >= telemetry::State::warming)
    for (const JoinedPlacement& placement : impl_->placements)
      models.push_back(placement.status());
  return cluster->render(models);
}

bool App::is_ready() const {
  const Canary* canary = impl_->canary_seen.load();
  if (canary != nullptr && !canary->is_well()) return false;
  return std::ranges::all_of(
      impl_->placements, [](const JoinedPlacement& placement) { return placement.can_serve(); });
}

bool App::is_alive() const {
  if (impl_->pipeline->has_failed()) return false;
  const Nanoseconds now = impl_->clock.now();
  return std::all_of(impl_->models.begin(), impl_->models.end(), [&](const auto& model) {
    return telemetry::is_alive(model->stats(), now, kSilenceMax);
  });
}

Result<void> App::warm_up(const std::function<bool()>& keep_going) {
  impl_->health.set(telemetry::State::warming);
  for (const std::string& model : impl_->pipeline->model_names()) {
    pipeline::Request request;
    request.id = "warm-up";
    request.endpoint = pipeline::Endpoint::completion;
    request.model = model;
    // A step of many rows, one of a single row: backends treat them differently.
    request.prompt_ids.assign(kWarmUpTokens, 0);
    request.n_generated_max = 2;
    request.sampling.temperature = 0.0F;
    request.stop.ignore_eos = true;
    const auto outcome = run_prompt(
        *impl_->pipeline, std::move(request), [](std::string_view) {}, keep_going);
    if (!outcome) {
      impl_->health.set(telemetry::State::failed);
      return outcome.error().in("warm-up of model '" + model + "'");
    }
    if (outcome->finish == pipeline::FinishReason::cancelled) return {};
  }
  if (has_cluster()) impl_->start_canary();
  impl_->health.set(telemetry::State::ready);
  return {};
}

void App::drain(std::chrono::milliseconds timeout) {
  impl_->health.set(telemetry::State::draining);
  if (impl_->canary) impl_->canary->stop();
  impl_->pipeline->drain(timeout);
}

}  // namespace luna::app
