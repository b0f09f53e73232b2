// What lets copies of a model hold slices of each other's sequences.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/model/device.hpp"
#include "core/model/device_link.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace luna::model {

/// What a shard takes to be a guest of every peer, and their owner.
struct SlicePlan {
  SliceAccess access;
  std::uint64_t bytes = 0;  ///< of its device: messages and services
};

/// program  of the shard, allowed to slice
/// n_peers  other copies
/// Errors   unsupported: a backend or a transport that cannot, a shard without whole layers; theirs
Result<SlicePlan> plan_slices(const Device& device,
                              const std::optional<Collective>& collective,
                              const Program& program,
                              std::uint32_t n_peers);

/// From each shard of each copy a communicator to the shard of the same layers in every other copy,
/// and there a service that answers. Shards of unequal layers, KV or backends are not paired, nor
/// are those of other processes. Owned by whoever owns the copies, which outlive it as the
/// transport does; an engine that runs them has ended before. [start-up]
class SliceLinks {
 public:
  /// copies  loaded with n_slice_peers; they are told: slice_set, slice_place, what is bound
  static Result<std::unique_ptr<SliceLinks>> open(const Collective& collective,
                                                  std::span<CompiledModel* const> copies);
  ~SliceLinks();
  SliceLinks(const SliceLinks&) = delete;
  SliceLinks& operator=(const SliceLinks&) = delete;

 private:
  /// A guest's end and its service, or an owner's end.
  struct End {
    const luna_comm* comm = nullptr;
    const luna_slices_if* calls = nullptr;
    void* service = nullptr;
  };
  /// Where the slices of one shard's sequences may lie, by place of the copy.
  struct Peers {
    std::vector<const luna_comm*> comms;
    luna_slice_peers abi{};
  };

  explicit SliceLinks(const Collective& collective) : collective_(collective) {}
  Result<void> link(std::span<CompiledModel* const> copies, std::size_t owner, std::size_t shard);
  Result<const luna_comm*> open_pair(const std::string& group, const Shard& guest);

  const Collective collective_;
  std::uint32_t n_waiters_ = 0;  // an owner and a service for each pair of copies
  std::deque<Peers> peers_;      // they do not move: what is bound points to them
  std::vector<End> ends_;
};

}  // namespace luna::model
