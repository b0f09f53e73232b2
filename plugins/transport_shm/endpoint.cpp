#include "endpoint.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace luna::shm {

Result<std::unique_ptr<Endpoint>> Endpoint::create(std::uint64_t ring_bytes) {
  LUNA_TRY(auto inbox, Inbox::create(ring_bytes));
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(inbox)));
}

Endpoint::~Endpoint() {
  links_.clear();
  inbox_.close();
}

Result<std::uint32_t> Endpoint::link_to(const SegmentAddress& peer) {
  const auto known = std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
    return link != nullptr && !link->is_over() && link->peer() == peer.epoch;
  });
  if (known != links_.end()) return static_cast<std::uint32_t>(known - links_.begin());
  if (links_.size() == kLinksMax) {
    return Error{Code::exhausted,
                 "an endpoint makes " + std::to_string(kLinksMax) + " connections in its life"};
  }
  LUNA_TRY(auto inbox, Inbox::attach(peer));
  LUNA_TRY(const std::uint32_t door, inbox.enter(inbox_.epoch()));
  links_.push_back(std::make_unique<Link>(inbox_, std::move(inbox), door, peer.process));
  return static_cast<std::uint32_t>(links_.size() - 1);
}

Result<std::optional<std::uint32_t>> Endpoint::connect(const SegmentAddress& peer) {
  LUNA_TRY(const std::uint32_t number, link_to(peer));
  Link& link = *links_[number];
  link.advance(state_, speeds_[number]);
  if (link.is_over()) return Error{Code::unavailable, "the peer has closed"};
  if (!link.is_ready()) return std::optional<std::uint32_t>();
  return std::optional(number);
}

void Endpoint::drop(std::uint32_t peer) {
  if (peer >= links_.size() || links_[peer] == nullptr) return;
  links_[peer]->end(state_);
  links_[peer].reset();
}

std::uint64_t Endpoint::add_region(void* begin, std::uint64_t n_bytes) {
  const std::uint64_t key = next_key_++;
  state_.regions[key] = {static_cast<std::byte*>(begin), n_bytes};
  return key;
}

void Endpoint::remove_region(std::uint64_t key) {
  for (const auto& link : links_)
    if (link != nullptr) link->cancel(state_, key);
  state_.regions.erase(key);
}

Result<void> Endpoint::check(const luna_xfer& transfer) const {
  if (transfer.verb != LUNA_XFER_SEND && transfer.verb != LUNA_XFER_RECV) {
    return Error{Code::invalid_argument,
                 "transfer verb " + std::to_string(transfer.verb) + ": must be send or receive"};
  }
  if (transfer.peer >= links_.size()) {
    return Error{Code::invalid_argument,
                 "peer " + std::to_string(transfer.peer) + " is not connected"};
  }
  const auto region = state_.regions.find(transfer.key);
  return check_range(transfer, region == state_.regions.end() ? nullptr : &region->second.n_bytes);
}

Result<void> Endpoint::post(std::span<const luna_xfer> transfers) {
  if (n_open_ + transfers.size() > Link::kTransfersMax) {
    return Error{Code::exhausted,
                 std::to_string(n_open_) + " transfers are open and " +
                     std::to_string(transfers.size()) + " more were posted: at most " +
                     std::to_string(Link::kTransfersMax)};
  }
  for (const luna_xfer& transfer : transfers)
    LUNA_TRY(check(transfer));
  n_open_ += transfers.size();
  for (const luna_xfer& transfer : transfers) {
    if (Link* const link = links_[transfer.peer].get(); link != nullptr)
      link->post(state_, transfer);
    else
      state_.finish(transfer, LUNA_UNAVAILABLE);
  }
  for (std::size_t peer = 0; peer < links_.size(); ++peer)
    if (links_[peer] != nullptr) links_[peer]->advance(state_, speeds_[peer]);
  return {};
}

std::uint32_t Endpoint::poll(std::span<luna_xfer_done> done) {
  for (std::size_t peer = 0; peer < links_.size(); ++peer)
    if (links_[peer] != nullptr) links_[peer]->advance(state_, speeds_[peer]);
  std::uint32_t n = 0;
  while (n < done.size() && !state_.done.empty()) {
    done[n++] = state_.done.front();
    state_.done.pop_front();
  }
  n_open_ -= n;
  return n;
}

}  // namespace luna::shm
