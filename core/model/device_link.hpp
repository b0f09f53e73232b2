// One rank's end of what the devices of a model tell each other inside a step.
#pragma once

#include "core/model/device_shard.hpp"

#include <luna/abi/transport.h>
#include <luna/op_program.hpp>
#include <luna/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace luna::model {

/// A transport instance's extension luna.ext.collective/1.
struct Collective {
  const luna_collective_if* table = nullptr;
  void* self = nullptr;
  std::string transport;  ///< the plugin's short name
  std::string address;    ///< of the instance, for ranks in other processes
};

/// The communicator of one shard. The transport outlives what it opens. [start-up]
class DeviceLink {
 public:
  /// program  of the rank's shard: what it receives is announced to the transport
  DeviceLink(Collective collective, const Program& program);

  /// Memory that open() will take at the rank's device. The terms may still lack the addresses.
  [[nodiscard]] Result<std::uint64_t> bytes(const LinkTerms& terms) const;
  [[nodiscard]] Result<const luna_comm*> open(const LinkTerms& terms) const;
  /// [any]
  void abort(const luna_comm* comm) const { collective_.table->abort(collective_.self, comm); }
  void close(const luna_comm* comm) const { collective_.table->close(collective_.self, comm); }
  [[nodiscard]] const std::string& address() const { return collective_.address; }

 private:
  [[nodiscard]] luna_comm_open request(const LinkTerms& terms,
                                       const std::vector<luna_str>& addresses) const;

  void add_lane(std::uint32_t peer, std::uint32_t tag);

  const Collective collective_;
  std::vector<luna_comm_lane> lanes_;  // what the program receives
};

}  // namespace luna::model
