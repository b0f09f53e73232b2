// A device whose sequences lie on others too, and a sequence whose closed partitions go there.
#pragma once

#include "kv_door.hpp"
#include "pair_comm.hpp"

#include <map>
#include <memory>
#include <random>

namespace luna::test {

/// Rows [first, first + n) of a sequence's tokens.
struct Rows {
  std::span<const std::uint32_t> tokens;
  std::uint32_t first = 0;
  std::uint32_t n = 0;
};

inline StepAnswer run_rows(Loaded& loaded,
                           const TinyLlama& model,
                           const Rows& rows,
                           std::span<const std::uint32_t> blocks) {
  StepInput step(model.table_stride());
  step.add(rows.tokens.subspan(rows.first, rows.n), rows.first, blocks);
  return loaded.run->run(step);
}

inline void append_logits(const TestProgram& run, std::size_t n, std::vector<float>* rows) {
  rows->insert(rows->end(), run.logits(), run.logits() + n);
}

/// An owner and its guests, each with a communicator and a service. A resource.
class SliceRig {
 public:
  static constexpr std::uint32_t kPoolBlocks = 176;

  SliceRig(const TinyLlama& tiny, std::uint32_t n_guests, std::uint32_t n_threads)
      : model(tiny), owner("cpu", tiny, n_threads, kPoolBlocks) {
    for (std::uint32_t i = 0; i < n_guests; ++i) {
      own_.push_back(std::make_unique<Loaded>("cpu", tiny, 1, kPoolBlocks));
      join(*own_.back());
    }
  }
  ~SliceRig() { end(); }
  SliceRig(const SliceRig&) = delete;
  SliceRig& operator=(const SliceRig&) = delete;

  /// A further guest: one of its own, or the owner of another rig.
  void join(Loaded& guest) {
    join_silent(guest);
    void* service = nullptr;
    luna_err err = make_err();
    KvDoor door(guest);
    const std::uint32_t no_blocks[] = {0};
    EXPECT_EQ(calls().serve(guest.run->raw(),
                            door.part(no_blocks, 0, 1).buffer,
                            comms.back()->rank(LUNA_SLICE_GUEST),
                            &service,
                            &err),
              LUNA_OK)
        << err.text;
    services_.push_back(service);
  }
  /// Ends its services: to be done before a guest that is another rig's owner goes.
  void end() {
    for (const auto& comm : comms)
      comm->end(LUNA_CANCELLED);
    for (void* service : services_)
      calls().end_service(service);
    services_.clear();
  }
  /// A guest that nobody serves for: the test answers itself.
  void join_silent(Loaded& guest) {
    guests.push_back(&guest);
    comms.push_back(std::make_unique<PairComm>());
    ends_.push_back(comms.back()->rank(LUNA_SLICE_OWNER));
    peers_ = {sizeof(peers_), static_cast<std::uint32_t>(ends_.size()), ends_.data()};
    if (ends_.size() == 1)
      owner.run->bind_comm(*owner.program.bound_slot(LUNA_SLOT_SLICES), &peers_);
  }
  [[nodiscard]] const luna_slices_if& calls() const {
    return *owner.device.extension<luna_slices_if>(LUNA_EXT_SLICES);
  }

  const TinyLlama& model;
  Loaded owner;
  std::vector<Loaded*> guests;
  std::vector<std::unique_ptr<PairComm>> comms;  // by guest

 private:
  std::vector<std::unique_ptr<Loaded>> own_;
  std::vector<const luna_comm*> ends_;
  std::vector<void*> services_;
  luna_slice_peers peers_{};
};

/// A sequence at its owner, in blocks 0 on; on guests in random ones from 96 on. Blocks that went
/// away are spoiled at home.
class SlicedSequence {
 public:
  SlicedSequence(SliceRig& rig, std::uint64_t seed)
      : rig_(rig), rng_(seed), home_(block_ids(0, 75)) {
    for (std::uint32_t i = 0; i < rig.guests.size(); ++i) {
      free_.push_back(block_ids(96, 80));
      std::shuffle(free_.back().begin(), free_.back().end(), rng_);
    }
  }

  /// Appends rows and what lies elsewhere.
  void add_rows(StepInput* step, std::span<const std::uint32_t> tokens, std::uint32_t first) {
    const auto seq = static_cast<std::uint32_t>(step->seq_first_row.size() - 1);
    step->add(tokens, first, home_);
    for (auto& [partition, place] : away_) {
      luna_slice* last = step->slices.empty() ? nullptr : &step->slices.back();
      // Neighbours on one peer are one slice where their blocks lie in one list.
      if (last != nullptr && last->seq == seq && last->peer == place.peer &&
          last->first_partition + last->n_partitions == partition &&
          last->blocks + std::size_t{last->n_partitions} * kBlocks == place.blocks) {
        ++last->n_partitions;
        continue;
      }
      step->slices.push_back({seq, place.peer, partition, 1, place.blocks});
    }
  }
  /// Copies partitions that are closed before row `first`, one in four stays at home.
  void copy_closed(std::uint32_t first) {
    for (; (next_ + 1) * LUNA_PARTITION_TOKENS <= first; ++next_) {
      if (next_ % 4 == 3) continue;
      const auto peer = static_cast<std::uint32_t>(rng_() % rig_.guests.size());
      auto& blocks = lists_[next_ / 2 * 8 + peer];  // neighbours may share a list
      blocks.reserve(16);
      const std::size_t at = blocks.size();
      for (std::uint32_t i = 0; i < kBlocks; ++i) {
        blocks.push_back(free_[peer].back());
        free_[peer].pop_back();
      }
      const std::span<const std::uint32_t> taken(blocks.data() + at, kBlocks);
      copy(std::span(home_).subspan(std::size_t{next_} * kBlocks, kBlocks), taken, peer);
      pending_[next_] = {peer, taken.data()};
    }
  }
  /// What was copied counts as away from now on.
  void let_go() {
    for (const auto& [partition, place] : pending_)
      for (std::uint32_t i = 0; i < kBlocks; ++i) {
        std::uint32_t& block = home_[std::size_t{partition} * kBlocks + i];
        KvDoor door(rig_.owner);
        const std::span<const std::uint32_t> one(&block, 1);
        const luna_kv_part part = door.part(one, 0, rig_.model.shape().n_layers);
        const std::vector<std::byte> garbage(part.n_bytes, std::byte{0xFF});
        EXPECT_EQ(door.in(part, garbage), LUNA_OK) << door.err.text;
        block = 0xFFFFFFFF;
      }
    away_.merge(pending_);
    pending_.clear();
  }
  /// Runs a prompt in steps of 256 rows; all its partitions then lie away but every fourth.
  void run_to(std::span<const std::uint32_t> tokens, std::uint32_t n) {
    for (std::uint32_t at = 0; at < n; at += LUNA_PARTITION_TOKENS) {
      StepInput step(rig_.model.table_stride());
      add_rows(&step, tokens.subspan(at, LUNA_PARTITION_TOKENS), at);
      EXPECT_EQ(rig_.owner.run->run(step).status, LUNA_OK);
    }
    copy_closed(n);
    let_go();
  }
  [[nodiscard]] std::size_t n_partitions_away() const { return away_.size(); }
  [[nodiscard]] std::uint32_t peer_of(std::uint32_t partition) const {
    return away_.at(partition).peer;
  }

 private:
  static constexpr std::uint32_t kBlocks = 8;  // of 32 positions
  struct Place {
    std::uint32_t peer;
    const std::uint32_t* blocks;
  };

  void copy(std::span<const std::uint32_t> from,
            std::span<const std::uint32_t> to,
            std::uint32_t peer) {
    KvDoor home(rig_.owner);
    KvDoor guest(*rig_.guests[peer]);
    const std::uint32_t n_layers = rig_.model.shape().n_layers;
    std::vector<std::byte> bytes;
    EXPECT_EQ(home.out(home.part(from, 0, n_layers), &bytes), LUNA_OK) << home.err.text;
    EXPECT_EQ(guest.in(guest.part(to, 0, n_layers), bytes), LUNA_OK) << guest.err.text;
  }

  SliceRig& rig_;
  std::mt19937_64 rng_;
  std::vector<std::uint32_t> home_;
  std::vector<std::vector<std::uint32_t>> free_;               // by guest
  std::map<std::uint32_t, std::vector<std::uint32_t>> lists_;  // blocks; never reallocated
  std::map<std::uint32_t, Place> pending_;                     // by partition
  std::map<std::uint32_t, Place> away_;
  std::uint32_t next_ = 0;
};

}  // namespace luna::test
