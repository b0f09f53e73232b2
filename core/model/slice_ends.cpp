#include "core/model/slice_ends.hpp"

#include <luna/plugin.hpp>

#include <array>
#include <string>
#include <utility>

namespace luna::model {
namespace {

/// Two steps' worth: an owner has one question under way, of two messages.
constexpr std::uint32_t kMessagesMax = 2;

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
  request.n_messages_max = kMessagesMax;
  return request;
}

/// What a rank receives.
luna_comm_lane lane_of(std::uint32_t rank) {
  return rank == LUNA_SLICE_OWNER ? luna_comm_lane{LUNA_SLICE_GUEST, LUNA_SLICE_TAG_STATES}
                                  : luna_comm_lane{LUNA_SLICE_OWNER, LUNA_SLICE_TAG_QUERIES};
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
  SlicePlan plan{.calls = calls, .slot = *slot};
  LUNA_TRY(to_result(
      calls->message_bytes(device.handle(), &abi, &plan.message_bytes, &err), err, where));
  std::uint64_t service_bytes = 0;
  LUNA_TRY(
      to_result(calls->service_bytes(device.handle(), &abi, &service_bytes, &err), err, where));
  LUNA_TRY(const std::uint64_t bytes, end_bytes(*collective, plan.message_bytes));
  plan.bytes = n_peers * (service_bytes + 2 * bytes);
  return plan;
}

SliceEnds::SliceEnds(Collective collective, const SlicePlan& plan, std::uint32_t n_places)
    : collective_(std::move(collective)), plan_(plan), comms_(n_places), ends_(n_places) {
  peers_ = {sizeof(peers_), n_places, comms_.data()};
}

SliceEnds::~SliceEnds() {
  abort_all();
  for (const Ends& ends : ends_)
    close(ends);
}

Result<void> SliceEnds::check(const SliceTerms& terms) const {
  if (terms.place >= comms_.size() || comms_[terms.place] != nullptr) {
    return Error{Code::invalid_argument,
                 "slices: place " + std::to_string(terms.place) + " of " +
                     std::to_string(comms_.size()) + " is not free"};
  }
  if (terms.message_bytes == plan_.message_bytes) return {};
  return Error{Code::invalid_argument,
               "slices: messages of " + std::to_string(terms.message_bytes) +
                   " bytes, but the shard's have " + std::to_string(plan_.message_bytes)};
}

/// Each rank's end is opened without waiting for the other's.
Result<const luna_comm*> SliceEnds::open_end(const SliceTerms& terms, std::uint32_t rank) const {
  const bool is_owner = rank == LUNA_SLICE_OWNER;
  // The sequences of the first of the two, or of the other.
  const std::string group = terms.group + (is_owner == terms.is_first ? "/0" : "/1");
  const luna_comm_lane lane = lane_of(rank);
  luna_comm_open asked = request(group, rank, terms.message_bytes, lane);
  asked.n_waiters_max = terms.n_waiters_max;
  std::array<luna_str, 2> addresses = {to_abi(terms.own_address), to_abi(terms.other_address)};
  if (!is_owner) std::swap(addresses[0], addresses[1]);
  const bool is_here = terms.other_address.empty() || terms.other_address == collective_.address;
  if (!is_here) asked.addresses = addresses.data();
  const luna_comm* comm = nullptr;
  luna_err err = make_err();
  LUNA_TRY(to_result(
      collective_.table->open(collective_.self, &asked, &comm, &err), err, "slices: open"));
  return comm;
}

Result<void> SliceEnds::open(const SliceTerms& terms, const Guest& guest) {
  LUNA_TRY(check(terms));
  Ends ends;
  const auto opened = [&]() -> Result<void> {
    LUNA_TRY(ends.owner, open_end(terms, LUNA_SLICE_OWNER));
    LUNA_TRY(ends.guest, open_end(terms, LUNA_SLICE_GUEST));
    luna_err err = make_err();
    return to_result(
        plan_.calls->serve(guest.executable, guest.kv_buffer, ends.guest, &ends.service, &err),
        err,
        "slices");
  }();
  if (!opened) {
    abort(ends);
    close(ends);
    return opened.error();
  }
  comms_[terms.place] = ends.owner;
  const std::lock_guard lock(mutex_);
  ends_[terms.place] = ends;
  return {};
}

void SliceEnds::abort(const Ends& ends) const {
  for (const luna_comm* comm : {ends.owner, ends.guest})
    if (comm != nullptr) collective_.table->abort(collective_.self, comm);
}

void SliceEnds::close(const Ends& ends) const {
  if (ends.service != nullptr) plan_.calls->end_service(ends.service);
  for (const luna_comm* comm : {ends.owner, ends.guest})
    if (comm != nullptr) collective_.table->close(collective_.self, comm);
}

void SliceEnds::abort(std::uint32_t place) {
  const std::lock_guard lock(mutex_);
  if (place < ends_.size()) abort(ends_[place]);
}

void SliceEnds::abort_all() {
  const std::lock_guard lock(mutex_);
  for (const Ends& ends : ends_)
    abort(ends);
}

void SliceEnds::close(std::uint32_t place) {
  Ends ends;
  {
    const std::lock_guard lock(mutex_);
    if (place >= ends_.size()) return;
    ends = std::exchange(ends_[place], Ends{});
  }
  comms_[place] = nullptr;
  abort(ends);
  close(ends);
}

}  // namespace luna::model
