// Ranks of one communicator that live in one process.
#pragma once

#include "mailbox.hpp"

#include <luna/collective.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace luna::inproc {

/// What the ranks of a communicator share. Lives until its last rank has closed.
class Group {
 public:
  explicit Group(const CommunicatorOptions& options);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t n_ranks() const { return n_ranks_; }
  [[nodiscard]] std::uint64_t message_bytes_max() const { return message_bytes_max_; }
  [[nodiscard]] std::uint32_t n_messages_max() const { return n_messages_max_; }

  /// Marks a rank as there. invalid_argument: the rank was opened before. [main]
  Result<void> join(std::uint32_t rank);
  /// Marks a rank as gone and wakes whoever waits for it. Returns whether it was the last. [main]
  bool leave(std::uint32_t rank);
  /// Every wait, now and later, ends with LUNA_CANCELLED. [any]
  void abort();
  [[nodiscard]] bool is_aborted() const { return aborted_.load(std::memory_order_acquire); }

  /// LUNA_OK while a call may go on waiting for `peer`.
  [[nodiscard]] luna_status over(std::uint32_t peer) const {
    if (is_aborted()) return LUNA_CANCELLED;
    return ranks_[peer].load(std::memory_order_acquire) == RankState::gone ? LUNA_UNAVAILABLE
                                                                           : LUNA_OK;
  }

  /// The mailbox of a sender, a receiver and a tag, made at its first use; nullptr: too many tags.
  /// tag   32 bits of a caller's, or kReduceTag
  Mailbox* mailbox(std::uint32_t from, std::uint32_t to, std::uint64_t tag);
  static constexpr std::uint64_t kReduceTag = std::uint64_t{1} << 32U;

 private:
  enum class RankState : std::uint32_t { absent, present, gone };
  /// Written once under the mutex, tag before mailbox; read without it.
  struct Tagged {
    std::uint64_t tag = 0;
    std::atomic<Mailbox*> mailbox{nullptr};
  };
  using Pair = std::array<Tagged, kCommTagsMax + 1>;

  void wake_all();

  const std::string name_;
  const std::uint32_t n_ranks_;
  const std::uint64_t message_bytes_max_;
  const std::uint32_t n_messages_max_;
  std::vector<std::atomic<RankState>> ranks_;
  std::vector<Pair> pairs_;  // [from, to]
  std::mutex mutex_;         // guards the making of mailboxes
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::atomic<bool> aborted_{false};
};

/// One rank's end. Calls come from one device's executor, one at a time.
class GroupRank final : public Communicator {
 public:
  /// spins  whether waiting may keep a core for a moment
  GroupRank(std::shared_ptr<Group> group, std::uint32_t rank, bool spins);

  luna_status send(std::uint32_t peer, std::uint32_t tag, std::span<const std::byte> data) override;
  luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override;
  luna_status all_reduce(const void* in,
                         void* out,
                         std::uint64_t n,
                         std::uint32_t operation) override;

  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }

 private:
  [[nodiscard]] bool is_peer(std::uint32_t peer) const {
    return peer < n_ranks() && peer != rank();
  }
  luna_status send_to_all(std::span<const std::byte> piece);
  luna_status receive_from_all(std::size_t n_bytes);
  void sum_piece(const float* in, float* out, std::size_t n) const;

  const std::shared_ptr<Group> group_;  // shared by its ranks, which close in any order
  const bool spins_;
  std::vector<std::span<const std::byte>> pieces_;  // by rank; all_reduce's, kept to not allocate
};

}  // namespace luna::inproc
