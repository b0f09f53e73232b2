// One rank's end of a communicator.
#pragma once

#include "endpoint.hpp"
#include "group.hpp"

#include <luna/collective.hpp>

#include <memory>

namespace luna::tcp {

/// Calls come from one device's executor, one at a time. Small messages allocate nothing.
class GroupRank final : public Communicator, private RankChannels {
 public:
  GroupRank(Endpoint& endpoint, std::shared_ptr<Group> group, std::uint32_t rank);

  luna_status send(std::uint32_t peer, std::uint32_t tag, std::span<const std::byte> data) override;
  luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override;
  luna_status all_reduce(const void* in,
                         void* out,
                         std::uint64_t n,
                         std::uint32_t operation) override;

  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }

 private:
  // The channels of the all-reduce.
  luna_status send(std::uint32_t peer, std::span<const std::byte> bytes) override;
  luna_status receive(std::uint32_t peer, std::span<std::byte> bytes) override;

  luna_status send_on(const LaneKey& key, std::span<const std::byte> data);
  luna_status receive_on(const LaneKey& key, std::span<std::byte> data);
  luna_status send_uncopied(std::unique_lock<std::mutex>& lock, Outgoing frame, const LaneKey& key);
  [[nodiscard]] bool is_peer(std::uint32_t peer) const {
    return peer < n_ranks() && peer != rank();
  }
  [[nodiscard]] Group::Rank& own() { return group_->ranks_[rank()]; }

  Endpoint& endpoint_;                  // outlives its ranks
  const std::shared_ptr<Group> group_;  // shared by its ranks and by frames under way
  ReduceOverChannels reduce_;
};

}  // namespace luna::tcp
