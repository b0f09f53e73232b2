// Hands weights over to their devices, in parallel, straight from the file's mapping.
#pragma once

#include "core/model/memory_plan.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace luna::model {

/// Called with the share that is loaded, 0..1, growing; from any loading thread, one at a time.
using LoadProgress = std::function<void(double share)>;

struct WeightLoadOptions {
  std::uint32_t numerics = LUNA_NUMERICS_I12;  ///< LUNA_NUMERICS_* of every shard's program
  std::uint32_t n_threads = 1;                 ///< loading threads, the caller included
  LoadProgress progress;                       ///< empty: nobody is told
};

/// Decodes all weights of all shards and packs them on their devices. [start-up]
///
/// handles    [n_shards] lists that receive each shard's weight handles, in the order of its
///            weights; what was begun is in them even when the answer is an error
/// Errors     the first failure; loading stops soon after it
Result<void> load_weights(std::span<const ShardDraft> shards,
                          const WeightSource& source,
                          const WeightLoadOptions& options,
                          std::vector<std::vector<std::uint64_t>>& handles);

}  // namespace luna::model
