// Where the layers of a model go on devices that cannot be timed before they hold some.
#pragma once

#include "core/model/layout_survey.hpp"
#include "core/model/model_config.hpp"
#include "core/model/placement.hpp"
#include "core/model/program_builder.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace luna::model {

/// What is known of a device of another process.
struct UntimedDevice {
  std::uint64_t memory_bytes = 0;  ///< that the model may take
  std::uint32_t n_threads = 0;     ///< 0: not known
};

/// Terms for place_by_speed() by arithmetic: a layer takes as long as it has weights to multiply
/// with, a device's threads are all equally fast. By bytes alone an embedding, which nobody
/// multiplies, would count as much as a head.
///
/// bytes    of the model's file; a head that is copied, with its copy
/// step     for which devices are compared
/// devices  in layer order
std::vector<PlaceTerms> untimed_places(const ModelConfig& config,
                                       const ModelBytes& bytes,
                                       const ProgramOptions& program,
                                       const UsualStep& step,
                                       std::span<const UntimedDevice> devices);

}  // namespace luna::model
