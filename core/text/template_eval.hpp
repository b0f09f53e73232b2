// Runs a parsed template over values.
#pragma once

#include "core/text/template_parser.hpp"
#include "core/text/template_value.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace luna::text::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

/// What a template may use up; a hostile one ends with an error, not with the process.
struct RenderLimits {
  // One for each byte that is made or walked over, kStepUnits for each node visited, kElementUnits
  // for each element of a list. 2^26 are below a second and below 100 MB; real templates use some
  // ten thousands.
  std::uint64_t n_units_max = std::uint64_t{1} << 26U;
  std::uint64_t output_bytes_max = std::uint64_t{64} << 20U;
  // Evaluations inside each other. One takes at most about 1 KiB of stack, 4 with sanitizers.
  std::uint32_t n_nested_max = 500;
};

/// Runs a template. Errors name line and column.
///
/// now      what strftime_now() tells, in the local time zone
/// Errors   invalid_argument (a failure of the template, or one that it raises); exhausted (limits)
/// Source   jinja2 3.1 in an ImmutableSandboxedEnvironment
Result<MarkedText> run_template(const Template& parsed,
                                const Variables& variables,
                                std::chrono::system_clock::time_point now,
                                const RenderLimits& limits);

}  // namespace luna::text::jinja
