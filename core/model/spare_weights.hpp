// Weights that a device does not run, packed ahead for the day when others are lost.
#pragma once

#include "core/model/local_shard.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace luna::model {

/// Names of the weights that a rank of a pipeline does not have, those first that it is most likely
/// to need: embedding and head where their device is its neighbour, then layers by their distance.
std::vector<std::string> spare_weight_names(const ShardOrder& order, const ModelConfig& config);

/// What weights that no shard uses may take: up to a budget's four fifths together with everything
/// else, so that working memory of another model still finds room.
///
/// n_bytes_coming  that the device's models are about to take
std::uint64_t spare_bytes_max(const Device& device, std::uint64_t n_bytes_coming);

/// Packs one weight after the other into the device's store. A re-placement then loads nothing that
/// is there. Owned by who owns the store. [start-up]
class SpareWeights {
 public:
  /// Beside a shard of this order. Opens the model's file, reads no weight.
  ///
  /// parts   as the shard's, with the store
  /// Errors  those of the file
  static Result<std::unique_ptr<SpareWeights>> open(const ShardOrder& order, LocalShardParts parts);

  /// Packs one weight.
  /// Returns  whether there is another one, and room
  /// Errors   of the file; what the backend answers
  Result<bool> go_on();

 private:
  SpareWeights(ShardOrder order, LocalShardParts parts);
  Result<void> pack(const std::string& name, const std::string& key);

  const ShardOrder order_;
  const LocalShardParts parts_;
  std::vector<std::string> names_;
  std::size_t next_ = 0;
};

}  // namespace luna::model
