// Weights of an open file as FP32, whatever their format.
#pragma once

#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <functional>
#include <span>
#include <string>

namespace luna::model {

/// Takes rows [first_row, first_row + n) of a weight; from any thread.
using ValueSink = std::function<Result<void>(std::uint64_t first_row, std::span<const float> rows)>;

/// Decodes a described weight in ranges of rows, in parallel. Every value is finite.
/// Errors  of the plugin; of the sink; corrupt: a value is not finite
Result<void> for_each_rows(const WeightSource& source,
                           const ShardWeight& weight,
                           std::uint32_t n_threads,
                           const ValueSink& sink);

}  // namespace luna::model
