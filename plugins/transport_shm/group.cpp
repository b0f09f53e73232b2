#include "group.hpp"

#include <cstring>
#include <string>

namespace luna::shm {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t whole_pages(std::uint64_t n_bytes) {
  return (n_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Group::Layout::Layout(const GroupTerms& terms) {
  const std::uint64_t n_ranks = terms.n_ranks;
  const std::uint64_t n_lanes = n_ranks * n_ranks * kCommTagsMax;
  ranks = kWordsAt + sizeof(Words);
  lanes = ranks + n_ranks * sizeof(RankWords);
  vectors = whole_pages(lanes + n_lanes * sizeof(LaneWords));
  rings = vectors + n_ranks * 2 * kVectorBytes;
  end = rings + n_lanes * terms.lane_bytes;
}

Result<Group> Group::create(const GroupTerms& terms) {
  static_assert(kTermsAt + sizeof(GroupTerms) <= kWordsAt && kWordsAt % alignof(Words) == 0);
  LUNA_TRY(auto segment, Segment::create(SegmentUse::group, Layout(terms).end));
  std::memcpy(segment.at(kTermsAt), &terms, sizeof(terms));
  return Group(std::move(segment), terms);
}

Result<Group> Group::attach(const SegmentAddress& address, const GroupTerms& terms) {
  LUNA_TRY(auto segment, Segment::attach(address, SegmentUse::group));
  if (segment.n_bytes() < kWordsAt)
    return Error{Code::corrupt,
                 "a group's segment of " + std::to_string(segment.n_bytes()) + " bytes"};
  GroupTerms theirs;
  std::memcpy(&theirs, segment.at(kTermsAt), sizeof(theirs));
  if (theirs != terms) {
    const auto text = [](const GroupTerms& said) {
      return std::to_string(said.n_ranks) + " ranks, messages of up to " +
             std::to_string(said.message_bytes_max) + " bytes and rings of " +
             std::to_string(said.lane_bytes);
    };
    return Error{Code::invalid_argument,
                 "the group has " + text(theirs) + "; this rank says " + text(terms)};
  }
  if (segment.n_bytes() != Layout(terms).end) {
    return Error{Code::corrupt,
                 "a group's segment of " + std::to_string(segment.n_bytes()) + " bytes, expected " +
                     std::to_string(Layout(terms).end)};
  }
  return Group(std::move(segment), terms);
}

Result<void> Group::join(const CommunicatorOptions& options) {
  RankWords& own = rank_words(options.rank);
  const RankState before = own.state.load(std::memory_order_acquire);
  if (before != RankState::absent) {
    return Error{Code::invalid_argument,
                 "rank " + std::to_string(options.rank) +
                     (before == RankState::present ? " is open already"
                                                   : " has closed; the others must close first")};
  }
  const std::uint64_t vectors = layout_.vectors + std::uint64_t{options.rank} * 2 * kVectorBytes;
  LUNA_TRY(segment_.reserve(vectors, 2 * kVectorBytes));
  for (const luna_comm_lane& wanted : options.lanes) {
    if (const auto made = lane(wanted.peer, options.rank, wanted.tag); !made) return made.error();
  }
  own.process = own_process();
  own.state.store(RankState::present, std::memory_order_release);
  return {};
}

void Group::leave(std::uint32_t rank) {
  rank_words(rank).state.store(RankState::gone, std::memory_order_release);
  words().n_gone.fetch_add(1, std::memory_order_release);
  for (std::uint32_t other = 0; other < terms_.n_ranks; ++other)
    bell_of(other).ring();
  all_arrived().ring();
}

void Group::abort() {
  words().is_aborted.store(1, std::memory_order_release);
  for (std::uint32_t rank = 0; rank < terms_.n_ranks; ++rank)
    bell_of(rank).ring();
  all_arrived().ring();
}

std::optional<ProcessId> Group::process_of(std::uint32_t rank) const {
  const RankWords& words = rank_words(rank);
  if (words.state.load(std::memory_order_acquire) != RankState::present) return std::nullopt;
  return words.process;
}

bool Group::is_over() const {
  if (is_aborted()) return true;
  for (std::uint32_t rank = 0; rank < terms_.n_ranks; ++rank) {
    const auto process = process_of(rank);
    if (is_gone(rank) || (process && !ProcessWatch(*process).is_alive())) return true;
  }
  return false;
}

bool Group::is_complete() const {
  for (std::uint32_t rank = 0; rank < terms_.n_ranks; ++rank) {
    if (rank_words(rank).state.load(std::memory_order_acquire) == RankState::absent) return false;
  }
  return true;
}

std::span<std::byte> Group::vector_of(std::uint32_t rank, std::uint32_t turn) const {
  const std::uint64_t number = std::uint64_t{rank} * 2 + turn % 2;
  return {segment_.at(layout_.vectors + number * kVectorBytes), kVectorBytes};
}

// Tags fill a pair's places from the front and stay, so both sides find the same place: the one
// with their tag, or else the first free one, which the faster side gets and the other then finds.
Result<Group::Lane> Group::lane(std::uint32_t from, std::uint32_t to, std::uint32_t tag) const {
  const std::uint64_t first = lane_number(from, to);
  for (std::uint64_t number = first; number < first + kCommTagsMax; ++number) {
    auto& words = shared<LaneWords>(layout_.lanes + number * sizeof(LaneWords));
    std::uint64_t holder = 0;
    words.tag.compare_exchange_strong(holder, kTagged | tag, std::memory_order_acq_rel);
    if (holder != 0 && holder != (kTagged | tag)) continue;
    const std::uint64_t offset = layout_.rings + number * terms_.lane_bytes;
    LUNA_TRY(segment_.reserve(offset, terms_.lane_bytes));
    return Lane{&words.ring, {segment_.at(offset), terms_.lane_bytes}};
  }
  return Error{Code::exhausted,
               "tag " + std::to_string(tag) + ": ranks " + std::to_string(from) + " and " +
                   std::to_string(to) + " use " + std::to_string(kCommTagsMax) + " tags already"};
}

}  // namespace luna::shm
