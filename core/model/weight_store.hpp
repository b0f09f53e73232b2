// Packed weights of a device between two shards: what the next one wants too is not loaded again.
#pragma once

#include "core/model/device.hpp"
#include "core/model/program_builder.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace luna::model {

/// Owns weights that a shard had and no shard has now. The device outlives it. [start-up]
class WeightStore {
 public:
  explicit WeightStore(Device& device) : device_(device) {}
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;
  ~WeightStore() { clear(); }

  /// What tells a weight apart: the model, how it computes, the weight's name.
  static std::string key(const std::string& identity,
                         std::uint32_t numerics,
                         const std::string& name) {
    return identity + "/" + std::to_string(numerics) + "/" + name;
  }

  /// How a weight was described that is there; null: it is not.
  [[nodiscard]] const ShardWeight* find(const std::string& key) const {
    const auto found = kept_.find(key);
    return found == kept_.end() ? nullptr : &found->second.weight;
  }
  /// Takes over a packed weight; one of this key that is there already stays instead.
  void keep(const std::string& key, const ShardWeight& weight, std::uint64_t handle) {
    if (!kept_.emplace(key, Kept{weight, handle}).second) free(handle);
  }
  /// Hands a weight over, if it is there.
  std::optional<std::uint64_t> take(const std::string& key) {
    const auto found = kept_.find(key);
    if (found == kept_.end()) return std::nullopt;
    const std::uint64_t handle = found->second.handle;
    kept_.erase(found);
    return handle;
  }
  void clear() {
    for (const auto& [key, kept] : kept_)
      free(kept.handle);
    kept_.clear();
  }

 private:
  struct Kept {
    ShardWeight weight;
    std::uint64_t handle = 0;
  };
  void free(std::uint64_t handle) { device_.backend().weight_free(device_.handle(), handle); }

  Device& device_;
  std::map<std::string, Kept> kept_;
};

}  // namespace luna::model
