// Packed weights of a device that no shard uses: what the next one wants is not loaded again.
#pragma once

#include "core/model/device.hpp"
#include "core/model/program_builder.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace luna::model {

/// Owns weights that a shard had, or that were packed ahead. The device outlives it. [start-up]
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
  ///
  /// n_bytes  that it takes of the device
  void keep(const std::string& key,
            const ShardWeight& weight,
            std::uint64_t handle,
            std::uint64_t n_bytes) {
    if (kept_.emplace(key, Kept{weight, handle, n_bytes}).second)
      n_bytes_ += n_bytes;
    else
      free(handle);
  }
  /// Hands a weight over, if it is there.
  std::optional<std::uint64_t> take(const std::string& key) {
    const auto found = kept_.find(key);
    if (found == kept_.end()) return std::nullopt;
    const std::uint64_t handle = found->second.handle;
    n_bytes_ -= found->second.n_bytes;
    kept_.erase(found);
    return handle;
  }
  /// All weights together, of the device.
  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_; }
  /// Frees all but those of `keys` that fit, the first ones first.
  void retain(std::span<const std::string> keys, std::uint64_t bytes_max) {
    std::map<std::string, Kept> stay;
    std::uint64_t n_bytes = 0;
    for (const std::string& key : keys) {
      const auto found = kept_.find(key);
      if (found == kept_.end() || found->second.n_bytes > bytes_max - n_bytes) continue;
      n_bytes += found->second.n_bytes;
      stay.insert(kept_.extract(found));
    }
    clear();
    kept_ = std::move(stay);
    n_bytes_ = n_bytes;
  }
  void clear() {
    for (const auto& [key, kept] : kept_)
      free(kept.handle);
    kept_.clear();
    n_bytes_ = 0;
  }

 private:
  struct Kept {
    ShardWeight weight;
    std::uint64_t handle = 0;
    std::uint64_t n_bytes = 0;
  };
  void free(std::uint64_t handle) { device_.backend().weight_free(device_.handle(), handle); }

  Device& device_;
  std::map<std::string, Kept> kept_;
  std::uint64_t n_bytes_ = 0;
};

}  // namespace luna::model
