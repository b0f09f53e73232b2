#include "communicator.hpp"

#include <algorithm>
#include <cstring>

namespace luna::inproc {

Group::Group(const CommunicatorOptions& options)
    : name_(options.group),
      n_ranks_(options.n_ranks),
      message_bytes_max_(options.message_bytes_max),
      n_messages_max_(comm_messages(options)),
      ranks_(n_ranks_),
      pairs_(std::size_t{n_ranks_} * n_ranks_) {}

Result<void> Group::join(std::uint32_t rank) {
  if (is_aborted()) {
    return Error{Code::unavailable,
                 "group " + name_ + " was aborted and its ranks have not all closed"};
  }
  RankState expected = RankState::absent;
  if (!ranks_[rank].compare_exchange_strong(expected, RankState::present)) {
    return Error{Code::invalid_argument,
                 "rank " + std::to_string(rank) + " of group " + name_ +
                     (expected == RankState::present ? " is open already"
                                                     : " has closed; the others must close first")};
  }
  return {};
}

bool Group::leave(std::uint32_t rank) {
  ranks_[rank].store(RankState::gone, std::memory_order_release);
  wake_all();
  return std::none_of(ranks_.begin(), ranks_.end(), [](const std::atomic<RankState>& state) {
    return state.load(std::memory_order_acquire) == RankState::present;
  });
}

void Group::abort() {
  aborted_.store(true, std::memory_order_release);
  wake_all();
}

void Group::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& mailbox : mailboxes_)
    mailbox->wake();
}

Mailbox* Group::mailbox(std::uint32_t from, std::uint32_t to, std::uint64_t tag) {
  Pair& pair = pairs_[std::size_t{from} * n_ranks_ + to];
  const auto find = [&]() -> std::pair<Tagged*, Mailbox*> {
    for (Tagged& place : pair) {
      Mailbox* const found = place.mailbox.load(std::memory_order_acquire);
      if (found == nullptr || place.tag == tag) return {&place, found};
    }
    return {nullptr, nullptr};
  };
  if (Mailbox* const found = find().second; found != nullptr) return found;
  const std::lock_guard lock(mutex_);
  const auto [place, found] = find();
  if (found != nullptr || place == nullptr) return found;
  mailboxes_.push_back(std::make_unique<Mailbox>(message_bytes_max_, n_messages_max_));
  place->tag = tag;
  place->mailbox.store(mailboxes_.back().get(), std::memory_order_release);
  return mailboxes_.back().get();
}

GroupRank::GroupRank(std::shared_ptr<Group> group, std::uint32_t rank, bool spins)
    : Communicator(rank, group->n_ranks()),
      group_(std::move(group)),
      spins_(spins),
      pieces_(n_ranks()) {}

luna_status GroupRank::send(std::uint32_t peer,
                            std::uint32_t tag,
                            std::span<const std::byte> data) {
  if (!is_peer(peer) || data.size() > group_->message_bytes_max()) return LUNA_INVALID_ARGUMENT;
  Mailbox* const mailbox = group_->mailbox(rank(), peer, tag);
  if (mailbox == nullptr) return LUNA_EXHAUSTED;
  return mailbox->send(data, spins_, [&] { return group_->over(peer); });
}

luna_status GroupRank::recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) {
  if (!is_peer(peer) || data.size() > group_->message_bytes_max()) return LUNA_INVALID_ARGUMENT;
  Mailbox* const mailbox = group_->mailbox(peer, rank(), tag);
  if (mailbox == nullptr) return LUNA_EXHAUSTED;
  std::span<const std::byte> message;
  const luna_status status = mailbox->front(message, spins_, [&] { return group_->over(peer); });
  if (status != LUNA_OK) return status;
  if (message.size() != data.size()) return LUNA_INVALID_ARGUMENT;
  if (!message.empty()) std::memcpy(data.data(), message.data(), message.size());
  mailbox->pop();
  return LUNA_OK;
}

// Every rank gets every other rank's input and adds in rank order, so all ranks hold the same bits
// after one exchange. Each sends a piece before it waits for any, so no wait can close a circle.
luna_status GroupRank::all_reduce(const void* in,
                                  void* out,
                                  std::uint64_t n,
                                  std::uint32_t operation) {
  if (operation != LUNA_REDUCE_SUM_F32) return LUNA_UNSUPPORTED;
  const std::uint64_t piece_n_max = group_->message_bytes_max() / sizeof(float);
  if (piece_n_max == 0) return LUNA_INVALID_ARGUMENT;
  if (group_->is_aborted()) return LUNA_CANCELLED;
  for (std::uint64_t first = 0; first < n; first += piece_n_max) {
    const std::uint64_t piece_n = std::min(piece_n_max, n - first);
    const float* const piece = static_cast<const float*>(in) + first;
    const std::size_t n_bytes = piece_n * sizeof(float);
    if (const luna_status status = send_to_all(std::as_bytes(std::span(piece, piece_n)));
        status != LUNA_OK) {
      return status;
    }
    if (const luna_status status = receive_from_all(n_bytes); status != LUNA_OK) return status;
    sum_piece(piece, static_cast<float*>(out) + first, piece_n);
    for (std::uint32_t peer = 0; peer < n_ranks(); ++peer) {
      if (peer != rank()) group_->mailbox(peer, rank(), Group::kReduceTag)->pop();
    }
  }
  return LUNA_OK;
}

luna_status GroupRank::send_to_all(std::span<const std::byte> piece) {
  for (std::uint32_t peer = 0; peer < n_ranks(); ++peer) {
    if (peer == rank()) continue;
    Mailbox* const mailbox = group_->mailbox(rank(), peer, Group::kReduceTag);
    if (mailbox == nullptr) return LUNA_EXHAUSTED;
    const luna_status status = mailbox->send(piece, spins_, [&] { return group_->over(peer); });
    if (status != LUNA_OK) return status;
  }
  return LUNA_OK;
}

luna_status GroupRank::receive_from_all(std::size_t n_bytes) {
  for (std::uint32_t peer = 0; peer < n_ranks(); ++peer) {
    if (peer == rank()) continue;
    Mailbox* const mailbox = group_->mailbox(peer, rank(), Group::kReduceTag);
    if (mailbox == nullptr) return LUNA_EXHAUSTED;
    const luna_status status =
        mailbox->front(pieces_[peer], spins_, [&] { return group_->over(peer); });
    if (status != LUNA_OK) return status;
    if (pieces_[peer].size() != n_bytes) return LUNA_INVALID_ARGUMENT;
  }
  return LUNA_OK;
}

void GroupRank::sum_piece(const float* in, float* out, std::size_t n) const {
  // Element by element, because `out` may be `in`.
  for (std::size_t i = 0; i < n; ++i) {
    float sum = 0.0F;
    for (std::uint32_t r = 0; r < n_ranks(); ++r) {
      float value = in[i];
      if (r != rank()) {
        std::memcpy(&value, pieces_[r].data() + i * sizeof(float), sizeof(value));
      }
      sum = r == 0 ? value : sum + value;
    }
    out[i] = sum;
  }
}

}  // namespace luna::inproc
