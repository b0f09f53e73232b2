// The cases of the validator, in the order in which they run.
#pragma once

#include "core/check/case_run.hpp"

#include <span>
#include <string_view>
#include <vector>

namespace luna::check {

/// A: the file as data. B: loading. C: life of instances. D: what every kind keeps to.
std::span<const Case> file_cases();
std::span<const Case> load_cases();
std::span<const Case> instance_cases();
std::span<const Case> answer_cases();
std::span<const Case> thread_cases();
/// E and F of one kind.
std::span<const Case> scheduler_cases();
std::span<const Case> role_cases();
std::span<const Case> quant_cases();
std::span<const Case> transport_cases();
std::span<const Case> transport_sides_cases();
std::span<const Case> backend_cases();
std::span<const Case> op_cases();
std::span<const Case> step_cases();
std::span<const Case> memory_cases();

/// All of them.
std::vector<Case> all_cases();

}  // namespace luna::check
