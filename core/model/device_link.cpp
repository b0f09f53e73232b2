#include "core/model/device_link.hpp"

#include <luna/op_verify.hpp>
#include <luna/plugin.hpp>

#include <algorithm>
#include <utility>

namespace luna::model {
namespace {

std::vector<luna_str> to_abi_list(const std::vector<std::string>& texts) {
  std::vector<luna_str> list;
  list.reserve(texts.size());
  for (const std::string& text : texts)
    list.push_back(to_abi(text));
  return list;
}

std::string where(const LinkTerms& terms) {
  return "communicator of rank " + std::to_string(terms.rank);
}

}  // namespace

DeviceLink::DeviceLink(Collective collective, const Program& shard_program)
    : collective_(std::move(collective)) {
  const luna_program program = shard_program.abi();
  for (std::uint32_t i = 0; i < program.n_ops; ++i) {
    const OpReader op(program, program.ops[i]);
    if (op.op().op == LUNA_OP_RECV) add_lane(op.attr(LUNA_COMM_PEER), op.attr(LUNA_COMM_TAG));
    if (op.op().op != LUNA_OP_ALL_GATHER) continue;
    const ColumnGather gather = column_gather(op, 0);
    for (std::uint32_t rank = 0; rank < gather.n_ranks; ++rank)
      if (rank != gather.rank) add_lane(rank, gather.tag);
  }
}

void DeviceLink::add_lane(std::uint32_t peer, std::uint32_t tag) {
  const auto is_it = [&](const luna_comm_lane& l) { return l.peer == peer && l.tag == tag; };
  if (std::ranges::none_of(lanes_, is_it)) lanes_.push_back({peer, tag});
}

luna_comm_open DeviceLink::request(const LinkTerms& terms,
                                   const std::vector<luna_str>& addresses) const {
  luna_comm_open request{};
  request.struct_size = sizeof(request);
  request.rank = terms.rank;
  request.n_ranks = terms.n_ranks;
  request.n_lanes = static_cast<std::uint32_t>(lanes_.size());
  request.message_bytes_max = terms.message_bytes_max;
  request.group = to_abi(terms.group);
  request.lanes = lanes_.data();
  request.addresses = addresses.empty() ? nullptr : addresses.data();
  request.n_messages_max = terms.n_messages_max;
  return request;
}

Result<std::uint64_t> DeviceLink::bytes(const LinkTerms& terms) const {
  if (!LUNA_HAS(collective_.table, luna_collective_if, comm_bytes)) return std::uint64_t{0};
  const luna_comm_open asked = request(terms, {});
  std::uint64_t bytes = 0;
  luna_err err = make_err();
  const luna_status status = collective_.table->comm_bytes(collective_.self, &asked, &bytes, &err);
  LUNA_TRY(to_result(status, err, where(terms)));
  return bytes;
}

Result<const luna_comm*> DeviceLink::open(const LinkTerms& terms) const {
  const std::vector<luna_str> addresses = to_abi_list(terms.addresses);
  const luna_comm_open asked = request(terms, addresses);
  const luna_comm* comm = nullptr;
  luna_err err = make_err();
  const luna_status status = collective_.table->open(collective_.self, &asked, &comm, &err);
  LUNA_TRY(to_result(status, err, where(terms)));
  return comm;
}

}  // namespace luna::model
