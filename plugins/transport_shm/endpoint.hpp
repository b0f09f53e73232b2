// One endpoint: its inbox, its registered memory and its links.
#pragma once

#include "link.hpp"

#include <luna/transport.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace luna::shm {

/// The transfers of one transport instance. A resource, owned by it. [io], but for the speeds.
class Endpoint {
 public:
  /// Links that an endpoint makes in its life; their numbers are not used again.
  static constexpr std::uint32_t kLinksMax = 1024;

  static Result<std::unique_ptr<Endpoint>> create(std::uint64_t ring_bytes);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  /// Peers see their transfers end: unavailable.
  ~Endpoint();

  [[nodiscard]] const SegmentAddress& address() const { return inbox_.address(); }

  /// The peer's number once it has connected too and the link is measured; nullopt: not yet.
  /// Errors   unavailable: it has gone; corrupt; exhausted; io
  Result<std::optional<std::uint32_t>> connect(const SegmentAddress& peer);
  void drop(std::uint32_t peer);

  std::uint64_t add_region(void* begin, std::uint64_t n_bytes);
  void remove_region(std::uint64_t key);

  Result<void> post(std::span<const luna_xfer> transfers);
  std::uint32_t poll(std::span<luna_xfer_done> done);

  /// The measured speed, or what is assumed before. [any]
  [[nodiscard]] const LinkSpeed& speed(std::uint32_t peer) const {
    return speeds_[peer < kLinksMax ? peer : 0];
  }

 private:
  explicit Endpoint(Inbox inbox)
      : inbox_(std::move(inbox)), speeds_(std::make_unique<LinkSpeed[]>(kLinksMax)) {}

  Result<std::uint32_t> link_to(const SegmentAddress& peer);
  [[nodiscard]] Result<void> check(const luna_xfer& transfer) const;

  const Inbox inbox_;
  EndpointState state_;
  const std::unique_ptr<LinkSpeed[]> speeds_;  // [kLinksMax], by peer
  std::vector<std::unique_ptr<Link>> links_;   // by peer; nullptr: dropped
  std::size_t n_open_ = 0;                     // transfers posted and not yet polled
  std::uint64_t next_key_ = 1;
};

}  // namespace luna::shm
