// One rank's end of a group in shared memory.
#pragma once

#include "group.hpp"

#include <luna/collective.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::shm {

/// Sends, receives and adds. Calls come from one device's executor, one at a time; abort() of the
/// group from any thread. Owned by the transport.
class GroupRank final : public Communicator {
 public:
  /// name    of the group with its run, under which others look for it
  /// spins   whether waiting may keep a core
  GroupRank(Group group, std::string name, std::uint32_t rank, bool spins);
  ~GroupRank() override { group_.leave(rank()); }

  luna_status send(std::uint32_t peer, std::uint32_t tag, std::span<const std::byte> data) override;
  luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override;
  luna_status all_reduce(const void* in,
                         void* out,
                         std::uint64_t n,
                         std::uint32_t operation) override;

  [[nodiscard]] Group& group() { return group_; }
  [[nodiscard]] const Epoch& epoch() const { return group_.address().epoch; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  /// Precedes a message in its ring.
  struct MessageHead {
    std::uint64_t n_bytes = 0;
  };
  struct Outgoing {
    std::uint32_t tag;
    RingWriter ring;
  };
  struct Incoming {
    std::uint32_t tag;
    RingReader ring;
    std::optional<std::uint64_t> front_bytes;  // of a message whose head was taken
  };
  struct Peer {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    std::optional<ProcessWatch> process;  // once it was waited for in vain
  };

  [[nodiscard]] bool is_peer(std::uint32_t peer) const {
    return peer < n_ranks() && peer != rank();
  }
  Outgoing* outgoing(std::uint32_t peer, std::uint32_t tag);
  Incoming* incoming(std::uint32_t peer, std::uint32_t tag);
  luna_status put(std::uint32_t peer, RingWriter& ring, std::span<const std::byte> data);
  luna_status take(std::uint32_t peer, RingReader& ring, std::span<std::byte> bytes);
  luna_status meet();
  bool is_lost(std::uint32_t peer);
  bool is_any_lost();

  Group group_;
  const std::string name_;
  const bool spins_;
  std::vector<Peer> peers_;       // by rank
  std::uint32_t n_rounds_ = 0;    // of all-reduces that this rank arrived at, modulo 2^32
  luna_status broken_ = LUNA_OK;  // what ended the group for this rank; stays
};

}  // namespace luna::shm
