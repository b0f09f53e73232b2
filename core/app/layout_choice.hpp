// `layout = "auto"`: how a model shall lie on its devices, by a prediction of what it will serve.
#pragma once

#include "core/config/settings.hpp"
#include "core/model/layout_cost.hpp"
#include "core/model/model_loader.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace luna::app {

/// What of the rest of a configuration the prediction has to know.
struct LayoutTerms {
  bool policy_slices = false;  ///< then copies keep room for messages of each other
};

/// What the prediction starts from. Loads nothing. [start-up]
///
/// resources  the model's devices, open; a collective where there are several
Result<model::LayoutProblem> layout_problem(const config::ModelSettings& settings,
                                            const config::SpeculationSettings& speculation,
                                            const model::ModelResources& resources,
                                            const LayoutTerms& terms);

/// The same for a model of a configuration: its devices are opened, timed and closed again.
Result<model::LayoutProblem> layout_problem(
    const config::Settings& settings,
    const std::string& model,
    const std::vector<std::filesystem::path>& plugin_folders);

/// The layout that a model with "auto" gets, and why, which the log tells.
Result<config::Layout> choose_layout(const config::ModelSettings& settings,
                                     const config::SpeculationSettings& speculation,
                                     const model::ModelResources& resources,
                                     const LayoutTerms& terms);

/// Opens the devices that the (checked) settings name, and says of each model with layout = "auto"
/// what it would get: a sentence each.
Result<std::vector<std::string>> explain_layouts(
    const config::Settings& settings, const std::vector<std::filesystem::path>& plugin_folders);

}  // namespace luna::app
