// A shard's ends of what copies of a model tell each other of slices.
#pragma once

#include "core/model/device.hpp"
#include "core/model/device_link.hpp"
#include "core/model/device_shard.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::model {

/// What a shard needs to be a guest of every peer, and their owner.
struct SlicePlan {
  const luna_slices_if* calls = nullptr;
  std::uint32_t slot = 0;           ///< of its program
  std::uint64_t message_bytes = 0;  ///< of the largest message
  std::uint64_t bytes = 0;          ///< of its device: messages and services
};

/// program  of the shard, allowed to slice
/// n_peers  other copies
/// Errors   unsupported: a backend or a transport that cannot, a shard without whole layers; theirs
Result<SlicePlan> plan_slices(const Device& device,
                              const std::optional<Collective>& collective,
                              const Program& program,
                              std::uint32_t n_peers);

/// To the shard of the same layers in each other copy two communicators: one by which it asks for
/// what lies there, one whose service answers what lies here. Owned by LocalShard; the transport
/// outlives it. [start-up] unless tagged otherwise
class SliceEnds {
 public:
  /// n_places  of copies, this one among them
  SliceEnds(Collective collective, const SlicePlan& plan, std::uint32_t n_places);
  /// No step asks any more.
  ~SliceEnds();
  SliceEnds(const SliceEnds&) = delete;
  SliceEnds& operator=(const SliceEnds&) = delete;

  /// For the program's slot SLICES; it does not move.
  [[nodiscard]] const luna_slice_peers& peers() const { return peers_; }
  [[nodiscard]] const SlicePlan& plan() const { return plan_; }
  [[nodiscard]] const std::string& address() const { return collective_.address; }

  /// Who answers from which memory.
  struct Guest {
    void* executable = nullptr;
    std::uint64_t kv_buffer = 0;
  };
  /// As DeviceShard::open_slices() has it.
  Result<void> open(const SliceTerms& terms, const Guest& guest);
  /// Ends every wait for the copy at a place, or for all. [any]
  void abort(std::uint32_t place);
  void abort_all();
  /// Steps of this shard do not ask it any more. Waits for the service's last answer.
  void close(std::uint32_t place);

 private:
  /// To one copy; null: not open.
  struct Ends {
    const luna_comm* owner = nullptr;
    const luna_comm* guest = nullptr;
    void* service = nullptr;
  };

  [[nodiscard]] Result<void> check(const SliceTerms& terms) const;
  [[nodiscard]] Result<const luna_comm*> open_end(const SliceTerms& terms,
                                                  std::uint32_t rank) const;
  void abort(const Ends& ends) const;
  void close(const Ends& ends) const;

  const Collective collective_;
  const SlicePlan plan_;
  std::vector<const luna_comm*> comms_;  // [n_places], of the owner; as a step names them
  luna_slice_peers peers_{};

  std::mutex mutex_;        // guards what follows against abort()
  std::vector<Ends> ends_;  // [n_places]
};

}  // namespace luna::model
