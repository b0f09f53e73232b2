// Packs weights ahead that a worker's devices would need if other workers were lost.
#pragma once

#include "core/model/spare_weights.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace luna::cluster {

/// One weight at a time, between what a worker is asked for: at once while no step runs, else so
/// seldom that steps hardly feel it. For one device, whose store it fills. Owned by WorkerSession.
/// [main]
class SparePacker {
 public:
  using Clock = std::chrono::steady_clock;

  /// A shard of this order runs on the device from now on; replaces what was said before.
  void begin(model::ShardOrder order, std::filesystem::path path, model::LocalShardParts parts);
  /// Nothing more is packed. What was stays in the store.
  void stop() { wanted_.reset(); }

  /// Packs a weight, if it is time.
  ///
  /// n_steps  that the device's shards have begun, ever
  void go_on(std::uint64_t n_steps);
  /// When it is time; none: there is nothing to do.
  [[nodiscard]] std::optional<Clock::time_point> due() const;

 private:
  struct Wanted {
    model::ShardOrder order;
    std::filesystem::path path;
    model::LocalShardParts parts;
    std::unique_ptr<model::SpareWeights> spares;  // once the file was opened
  };
  static Result<bool> pack_one(Wanted& wanted);

  std::optional<Wanted> wanted_;
  std::uint64_t n_steps_ = 0;
  Clock::time_point due_;
};

}  // namespace luna::cluster
