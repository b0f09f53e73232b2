#include "core/model/slice_links.hpp"

#include "core/base/random_seed.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace luna::model {
namespace {

bool can_pair(const DeviceShard& a, const DeviceShard& b) {
  const Shard& x = a.shard();
  const Shard& y = b.shard();
  return a.slice_message_bytes() != 0 && a.slice_message_bytes() == b.slice_message_bytes() &&
         x.attention == y.attention && x.kv.first_layer == y.kv.first_layer &&
         std::memcmp(&x.kv.layout, &y.kv.layout, sizeof(x.kv.layout)) == 0;
}

}  // namespace

SliceLinks::~SliceLinks() {
  while (!copies_.empty())
    remove(*copies_.back().model);
}

bool SliceLinks::is_free(std::uint32_t place) const {
  return std::ranges::find(copies_, place, &Copy::place) == copies_.end();
}

Result<void> SliceLinks::add(Model& copy) {
  Copy added{&copy, 0, copy.shards()};
  while (added.place < n_places_ && !is_free(added.place))
    ++added.place;
  if (added.place == n_places_) {
    return Error{Code::exhausted,
                 "slices: room for messages of " + std::to_string(n_places_) +
                     " copies was planned, all are there"};
  }
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Result<void> linked = link(added, copies_[i]);
    // What cannot be linked because it is gone, nobody slices to.
    if (linked || copies_[i].model->compiled().is_lost()) continue;
    for (std::size_t j = 0; j <= i; ++j)
      unlink(added, copies_[j]);
    return linked.error();
  }
  copy.linkable().slice_set = this;
  copy.linkable().slice_place = added.place;
  {
    const std::lock_guard lock(mutex_);
    copies_.push_back(added);
  }
  for (DeviceShard* shard : added.shards) {
    shard->on_lost([this, place = added.place] { lose(place); });
    if (shard->is_lost()) lose(added.place);
  }
  return {};
}

Result<void> SliceLinks::link(const Copy& copy, const Copy& other) const {
  const std::size_t n_shards = std::min(copy.shards.size(), other.shards.size());
  for (std::size_t s = 0; s < n_shards; ++s)
    if (can_pair(*copy.shards[s], *other.shards[s]))
      LUNA_TRY(open_pair(*copy.shards[s], *other.shards[s], copy, other));
  return {};
}

Result<void> SliceLinks::open_pair(DeviceShard& first,
                                   DeviceShard& second,
                                   const Copy& copy,
                                   const Copy& other) const {
  LUNA_TRY(const std::uint64_t number, random_seed());
  SliceTerms terms;
  terms.place = other.place;
  terms.is_first = true;
  terms.group = "slices/" + std::to_string(number);
  terms.message_bytes = first.slice_message_bytes();
  terms.n_waiters_max = 2 * n_places_ * n_places_;  // an owner and a service for each two copies
  terms.own_address = first.slice_address();
  terms.other_address = second.slice_address();
  LUNA_TRY(first.open_slices(terms));
  terms.place = copy.place;
  terms.is_first = false;
  std::swap(terms.own_address, terms.other_address);
  return second.open_slices(terms);
}

void SliceLinks::unlink(const Copy& copy, const Copy& other) {
  for (DeviceShard* shard : copy.shards)
    shard->close_slices(other.place);
  for (DeviceShard* shard : other.shards)
    shard->close_slices(copy.place);
}

void SliceLinks::remove(const Model& copy) {
  const auto found = std::ranges::find(copies_, &copy, &Copy::model);
  if (found == copies_.end()) return;
  const Copy removed = *found;
  for (DeviceShard* shard : removed.shards)
    shard->on_lost({});
  {
    const std::lock_guard lock(mutex_);
    copies_.erase(found);
  }
  for (const Copy& other : copies_)
    unlink(removed, other);
}

/// Steps that wait for it end; it stays until it is removed.
void SliceLinks::lose(std::uint32_t place) {
  const std::lock_guard lock(mutex_);
  for (const Copy& copy : copies_)
    if (copy.place != place)
      for (DeviceShard* shard : copy.shards)
        shard->abort_slices(place);
}

}  // namespace luna::model
