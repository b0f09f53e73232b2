// Packed weights that several devices of this process read in the same memory.
#pragma once

#include "memory.hpp"
#include "weight.hpp"

#include <luna/abi/quant.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace luna::cpu {

/// Knows the packed weights of this process whose devices have `share_weights`, without keeping
/// them alive. A weight that equals one of them to the byte uses that one's memory; the chunk of
/// the arena that both point into goes with its last user. [load]
class WeightShare {
 public:
  /// Process-wide by nature: devices that share are of backends that know nothing of each other.
  static WeightShare& of_process();

  /// Replaces the packed memory of a whole weight by that of an equal one, or remembers it.
  /// Returns  whether it was replaced
  /// Cost     reads the weight twice at most
  bool share(Weight& weight);

 private:
  struct Entry {
    std::weak_ptr<const Mapping> chunk;
    std::byte* data = nullptr;
    luna_weight_desc desc{};
    std::uint32_t numerics = 0;
  };

  std::mutex mutex_;
  std::unordered_multimap<std::uint64_t, Entry> entries_;  // by the hash of the packed bytes
};

}  // namespace luna::cpu
