#include "deployment.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace luna::sol_against_luna {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
// Enough for any step of any model that is measured here with its KV cut to almost nothing.
constexpr std::uint64_t kAmpleBytes = std::uint64_t{8} << 30U;
constexpr std::uint32_t kFewTokens = 64;

/// Settings of devices `first` to `first + n - 1`, which hold the model together.
config::Settings settings_of(const DeploymentPlan& plan, std::uint32_t first, std::uint32_t n) {
  config::Settings settings = plan.base;
  config::DeviceSettings device = settings.devices.front();
  device.memory_bytes = plan.device_bytes;
  device.own.rows.push_back(
      {.key = "share_weights", .value = plan.shares_weights, .key_at = {}, .value_at = {}});
  config::ModelSettings& model = settings.models.front();
  model.kv_tokens_max = plan.kv_tokens_max;
  if (n > 1 && plan.luna_layers) {
    model.layers.emplace();
    std::uint32_t first_layer = 0;
    for (const std::uint32_t count : *plan.luna_layers) {
      model.layers->push_back({.first = first_layer, .count = count});
      first_layer += count;
    }
  }
  settings.devices.clear();
  model.devices.clear();
  for (std::uint32_t i = first; i < first + n; ++i) {
    device.name = "a" + std::to_string(i);
    model.devices.push_back(device.name);
    settings.devices.push_back(device);
  }
  return settings;
}

}  // namespace

config::Settings luna_settings(const DeploymentPlan& plan) {
  config::Settings settings = settings_of(plan, 0, plan.n_devices);
  settings.scheduler.policy = plan.luna_policy;
  settings.models.front().expected = plan.expected;
  return settings;
}

namespace {

Result<std::unique_ptr<app::App>> start_app(Side side,
                                            const DeploymentPlan& plan,
                                            std::uint32_t first,
                                            std::uint32_t n) {
  config::Settings settings = side == Side::sol ? settings_of(plan, first, n) : luna_settings(plan);
  if (side == Side::tensor) {
    settings.models.front().layout = config::Layout::tensor;
    settings.models.front().layers.reset();
  }
  app::App::Options options;
  options.plugin_folders = {plan.plugin_folder};
  options.version = "bench";
  options.first_cpu = first * settings.devices.front().n_threads;
  LUNA_TRY(auto app, app::App::create(std::move(settings), options));
  LUNA_TRY(app->warm_up([] { return true; }));
  return app;
}

}  // namespace

Result<std::unique_ptr<Deployment>> Deployment::start(Side side, const DeploymentPlan& plan) {
  std::unique_ptr<Deployment> made(new Deployment(side));
  made->model_ = plan.base.models.front().name;
  made->kv_block_tokens_ = plan.base.models.front().kv_block_tokens;
  const std::uint32_t n_per_copy = side == Side::sol ? 1 : plan.n_devices;
  for (std::uint32_t first = 0; first < plan.n_devices; first += n_per_copy) {
    auto app = start_app(side, plan, first, n_per_copy);
    if (!app) return app.error().in(side_name(side));
    made->apps_.push_back(std::move(*app));
  }
  return made;
}

Result<void> Deployment::can_fit(std::uint32_t n_prompt, std::uint32_t n_generated) const {
  return apps_.front()->model(model_)->runner->can_fit(n_prompt, n_generated, 1);
}

const model::MemoryPlan& Deployment::memory() const {
  return *apps_.front()->memory(model_);
}

std::uint64_t Deployment::kv_tokens() const {
  return std::uint64_t{memory().n_kv_blocks} * kv_block_tokens_;
}

std::uint32_t Deployment::context_tokens_max() const {
  return apps_.front()->model(model_)->context_tokens_max;
}

const telemetry::EngineStats& Deployment::stats(std::size_t copy) const {
  return *apps_[copy]->stats(model_);
}

SideCounters Deployment::counters() const {
  SideCounters counters;
  for (std::size_t copy = 0; copy < n_copies(); ++copy) {
    const telemetry::EngineStats& counted = stats(copy);
    const std::size_t n_devices = apps_[copy]->memory(model_)->shards.size();
    for (std::size_t device = 0; device < n_devices; ++device)
      counters.busy.emplace_back(counted.devices[device].busy_ns.load());
    counters.n_steps.push_back(counted.n_steps.load());
    counters.n_recomputed_tokens += counted.n_recomputed_tokens.load();
  }
  return counters;
}

double Deployment::step_seqs_since(const SideCounters& before) const {
  double sum = 0;
  for (std::size_t copy = 0; copy < n_copies(); ++copy) {
    const std::uint64_t n_steps = stats(copy).n_steps.load() - before.n_steps[copy];
    const auto records = stats(copy).steps.last(n_steps);
    if (records.empty()) continue;
    std::uint64_t n_seqs = 0;
    for (const telemetry::StepRecord& record : records)
      n_seqs += record.n_seqs;
    sum += static_cast<double>(n_seqs) / static_cast<double>(records.size()) *
           static_cast<double>(n_steps);
  }
  return sum;
}

void Deployment::wait_until_idle() const {
  for (std::size_t copy = 0; copy < n_copies(); ++copy)
    while (stats(copy).n_running.load() + stats(copy).n_waiting.load() > 0)
      std::this_thread::sleep_for(kPoll);
}

Result<model::ShardMemory> measure_copy(const DeploymentPlan& plan) {
  DeploymentPlan copy = plan;
  copy.n_devices = 1;
  copy.device_bytes = kAmpleBytes;
  copy.kv_tokens_max = kFewTokens;
  LUNA_TRY(const auto app, Deployment::start(Side::sol, copy));
  return app->memory().shards.front();
}

}  // namespace luna::sol_against_luna
