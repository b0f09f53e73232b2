// What devices of one model tell each other inside a step: planned before memory is taken.
#pragma once

#include "core/model/memory_plan.hpp"

#include <luna/abi/transport.h>
#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::model {

/// A transport instance's extension luna.ext.collective/0.
struct Collective {
  const luna_collective_if* table = nullptr;
  void* self = nullptr;
};

/// The communicators of a model's shards, rank i being shard i. The transport outlives what it
/// opens. [start-up]
class DeviceLinks {
 public:
  struct Options {
    std::uint64_t message_bytes_max = 0;  ///< of a step's rows between two devices
    std::uint32_t n_lanes = 1;            ///< steps in flight: each may have a message on its way
    std::string group;                    ///< unlike that of any other model in the process
  };
  DeviceLinks(const Collective& collective, std::span<const ShardDraft> shards, Options options);

  /// Memory that open() will take for a rank, at its device.
  [[nodiscard]] Result<std::uint64_t> bytes(std::uint32_t rank) const;
  [[nodiscard]] Result<const luna_comm*> open(std::uint32_t rank) const;

 private:
  [[nodiscard]] luna_comm_open request(std::uint32_t rank) const;

  const Collective collective_;
  const Options options_;
  std::vector<std::vector<luna_comm_lane>> lanes_;  // by rank: what its program receives
};

}  // namespace luna::model
