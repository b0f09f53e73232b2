#include "groups.hpp"

#include "bytes.hpp"
#include "peer.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <set>
#include <string>

namespace luna::tcp {

std::uint64_t Groups::id_of(std::string_view name) {
  std::array<std::byte, 32> digest{};
  EVP_Digest(name.data(),
             name.size(),
             reinterpret_cast<unsigned char*>(digest.data()),
             nullptr,
             EVP_sha256(),
             nullptr);
  return load<std::uint64_t>(std::span<const std::byte>(digest), 0);
}

Outgoing membership_frame(FrameType type, const Group& group, std::uint32_t rank) {
  Outgoing frame;
  frame.header.type = type;
  frame.header.argument = group.id();
  frame.header.lane = rank;
  frame.header.value = group.opening(rank);
  if (type != FrameType::join) return frame;
  const auto shape = std::make_shared<std::array<std::byte, kGroupShapeBytes>>();
  store(std::span<std::byte>(*shape), 0, group.n_ranks());
  store(std::span<std::byte>(*shape), 4, group.message_bytes_max());
  frame.payload = *shape;
  frame.keep = shape;
  return frame;
}

std::shared_ptr<Group> Groups::find(std::uint64_t id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<Group>> Groups::join(Joining joining) {
  const std::uint64_t id = id_of(joining.group);
  const auto n_ranks = static_cast<std::uint32_t>(joining.outs.size());
  std::shared_ptr<Group> group = find(id);
  const bool is_first = group == nullptr;
  if (is_first) {
    group = std::make_shared<Group>(
        id, std::string(joining.group), joining.message_bytes_max, joining.outs);
    groups_[id] = group;
  } else if (group->n_ranks() != n_ranks ||
             group->message_bytes_max() != joining.message_bytes_max) {
    return Error{Code::invalid_argument,
                 "group " + group->name() + " has " + std::to_string(group->n_ranks()) +
                     " ranks and messages of up to " + std::to_string(group->message_bytes_max()) +
                     " bytes; rank " + std::to_string(joining.rank) + " says " +
                     std::to_string(n_ranks) + " and " + std::to_string(joining.message_bytes_max)};
  }
  if (auto opened = group->open_local(joining.rank, joining.opening); !opened) {
    if (is_first) groups_.erase(id);
    return opened.error();
  }
  for (const luna_comm_lane& lane : joining.lanes)
    group->inbox({lane.peer, joining.rank, lane.tag, false});
  std::set<Peer*> told;
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    const auto& out = group->out(rank);
    // Ranks of this endpoint know each other by the group itself.
    if (out == group->out(joining.rank) || !told.insert(out.get()).second) continue;
    out->send(membership_frame(FrameType::join, *group, joining.rank));
  }
  // Behind that: a rank of another shape must learn of this one, to abort as well.
  if (is_first) admit_early(*group);
  return group;
}

void Groups::admit_early(Group& group) {
  for (std::uint32_t rank = 0; rank < group.n_ranks(); ++rank) {
    const auto early = early_.find({group.id(), rank});
    if (early == early_.end() || early->second.peer != group.out(rank)) continue;
    admit(group, rank, early->second);
    early_.erase(early);
  }
}

// Behind all messages that the rank has sent, to the ranks of this endpoint too.
void Groups::leave(const std::shared_ptr<Group>& group, std::uint32_t rank) {
  std::set<Peer*> told;
  for (std::uint32_t other = 0; other < group->n_ranks(); ++other) {
    if (other == rank || !told.insert(group->out(other).get()).second) continue;
    group->out(other)->send(membership_frame(FrameType::leave, *group, rank));
  }
  if (group->close_local(rank)) groups_.erase(group->id());
}

bool Groups::is_used(const Peer& peer) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    const Group& group = *entry.second;
    for (std::uint32_t rank = 0; rank < group.n_ranks(); ++rank)
      if (group.out(rank).get() == &peer) return true;
    return false;
  });
}

void Groups::peer_is_over(Peer& peer) {
  for (const auto& [id, group] : groups_)
    group->peer_is_over(peer);
  std::erase_if(early_, [&](const auto& entry) { return entry.second.peer.get() == &peer; });
}

bool Groups::begin_message(const Header& header) {
  const auto group = find(header.argument);
  return group == nullptr || group->begin_message(header);
}

std::span<std::byte> Groups::place(const Header& header, std::uint64_t n_done) {
  const auto group = find(header.argument);
  return group == nullptr ? std::span<std::byte>() : group->place(header, n_done);
}

bool Groups::on_frame(Peer& peer,
                      const Header& header,
                      const std::array<std::byte, kGroupShapeBytes>& shape) {
  const auto group = find(header.argument);
  switch (header.type) {
    case FrameType::join: {
      const std::span<const std::byte> bytes(shape);
      return on_join(peer,
                     header,
                     {peer.shared_from_this(),
                      header.value,
                      load<std::uint32_t>(bytes, 0),
                      load<std::uint64_t>(bytes, 4),
                      false});
    }
    case FrameType::leave:
      on_leave(header);
      return true;
    case FrameType::abort:
      on_abort(header);
      return true;
    case FrameType::message:
      if (group != nullptr) group->finish_message(header, peer.shared_from_this());
      return true;
    case FrameType::credit:
      return group == nullptr || group->on_credit(header);
    default:
      return false;
  }
}

bool Groups::on_join(Peer& peer, const Header& header, Early early) {
  const auto group = find(header.argument);
  const std::uint32_t rank = header.lane;
  if (rank >= kCommRanksMax) return false;
  if (group != nullptr && rank < group->n_ranks() && group->out(rank).get() == &peer &&
      group->opening(rank) == 0) {
    admit(*group, rank, early);
    return true;
  }
  early_[{header.argument, rank}] = std::move(early);  // of a group that is yet to be opened here
  return early_.size() <= kEarlyMax;
}

void Groups::admit(Group& group, std::uint32_t rank, const Early& early) {
  group.join(rank, early.opening);
  if (early.n_ranks == group.n_ranks() && early.message_bytes_max == group.message_bytes_max()) {
    if (early.is_aborted) group.abort();
    return;
  }
  // The other side sees the same and does the same.
  host_.log(LUNA_LOG_ERROR,
            "group " + group.name() + " has " + std::to_string(group.n_ranks()) +
                " ranks and messages of up to " + std::to_string(group.message_bytes_max()) +
                " bytes; rank " + std::to_string(rank) + ", elsewhere, says " +
                std::to_string(early.n_ranks) + " and " + std::to_string(early.message_bytes_max) +
                ": the group is aborted");
  group.abort();
}

void Groups::on_abort(const Header& header) {
  const auto group = find(header.argument);
  const auto early = early_.find({header.argument, header.lane});
  if (early != early_.end() && early->second.opening == header.value)
    early->second.is_aborted = true;
  if (group != nullptr && header.lane < group->n_ranks() &&
      group->opening(header.lane) == header.value) {
    group->abort();
  }
}

void Groups::on_leave(const Header& header) {
  const auto early = early_.find({header.argument, header.lane});
  if (early != early_.end() && early->second.opening == header.value) early_.erase(early);
  const auto group = find(header.argument);
  if (group != nullptr && header.lane < group->n_ranks()) group->leave(header.lane, header.value);
}

}  // namespace luna::tcp
