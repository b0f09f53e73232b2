// What places layers and chooses layouts by: a model's parts and its devices, weighed and timed.
#pragma once

#include "core/model/device.hpp"
#include "core/model/device_link.hpp"
#include "core/model/device_survey.hpp"
#include "core/model/layout_cost.hpp"
#include "core/model/placement.hpp"
#include "core/model/program_builder.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace luna::model {

/// How devices are timed, and for which load they are compared.
struct SpeedOptions {
  bool probe = false;           ///< false: nothing is timed, layers are balanced by bytes
  std::filesystem::path cache;  ///< where measurements are kept; empty: nowhere
  ExpectedLoad load;
};

/// Everything outlives the call.
struct SurveySubject {
  const ModelConfig* config = nullptr;
  WeightFile* file = nullptr;  ///< the tensors that are measured are opened
  QuantInstances quants;
  ProgramOptions program;                ///< with peers, copies hold slices for each other
  std::span<Device* const> devices;      ///< of this process, in layer order
  std::optional<Collective> collective;  ///< needed for slices
};

/// A model on its devices before it is placed. A value.
struct LayoutSurvey {
  LayoutModel model;  ///< as the first device packs it
  std::vector<LayoutDevice> devices;
  std::vector<PlaceTerms> places;  ///< by device, each at its place in a pipeline
};

/// Times the devices, equal ones once, and asks their backends what everything takes. [start-up]
///
/// Errors  of the file's tensors; of a backend; exhausted: a budget without room for the probe
Result<LayoutSurvey> survey_layout(const SurveySubject& subject, const SpeedOptions& options);

}  // namespace luna::model
