#include "core/model/slice_links.hpp"

#include "core/base/random_seed.hpp"

#include <luna/plugin.hpp>

#include <cstring>
#include <string>

namespace luna::model {
namespace {

luna_comm_open request(const std::string& group,
                       std::uint32_t rank,
                       std::uint64_t message_bytes,
                       const luna_comm_lane& lane) {
  luna_comm_open request{};
  request.struct_size = sizeof(request);
  request.rank = rank;
  request.n_ranks = 2;
  request.n_lanes = 1;
  request.message_bytes_max = message_bytes;
  request.group = to_abi(group);
  request.lanes = &lane;
  request.n_messages_max = 2;
  return request;
}

/// What a rank receives.
luna_comm_lane lane_of(std::uint32_t rank) {
  return rank == LUNA_SLICE_OWNER ? luna_comm_lane{LUNA_SLICE_GUEST, LUNA_SLICE_TAG_STATES}
                                  : luna_comm_lane{LUNA_SLICE_OWNER, LUNA_SLICE_TAG_QUERIES};
}

bool can_pair(const Shard& a, const Shard& b) {
  return a.slices.table != nullptr && a.slices.table == b.slices.table &&
         a.attention == b.attention && a.kv.first_layer == b.kv.first_layer &&
         std::memcmp(&a.kv.layout, &b.kv.layout, sizeof(a.kv.layout)) == 0;
}

/// Memory that one end of a communicator takes at its device.
Result<std::uint64_t> end_bytes(const Collective& collective, std::uint64_t message_bytes) {
  if (!LUNA_HAS(collective.table, luna_collective_if, comm_bytes)) return std::uint64_t{0};
  const luna_comm_lane lane = lane_of(LUNA_SLICE_OWNER);
  const luna_comm_open asked = request("slices", LUNA_SLICE_OWNER, message_bytes, lane);
  std::uint64_t bytes = 0;
  luna_err err = make_err();
  LUNA_TRY(to_result(
      collective.table->comm_bytes(collective.self, &asked, &bytes, &err), err, "slices"));
  return bytes;
}

}  // namespace

Result<SlicePlan> plan_slices(const Device& device,
                              const std::optional<Collective>& collective,
                              const Program& program,
                              std::uint32_t n_peers) {
  const auto* calls = static_cast<const luna_slices_if*>(device.extension(LUNA_EXT_SLICES));
  if (calls == nullptr || !collective) {
    return Error{Code::unsupported,
                 "device " + device.name() +
                     ": slices need a backend that offers " LUNA_EXT_SLICES
                     " and a transport that offers " LUNA_EXT_COLLECTIVE};
  }
  const auto slot = program.bound_slot(LUNA_SLOT_SLICES);
  if (!slot) {
    return Error{Code::unsupported,
                 "device " + device.name() + ": slices need whole layers on a device"};
  }
  const luna_program abi = program.abi();
  luna_err err = make_err();
  const std::string where = "device " + device.name() + ": slices";
  SlicePlan plan{.access = {.table = calls, .slot = *slot}};
  LUNA_TRY(to_result(
      calls->message_bytes(device.handle(), &abi, &plan.access.message_bytes, &err), err, where));
  std::uint64_t service_bytes = 0;
  LUNA_TRY(
      to_result(calls->service_bytes(device.handle(), &abi, &service_bytes, &err), err, where));
  LUNA_TRY(const std::uint64_t bytes, end_bytes(*collective, plan.access.message_bytes));
  plan.bytes = n_peers * (service_bytes + 2 * bytes);
  return plan;
}

Result<std::unique_ptr<SliceLinks>> SliceLinks::open(const Collective& collective,
                                                     std::span<CompiledModel* const> copies) {
  auto links = std::unique_ptr<SliceLinks>(new SliceLinks(collective));
  links->n_waiters_ = static_cast<std::uint32_t>(2 * copies.size() * copies.size());
  for (std::size_t owner = 0; owner < copies.size(); ++owner) {
    for (std::size_t shard = 0; shard < copies[owner]->shards.size(); ++shard)
      LUNA_TRY(links->link(copies, owner, shard));
    copies[owner]->slice_set = links.get();
    copies[owner]->slice_place = static_cast<std::uint32_t>(owner);
  }
  return links;
}

Result<void> SliceLinks::link(std::span<CompiledModel* const> copies,
                              std::size_t owner,
                              std::size_t shard) {
  Shard& own = copies[owner]->shards[shard];
  if (own.slices.table == nullptr) return {};
  LUNA_TRY(const std::uint64_t number, random_seed());
  Peers& peers = peers_.emplace_back();
  peers.comms.resize(copies.size());
  for (std::size_t guest = 0; guest < copies.size(); ++guest) {
    if (guest == owner || shard >= copies[guest]->shards.size()) continue;
    const Shard& other = copies[guest]->shards[shard];
    if (!can_pair(own, other)) continue;
    const std::string group = "slices/" + std::to_string(number) + "/" + std::to_string(guest);
    LUNA_TRY(peers.comms[guest], open_pair(group, other));
  }
  peers.abi = {sizeof(peers.abi), static_cast<std::uint32_t>(copies.size()), peers.comms.data()};
  for (std::vector<luna_bind>& binds : own.binds)
    binds.push_back({.slot = own.slices.slot, .pad = 0, .buffer = 0, .comm = &peers.abi});
  return {};
}

/// Returns  the owner's end
Result<const luna_comm*> SliceLinks::open_pair(const std::string& group, const Shard& guest) {
  for (const std::uint32_t rank : {LUNA_SLICE_OWNER, LUNA_SLICE_GUEST}) {
    const luna_comm_lane lane = lane_of(rank);
    luna_comm_open asked = request(group, rank, guest.slices.message_bytes, lane);
    asked.n_waiters_max = n_waiters_;
    luna_err err = make_err();
    const luna_comm* comm = nullptr;
    LUNA_TRY(to_result(
        collective_.table->open(collective_.self, &asked, &comm, &err), err, "slices: open"));
    ends_.push_back({comm, nullptr, nullptr});
  }
  End& end = ends_.back();
  luna_err err = make_err();
  LUNA_TRY(to_result(
      guest.slices.table->serve(guest.executable, guest.kv.buffer, end.comm, &end.service, &err),
      err,
      "device " + guest.device_name + ": slices"));
  end.calls = guest.slices.table;
  return ends_[ends_.size() - 2].comm;
}

SliceLinks::~SliceLinks() {
  for (const End& end : ends_)
    collective_.table->abort(collective_.self, end.comm);
  for (const End& end : ends_)
    if (end.service != nullptr) end.calls->end_service(end.service);
  for (const End& end : ends_)
    collective_.table->close(collective_.self, end.comm);
}

}  // namespace luna::model
