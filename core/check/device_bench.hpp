// A device with a program that runs on it: what cases of steps and memory begin with.
#pragma once

#include "core/check/device_offers.hpp"

#include <memory>
#include <vector>

namespace luna::check {

/// Its members are destroyed from the last to the first.
struct Bench {
  std::unique_ptr<Subject> subject;
  std::unique_ptr<OpenDevice> device;
  std::unique_ptr<const DrawnProgram> drawn;  // `running` points to it
  Conversation conversation;
  std::vector<DrawnStep> steps;
  std::unique_ptr<RunningProgram> running;
};

/// Its device or program is missing where the run was told why, or the device computes nothing.
Bench make_bench(CaseRun& run);

/// A step of one sequence, all of whose rows are outputs.
DrawnStep first_step(const Bench& bench);

}  // namespace luna::check
