#include "pattern_check.hpp"

namespace luna::postprocess {

Result<void> PatternRules::check(std::string_view text) const {
  if (must_match) {
    LUNA_TRY(const bool matched, must_match->matches(text));
    if (!matched) {
      return Error{Code::invalid_argument, "the answer does not have the form it must have"};
    }
  }
  if (must_not_match) {
    LUNA_TRY(const bool matched, must_not_match->matches(text));
    if (matched) return Error{Code::invalid_argument, "the answer holds what it must not hold"};
  }
  return {};
}

}  // namespace luna::postprocess
