// Whether a model can be a group of an engine.
#pragma once

#include "core/model/compiled_model.hpp"

#include <luna/result.hpp>

namespace luna::engine {

/// Errors  invalid_argument: its limits leave no room for a step, or it gives no outputs
Result<void> check_model(const model::CompiledModel& model, const model::StepLimits& limits);
/// Whether it holds the same model as `first`, as far as one can see.
/// Errors  invalid_argument, with what differs
Result<void> check_copy(const model::CompiledModel& first, const model::CompiledModel& other);

}  // namespace luna::engine
