// What the cost model says of all points, without measuring any of them.
#pragma once

#include "campaign.hpp"

#include <luna/result.hpp>

namespace luna::sol_against_luna {

/// Prints a line a point and limit, and writes rows of the same keys as a campaign's; their
/// measured figures are missing. Loads the model once, for what a copy of it takes. [main]
Result<void> print_predictions(const CampaignOptions& options);

}  // namespace luna::sol_against_luna
