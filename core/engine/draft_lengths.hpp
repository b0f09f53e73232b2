// How many tokens the draft model shall draft for each sequence.
#pragma once

#include <cstdint>
#include <span>

namespace luna::engine {

/// A sequence that could be drafted for.
struct DraftCandidate {
  std::uint32_t slot = 0;
  std::uint32_t n_max = 0;  ///< tokens at most
  double p_right = 0.0;     ///< of each token, given those before it were right
  double row_ns = 0.0;      ///< what a token costs: a row of the draft model, one of the target
  std::uint32_t n = 0;      ///< the answer
};

/// Draft steps serve all sequences at once, so they are decided on one after the other. The j-th
/// gives each sequence that takes part p_right^j tokens. It pays when those together are worth more
/// than its time, in which the target alone would have made tokens too; and a sequence takes part
/// as long as its own token is worth more than its rows.
///
/// token_ns  what the step without drafts takes for each token that it brings
/// step_ns   what a draft step costs before its first row
void choose_draft_lengths(std::span<DraftCandidate> candidates, double token_ns, double step_ns);

}  // namespace luna::engine
