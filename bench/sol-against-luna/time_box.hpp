// How long an invocation may measure.
#pragma once

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace luna::sol_against_luna {

/// Says no before something begins that would not end in time; the first thing is always let
/// through, or nothing would ever be measured.
class TimeBox {
 public:
  explicit TimeBox(std::optional<std::chrono::seconds> length) {
    if (length) end_ = std::chrono::steady_clock::now() + *length;
  }

  /// Errors  timeout: it is over
  Result<void> begin(double seconds_expected) {
    const auto expected = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds_expected));
    const bool is_late = end_ && std::chrono::steady_clock::now() + expected > *end_;
    if (is_late && has_begun_)
      return Error{Code::timeout, "the time of this invocation is over; the next goes on"};
    has_begun_ = true;
    return {};
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
  bool has_begun_ = false;
};

}  // namespace luna::sol_against_luna
