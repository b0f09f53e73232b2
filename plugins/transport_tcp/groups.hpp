// The communicators of an endpoint, and their frames.
#pragma once

#include "group.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::tcp {

/// Groups by name, and ranks elsewhere that came before anybody here opened theirs. [io]
class Groups {
 public:
  explicit Groups(Host host) : host_(host) {}

  struct Joining {
    std::string_view group;
    std::uint32_t rank = 0;
    std::uint64_t message_bytes_max = 0;
    std::uint64_t opening = 0;
    std::span<const luna_comm_lane> lanes;
    /// [n_ranks], by which they are reached; null: the rank itself, where nobody else is here
    std::vector<std::shared_ptr<Peer>> outs;
  };
  /// Opens a rank of this endpoint and tells the endpoints of the others.
  /// Errors   invalid_argument: it contradicts the ranks that are open; unavailable: aborted
  Result<std::shared_ptr<Group>> join(Joining joining);
  void leave(const std::shared_ptr<Group>& group, std::uint32_t rank);

  /// Whether a group reaches ranks by this peer.
  [[nodiscard]] bool is_used(const Peer& peer) const;
  void peer_is_over(Peer& peer);
  bool begin_message(const Header& header);
  std::span<std::byte> place(const Header& header, std::uint64_t n_done);
  /// A whole frame. False: it breaks a bound.
  bool on_frame(Peer& peer,
                const Header& header,
                const std::array<std::byte, kGroupShapeBytes>& shape);

  /// By which frames name a group: of its name alone, so that shapes can be compared.
  static std::uint64_t id_of(std::string_view name);

 private:
  /// A rank elsewhere whose group nobody has opened here.
  struct Early {
    std::shared_ptr<Peer> peer;
    std::uint64_t opening = 0;
    std::uint32_t n_ranks = 0;
    std::uint64_t message_bytes_max = 0;
    bool is_aborted = false;
  };
  static constexpr std::size_t kEarlyMax = 1024;

  [[nodiscard]] std::shared_ptr<Group> find(std::uint64_t id) const;
  bool on_join(Peer& peer, const Header& header, Early early);
  void admit(Group& group, std::uint32_t rank, const Early& early);
  void admit_early(Group& group);
  void on_abort(const Header& header);
  void on_leave(const Header& header);

  const Host host_;
  std::map<std::uint64_t, std::shared_ptr<Group>> groups_;  // by id; shared with their ranks
  std::map<std::pair<std::uint64_t, std::uint32_t>, Early> early_;  // by group and rank
};

/// A frame about a rank as such.
Outgoing membership_frame(FrameType type, const Group& group, std::uint32_t rank);

}  // namespace luna::tcp
