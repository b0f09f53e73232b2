// All points that were asked for, one after the other, and what is written of them.
#pragma once

#include "deployment.hpp"
#include "load_point.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace luna::sol_against_luna {

struct CampaignOptions {
  std::vector<const Load*> loads;
  bool with_largest = false;   ///< the largest request of each side, too
  bool predicts_only = false;  ///< nothing is measured: print_predictions()
  std::vector<std::uint32_t> n_devices = {2, 4};
  std::vector<double> weight_shares;
  MeasureOptions measure;
  DeploymentPlan plan;
  std::filesystem::path json_file;               ///< the rows; empty: none
  std::filesystem::path journal_file;            ///< runs, kept between invocations; empty: none
  std::filesystem::path plot_folder;             ///< empty: no pictures
  std::optional<std::chrono::seconds> time_max;  ///< of this invocation
};

/// Prints each point and writes files after each. [main]
/// Returns  whether all points are there; false: the time was over, the next invocation with the
///          same journal goes on
Result<bool> run_campaign(const CampaignOptions& options);

}  // namespace luna::sol_against_luna
