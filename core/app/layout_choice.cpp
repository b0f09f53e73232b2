#include "core/app/layout_choice.hpp"

#include "core/app/devices.hpp"
#include "core/app/policy.hpp"
#include "core/app/served_model.hpp"
#include "core/base/clock.hpp"
#include "core/base/log.hpp"
#include "core/engine/scheduler_gate.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/host_services.hpp"
#include "core/plugin/scheduler_traits.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

namespace luna::app {
namespace {

config::Layout to_settings(model::Layout layout) {
  switch (layout) {
    case model::Layout::pipeline:
      return config::Layout::pipeline;
    case model::Layout::replicas:
      return config::Layout::replicas;
    case model::Layout::tensor:
      return config::Layout::tensor;
  }
  return config::Layout::pipeline;
}

/// A configuration's plugins and devices; nothing is loaded on them. Members stand in the order in
/// which they are built.
class OpenParts {
 public:
  static Result<std::unique_ptr<OpenParts>> open(
      const config::Settings& settings, const std::vector<std::filesystem::path>& plugin_folders) {
    auto parts = std::make_unique<OpenParts>();
    plugin::Catalog::Options search;
    search.folders = plugin::search_folders(plugin_folders, settings.plugins.paths);
    search.services = &parts->services_;
    search.trust = plugin::trust_of(settings.plugins);
    parts->catalog_ = plugin::Catalog::scan(std::move(search));
    for (const std::string& name : parts->catalog_->names(LUNA_KIND_QUANT)) {
      LUNA_TRY(auto quant, parts->catalog_->create<luna_quant_if>(name, config::RawGroup{}));
      parts->quants_.push_back(std::move(quant));
    }
    std::uint32_t next_cpu = 0;
    for (const config::DeviceSettings& wanted : settings.devices) {
      LUNA_TRY(OpenDevice opened, open_device(*parts->catalog_, wanted, next_cpu));
      next_cpu += wanted.n_threads;
      parts->devices_.push_back(std::move(opened));
    }
    if (settings.devices.size() > 1) {
      LUNA_TRY(parts->transport_, choose_transport(*parts->catalog_, settings.transport));
    }
    return parts;
  }

  Result<model::LayoutProblem> problem(const config::Settings& settings,
                                       const config::ModelSettings& model) const {
    std::vector<model::Device*> devices;
    for (const std::string& name : model.devices)
      for (const OpenDevice& opened : devices_)
        if (opened.device->name() == name) devices.push_back(opened.device.get());
    model::ModelResources resources{quants_, devices, std::nullopt};
    if (transport_) resources.collective = transport_->collective;
    LUNA_TRY(const auto policy, make_policy(*catalog_, settings));
    return layout_problem(
        model, settings.speculation, resources, {.policy_slices = plugin::does_slice(policy)});
  }

 private:
  RealClock clock_;
  plugin::HostServices services_{{&clock_, 0, {}}};
  std::unique_ptr<plugin::Catalog> catalog_;
  std::vector<plugin::Instance<luna_quant_if>> quants_;
  std::optional<DataTransport> transport_;
  std::deque<OpenDevice> devices_;
};

}  // namespace

Result<model::LayoutProblem> layout_problem(const config::ModelSettings& settings,
                                            const config::SpeculationSettings& speculation,
                                            const model::ModelResources& resources,
                                            const LayoutTerms& terms) {
  LUNA_TRY(model::ModelOptions options, model_options(settings, speculation));
  if (terms.policy_slices && resources.collective && could_slice(settings, resources.devices))
    options.n_slice_peers = static_cast<std::uint32_t>(resources.devices.size()) - 1;
  options.layers.reset();
  options.speed.probe = true;
  return model::Model::describe_layout(options, resources);
}

Result<config::Layout> choose_layout(const config::ModelSettings& settings,
                                     const config::SpeculationSettings& speculation,
                                     const model::ModelResources& resources,
                                     const LayoutTerms& terms) {
  LUNA_TRY(const model::LayoutProblem problem,
           layout_problem(settings, speculation, resources, terms));
  LUNA_TRY(const model::LayoutChoice choice, model::choose_layout(problem));
  logger("model")->info("layout chosen model={} layout={} reason=\"{}\"",
                        settings.name,
                        model::layout_name(choice.layout),
                        choice.reason);
  return to_settings(choice.layout);
}

Result<model::LayoutProblem> layout_problem(
    const config::Settings& settings,
    const std::string& model,
    const std::vector<std::filesystem::path>& plugin_folders) {
  const auto found = std::ranges::find(settings.models, model, &config::ModelSettings::name);
  if (found == settings.models.end())
    return Error{Code::not_found, "model '" + model + "' is not in the configuration"};
  LUNA_TRY(const auto parts, OpenParts::open(settings, plugin_folders));
  return parts->problem(settings, *found);
}

Result<std::vector<std::string>> explain_layouts(
    const config::Settings& settings, const std::vector<std::filesystem::path>& plugin_folders) {
  std::vector<std::string> sentences;
  const auto is_auto = [](const config::ModelSettings& model) {
    return model.layout == config::Layout::automatic && model.devices.size() > 1 && !model.groups;
  };
  if (std::ranges::none_of(settings.models, is_auto)) return sentences;
  LUNA_TRY(const auto parts, OpenParts::open(settings, plugin_folders));
  for (const config::ModelSettings& model : settings.models) {
    if (!is_auto(model)) continue;
    LUNA_TRY(const model::LayoutProblem problem, parts->problem(settings, model));
    LUNA_TRY(const model::LayoutChoice choice, model::choose_layout(problem));
    sentences.push_back("model '" + model.name + "': layout = \"auto\" takes " +
                        std::string(model::layout_name(choice.layout)) + ", " + choice.reason);
  }
  return sentences;
}

}  // namespace luna::app
