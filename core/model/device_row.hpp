// The devices of one model together, those of this process and those of others.
#pragma once

#include "core/base/parallel_for.hpp"
#include "core/model/device.hpp"
#include "core/model/device_shard.hpp"
#include "core/model/device_survey.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace luna::model {

/// Whether one of them is of another process.
bool has_remote(std::span<Device* const> devices);

/// Calls act(rank) for every device: those of other processes at the same time, those of this one
/// in order. Returns the first error, in order of ranks.
template <typename Act>
Result<void> for_each_rank(std::span<Device* const> devices, const Act& act) {
  std::vector<std::size_t> remote;
  std::vector<Result<void>> results(devices.size());
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    if (devices[rank]->planner() != nullptr) remote.push_back(rank);
  const auto act_here = [&] {
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      if (devices[rank]->planner() != nullptr) continue;
      results[rank] = act(rank);
      if (!results[rank]) return;
    }
  };
  const auto n_jobs = static_cast<std::uint32_t>(remote.size() + 1);
  parallel_for(n_jobs, n_jobs, [&](std::uint32_t /*thread_idx*/, std::uint64_t job) {
    if (job == 0)
      act_here();
    else
      results[remote[job - 1]] = act(remote[job - 1]);
  });
  for (const Result<void>& result : results)
    LUNA_TRY(result);
  return {};
}

/// Everything outlives the call.
struct RowSubject {
  std::span<Device* const> devices;
  const ModelConfig* config = nullptr;
  WeightFile* file = nullptr;  ///< of this process; what is weighed of it is opened
  QuantInstances quants;
  SurveyOrder order;            ///< for devices of other processes
  std::filesystem::path cache;  ///< of speeds measured in this process
};

/// Asks each device of another process, and surveys those of this one where the order says timed.
/// [start-up]
///
/// Returns  [n_devices]; a device that could not be timed says why
/// Errors   what another process answers
Result<std::vector<SurveyAnswer>> survey_row(const RowSubject& subject);

/// What the devices said, at their places in the row.
///
/// answers  [n_devices]
/// Errors   of the first device that could not be timed; corrupt: it weighed another model
Result<std::vector<PlaceTerms>> row_terms(std::span<Device* const> devices,
                                          std::span<const SurveyAnswer> answers,
                                          std::uint32_t n_layers,
                                          const UsualStep& step);

}  // namespace luna::model
