// What lets copies of a model hold slices of each other's sequences.
#pragma once

#include "core/model/device_shard.hpp"
#include "core/model/model_loader.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace luna::model {

/// Pairs each shard of each copy with the shard of the same layers in every other copy, wherever
/// their devices are: each attends for the other. Shards of unequal layers, KV or arithmetic are
/// not paired. Copies come and go while the others run. Owned by whoever owns the copies, which
/// outlive it as the transport does. [start-up], or a thread that no engine waits for.
class SliceLinks {
 public:
  /// n_places  copies at a time, at most LUNA_SLICE_PEERS_MAX: as many as the copies were loaded
  /// for
  explicit SliceLinks(std::uint32_t n_places) : n_places_(n_places) {}
  /// No copy is run any more.
  ~SliceLinks();
  SliceLinks(const SliceLinks&) = delete;
  SliceLinks& operator=(const SliceLinks&) = delete;

  /// Whether another copy may be added.
  [[nodiscard]] bool has_room() const { return copies_.size() < n_places_; }
  /// The copy, which nothing runs yet, is told: slice_set, slice_place.
  ///
  /// Errors  exhausted: there are as many copies as there may be; those of opening. It is not
  ///         linked then.
  Result<void> add(Model& copy);
  /// No sequence lies on it any more. One that was never added stays as it is.
  void remove(const Model& copy);

 private:
  struct Copy {
    const Model* model = nullptr;
    std::uint32_t place = 0;
    std::vector<DeviceShard*> shards;
  };

  [[nodiscard]] bool is_free(std::uint32_t place) const;
  Result<void> link(const Copy& copy, const Copy& other) const;
  Result<void> open_pair(DeviceShard& first,
                         DeviceShard& second,
                         const Copy& copy,
                         const Copy& other) const;
  static void unlink(const Copy& copy, const Copy& other);
  void lose(std::uint32_t place);

  const std::uint32_t n_places_;
  std::mutex mutex_;          // guards what follows against lose(); never held while one answers
  std::vector<Copy> copies_;  // changed by add() and remove() alone
};

}  // namespace luna::model
