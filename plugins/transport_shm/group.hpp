// What the ranks of one communicator share: one segment with everybody's words, vectors and rings.
//
//   head, terms        what was agreed; never read again once checked
//   words              abort flag, arrivals at an all-reduce
//   ranks              [n_ranks] who is there, and each one's bell
//   lanes              [from, to, kCommTagsMax] tag and indices of a ring
//   vectors            [n_ranks, 2, kVectorBytes] what a rank adds to an all-reduce
//   rings              [from, to, kCommTagsMax, lane_bytes]
//
// All places follow from the terms, so nothing that a peer writes is ever an address. Most of it is
// address space alone: memory is taken for what a rank declares when it joins, and else at use.
#pragma once

#include "bell.hpp"
#include "ring.hpp"
#include "segment.hpp"

#include <luna/collective.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

namespace luna::shm {

/// What all ranks of a group must say alike.
struct GroupTerms {
  std::uint32_t n_ranks = 0;
  std::uint32_t pad = 0;
  std::uint64_t message_bytes_max = 0;
  std::uint64_t lane_bytes = 0;  // a ring's, a power of two

  friend bool operator==(const GroupTerms&, const GroupTerms&) = default;
};

enum class RankState : std::uint32_t { absent, present, gone };

/// A rank's words. Written by itself, but for the sleepers' count of its bell.
struct RankWords {
  alignas(64) std::atomic<RankState> state{RankState::absent};
  ProcessId process;  // before `state` says present
  alignas(64) Bell bell;
};

/// One ring's words.
struct LaneWords {
  alignas(64) std::atomic<std::uint64_t> tag{0};  // kTagged and the caller's tag; 0: free
  RingIndices ring;
};

/// A mapped group. A resource, one for each rank; its memory ends with its last rank. [main] makes
/// it, [step] uses it; abort() comes from anywhere.
class Group {
 public:
  /// A piece of an all-reduce: beyond it copies bound the time, not the meetings.
  static constexpr std::uint64_t kVectorBytes = std::uint64_t{64} * 1024;

  /// Errors   as Segment::create()
  static Result<Group> create(const GroupTerms& terms);
  /// Errors   as Segment::attach(); invalid_argument: other ranks say other terms
  static Result<Group> attach(const SegmentAddress& address, const GroupTerms& terms);

  /// Takes its memory and marks a rank of this process as there; joins come one at a time.
  /// Errors   invalid_argument: somebody has this rank; exhausted
  Result<void> join(const CommunicatorOptions& options);
  /// Wakes whoever waits for the rank.
  void leave(std::uint32_t rank);
  /// Ends every wait, now and later. [any]
  void abort();

  [[nodiscard]] bool is_aborted() const {
    return words().is_aborted.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] bool has_gone_ranks() const {
    return words().n_gone.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] bool is_gone(std::uint32_t rank) const {
    return rank_words(rank).state.load(std::memory_order_acquire) == RankState::gone;
  }
  /// The process of a rank that is there.
  [[nodiscard]] std::optional<ProcessId> process_of(std::uint32_t rank) const;
  /// Whether it cannot work any more: aborted, or a rank has gone or died.
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_complete() const;

  [[nodiscard]] const GroupTerms& terms() const { return terms_; }
  [[nodiscard]] const SegmentAddress& address() const { return segment_.address(); }

  [[nodiscard]] Bell& bell_of(std::uint32_t rank) const { return rank_words(rank).bell; }
  [[nodiscard]] std::atomic<std::uint32_t>& n_arrived() const { return words().n_arrived; }
  [[nodiscard]] Bell& all_arrived() const { return words().all_arrived; }
  /// A rank's piece of an all-reduce; two by turns.
  [[nodiscard]] std::span<std::byte> vector_of(std::uint32_t rank, std::uint32_t turn) const;

  /// The ring of a sender, a receiver and a tag, taken by whichever of them comes first.
  struct Lane {
    RingIndices* indices = nullptr;
    std::span<std::byte> bytes;
  };
  /// exhausted: too many tags, or no memory.
  Result<Lane> lane(std::uint32_t from, std::uint32_t to, std::uint32_t tag) const;

 private:
  struct Words {
    alignas(64) std::atomic<std::uint32_t> is_aborted{0};
    std::atomic<std::uint32_t> n_gone{0};                 // ranks that closed
    alignas(64) std::atomic<std::uint32_t> n_arrived{0};  // at all-reduces, of all ranks
    alignas(64) Bell all_arrived;
  };
  /// Offsets in the segment.
  struct Layout {
    explicit Layout(const GroupTerms& terms);
    std::uint64_t ranks;
    std::uint64_t lanes;
    std::uint64_t vectors;
    std::uint64_t rings;
    std::uint64_t end;
  };
  static constexpr std::uint64_t kTermsAt = sizeof(SegmentHead);
  static constexpr std::uint64_t kWordsAt = 128;
  static constexpr std::uint64_t kTagged = std::uint64_t{1} << 32U;

  Group(Segment segment, const GroupTerms& terms)
      : segment_(std::move(segment)), terms_(terms), layout_(terms) {}

  template <typename T>
  [[nodiscard]] T& shared(std::uint64_t offset) const {
    // Zeros of a fresh segment are these types' initial values.
    return *reinterpret_cast<T*>(segment_.at(offset));
  }
  [[nodiscard]] Words& words() const { return shared<Words>(kWordsAt); }
  [[nodiscard]] RankWords& rank_words(std::uint32_t rank) const {
    return shared<RankWords>(layout_.ranks + rank * sizeof(RankWords));
  }
  [[nodiscard]] std::uint64_t lane_number(std::uint32_t from, std::uint32_t to) const {
    return (std::uint64_t{from} * terms_.n_ranks + to) * kCommTagsMax;
  }

  Segment segment_;
  GroupTerms terms_;
  Layout layout_;
};

}  // namespace luna::shm
