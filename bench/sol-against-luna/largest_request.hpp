// The largest request that each side serves.
#pragma once

#include "deployment.hpp"

#include <luna/result.hpp>

#include <boost/json/fwd.hpp>

#include <cstdint>
#include <string>

namespace luna::sol_against_luna {

/// Tokens are of prompt and output together.
struct LargestRequest {
  std::uint32_t n_tokens = 0;    ///< of the largest that is let in
  double seconds = 0;            ///< that one, alone, from its start to its end
  std::uint32_t n_answered = 0;  ///< tokens generated, as wished
  std::uint32_t n_refused = 0;  ///< tokens of the smallest that is not; 0: the model's context ends
  std::string refusal;          ///< its words
};

/// Asks for larger and larger requests, and runs the largest. [main]
/// Errors  unavailable: it was let in and failed
Result<LargestRequest> serve_largest(Deployment& side);

struct LargestRow {
  std::uint32_t n_devices = 0;
  double weight_share = 0;
  std::uint64_t device_bytes = 0;
  LargestRequest sol, luna;
};
boost::json::object to_json(const LargestRow& row);
std::string to_text(const LargestRow& row);

/// Both sides with the devices of a weight share.
Result<LargestRow> measure_largest(DeploymentPlan plan, double weight_share);

}  // namespace luna::sol_against_luna
