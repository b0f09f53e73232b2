#include "core/model/device_links.hpp"

#include <luna/op_rules.hpp>
#include <luna/plugin.hpp>

#include <utility>

namespace luna::model {

DeviceLinks::DeviceLinks(const Collective& collective,
                         std::span<const ShardDraft> shards,
                         Options options)
    : collective_(collective), options_(std::move(options)) {
  for (const ShardDraft& shard : shards) {
    std::vector<luna_comm_lane>& lanes = lanes_.emplace_back();
    const luna_program program = shard.program.abi();
    for (std::uint32_t i = 0; i < program.n_ops; ++i) {
      if (program.ops[i].op != LUNA_OP_RECV) continue;
      const OpReader op(program, program.ops[i]);
      lanes.push_back({op.attr(LUNA_COMM_PEER), op.attr(LUNA_COMM_TAG)});
    }
  }
}

luna_comm_open DeviceLinks::request(std::uint32_t rank) const {
  luna_comm_open request{};
  request.struct_size = sizeof(request);
  request.rank = rank;
  request.n_ranks = static_cast<std::uint32_t>(lanes_.size());
  request.n_lanes = static_cast<std::uint32_t>(lanes_[rank].size());
  request.message_bytes_max = options_.message_bytes_max;
  request.group = to_abi(options_.group);
  request.lanes = lanes_[rank].data();
  request.n_messages_max = options_.n_lanes;
  return request;
}

Result<std::uint64_t> DeviceLinks::bytes(std::uint32_t rank) const {
  if (!LUNA_HAS(collective_.table, luna_collective_if, comm_bytes)) return std::uint64_t{0};
  const luna_comm_open asked = request(rank);
  std::uint64_t bytes = 0;
  luna_err err = make_err();
  const luna_status status = collective_.table->comm_bytes(collective_.self, &asked, &bytes, &err);
  LUNA_TRY(to_result(status, err, "communicator of rank " + std::to_string(rank)));
  return bytes;
}

Result<const luna_comm*> DeviceLinks::open(std::uint32_t rank) const {
  const luna_comm_open asked = request(rank);
  const luna_comm* comm = nullptr;
  luna_err err = make_err();
  const luna_status status = collective_.table->open(collective_.self, &asked, &comm, &err);
  LUNA_TRY(to_result(status, err, "communicator of rank " + std::to_string(rank)));
  return comm;
}

}  // namespace luna::model
