// The pipeline of this process: what is measured has no HTTP in it.
#pragma once

#include "core/bench/target.hpp"
#include "core/pipeline/pipeline.hpp"

namespace luna::bench {

/// Greedy, to the wanted length whatever the model says; ids go in as they are. Times are taken on
/// the pipeline's thread, when output leaves it. The pipeline outlives the target.
TargetFactory pipeline_target(pipeline::Pipeline& pipeline);

}  // namespace luna::bench
