#include "core/model/device_row.hpp"

#include "core/model/weight_names.hpp"

#include <algorithm>
#include <string>

namespace luna::model {
namespace {

Result<DeviceSurvey> survey_here(const RowSubject& subject, Device& device) {
  LUNA_TRY(subject.file->open_tensors(survey_tensors(*subject.config)));
  WeightSource source(*subject.file, *subject.config, subject.quants);
  const ModelBytes bytes = weigh_model(*subject.config, *subject.file);
  KnownSpeeds known;
  return survey_device(
      {subject.config, &source, &bytes, subject.order.program, &device, subject.cache}, known);
}

}  // namespace

bool has_remote(std::span<Device* const> devices) {
  return std::ranges::any_of(devices,
                             [](const Device* device) { return device->planner() != nullptr; });
}

Result<std::vector<SurveyAnswer>> survey_row(const RowSubject& subject) {
  const auto devices = subject.devices;
  std::vector<SurveyAnswer> answers(devices.size());
  LUNA_TRY(for_each_rank(devices, [&](std::size_t rank) -> Result<void> {
    SurveyAnswer& answer = answers[rank];
    if (ShardPlanner* const planner = devices[rank]->planner(); planner != nullptr) {
      LUNA_TRY(answer, planner->survey(subject.order));
      return {};
    }
    answer.at_hand = {0, subject.config->n_layers};
    if (subject.order.is_timed) answer.device = survey_here(subject, *devices[rank]);
    return {};
  }));
  return answers;
}

Result<std::vector<PlaceTerms>> row_terms(std::span<Device* const> devices,
                                          std::span<const SurveyAnswer> answers,
                                          std::uint32_t n_layers,
                                          const UsualStep& step) {
  std::vector<PlaceTerms> row;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Device& device = *devices[rank];
    const std::string where = "device " + device.name();
    if (!answers[rank].device) return Error{Code::unavailable, where + " was not timed"};
    LUNA_TRY(const DeviceSurvey survey, *answers[rank].device);
    if (survey.layer_bytes.size() != n_layers) {
      return Error{Code::corrupt,
                   where + " weighed " + std::to_string(survey.layer_bytes.size()) + " layers of " +
                       std::to_string(n_layers)};
    }
    row.push_back(
        place_terms(survey, row_place(rank, devices.size()), device.memory_bytes_left(), step));
  }
  return row;
}

}  // namespace luna::model
