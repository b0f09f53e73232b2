#include "core/engine/group.hpp"

#include "core/base/assert.hpp"
#include "core/engine/kv_slices.hpp"

#include <algorithm>
#include <optional>

namespace luna::engine {
namespace {

KvPool make_pool(const model::CompiledModel& model, const GroupOptions& options) {
  // Pruned KV depends on what followed it: nobody else may start with it.
  const bool prunes = model.prune_keep_percent < 100;
  if (!options.prefix_cache || prunes)
    return KvPool(model.n_kv_blocks, std::max(options.n_slots, options.n_holders));
  return KvPool(PrefixTree::Options{.n_blocks = model.n_kv_blocks,
                                    .block_tokens = model.kv_block_tokens,
                                    .hash_seed = options.prefix_hash_seed,
                                    .hash = hash_words},
                std::max(options.n_slots, options.n_holders));
}

}  // namespace

Group::Group(const model::CompiledModel& compiled,
             const GroupOptions& options,
             const GroupNumbers& numbers_of_it,
             WakeSignal& wake)
    : model(compiled),
      numbers(numbers_of_it),
      n_kv_blocks_reserve(static_cast<std::uint32_t>(std::uint64_t{compiled.n_kv_blocks} *
                                                     options.kv_reserve_percent / 100)),
      pool(make_pool(compiled, options)),
      prefixes(pool, options.is_only ? 0 : options.n_slots),
      audit(pool.n_blocks()),
      books(pool, compiled.kv_block_tokens),
      lanes(compiled, options.limits, wake),
      loads(compiled.shards.size()),
      attention(compiled.shards.size()),
      device_stats(compiled.shards.size()) {}

void Group::number_attention(std::span<const std::unique_ptr<Group>> others, std::uint32_t& next) {
  for (std::size_t d = 0; d < model.shards.size(); ++d) {
    const auto number_of = [&](const Group& group, std::size_t n) -> std::optional<std::uint32_t> {
      for (std::size_t i = 0; i < n; ++i)
        if (group.model.shards[i].attention == model.shards[d].attention) return group.attention[i];
      return std::nullopt;
    };
    std::optional<std::uint32_t> number = number_of(*this, d);
    for (std::size_t g = 0; g < others.size() && !number; ++g)
      number = number_of(*others[g], others[g]->model.shards.size());
    attention[d] = number ? *number : next++;
  }
}

void Group::note_latency(Nanoseconds latency) {
  last_latencies_[n_latencies_++ % last_latencies_.size()] = latency;
}

Nanoseconds Group::latency_p95() const {
  if (n_latencies_ == 0) return Nanoseconds{0};
  std::array<Nanoseconds, 10> sorted = last_latencies_;
  const auto n = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(n_latencies_, sorted.size()));
  std::sort(sorted.begin(), sorted.begin() + n);
  return sorted[static_cast<std::size_t>((n * 95 + 99) / 100 - 1)];
}

std::string_view Group::run_audit(const SequenceTable& sequences,
                                  const KvMoves& moves,
                                  const KvSlices& slices) {
  const std::string_view fault = audit.run(pool, sequences, this, &moves, &slices);
  return fault.empty() ? lanes.audit(sequences, *this) : fault;
}

void Groups::add(std::unique_ptr<Group> group) {
  group->number_attention(all_, next_attention_);
  const auto is_taken = [this](std::uint32_t place) {
    return std::ranges::any_of(
        all_, [place](const auto& other) { return other->numbers.place == place; });
  };
  group->numbers.place = 0;
  while (is_taken(group->numbers.place))
    ++group->numbers.place;
  all_.push_back(std::move(group));
}

std::unique_ptr<Group> Groups::remove(const Group& group) {
  const auto found = std::ranges::find(all_, &group, &std::unique_ptr<Group>::get);
  LUNA_VERIFY(found != all_.end());
  std::unique_ptr<Group> removed = std::move(*found);
  all_.erase(found);
  return removed;
}

Group* Groups::of_device(std::uint32_t device) const {
  for (const auto& group : all_)
    if (group->has_device(device)) return group.get();
  return nullptr;
}

Group* Groups::find(GroupId id) const {
  for (const auto& group : all_)
    if (group->numbers.id == id) return group.get();
  return nullptr;
}

std::uint32_t Groups::n_blocks_max() const {
  std::uint32_t n = 0;
  for (const auto& group : all_)
    if (!group->is_leaving) n = std::max(n, group->pool.n_blocks());
  return n;
}

std::uint32_t Groups::n_devices() const {
  std::uint32_t n = 0;
  for (const auto& group : all_)
    n += group->n_devices();
  return n;
}

std::uint32_t Groups::n_steps_in_flight() const {
  std::uint32_t n = 0;
  for (const auto& group : all_)
    n += group->lanes.n_in_flight();
  return n;
}

std::uint32_t Groups::n_steps_max() const {
  std::uint32_t n = 0;
  for (const auto& group : all_)
    n += group->lanes.n_max();
  return n;
}

std::uint32_t Groups::n_blocks_around(const Group& home) const {
  const std::uint32_t n_partition = LUNA_PARTITION_TOKENS / home.model.kv_block_tokens;
  std::uint32_t n = 0;
  for (const auto& group : all_)
    if (group.get() == &home || (!group->is_leaving && may_slice(home, *group)))
      n += group->pool.n_blocks() / n_partition * n_partition;
  return std::max(n, home.pool.n_blocks());
}

bool Groups::are_full() const {
  return !all_.empty() && std::ranges::all_of(all_, [](const auto& group) {
    return !group->is_closing && group->lanes.is_full();
  });
}

}  // namespace luna::engine
