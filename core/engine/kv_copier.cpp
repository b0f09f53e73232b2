#include "core/engine/kv_copier.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace luna::engine {
namespace {

bool is_same_layer(const luna_kv_layout& a, const luna_kv_layout& b) {
  return a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim && a.dtype == b.dtype &&
         a.block_tokens == b.block_tokens && a.flags == b.flags;
}

// How fast copies were lately: the last counts for a quarter.
constexpr double kNewShare = 0.25;

std::uint32_t end_of(const model::KvAccess& kv) {
  return kv.first_layer + kv.layout.n_layers;
}
std::uint64_t layer_bytes(const model::KvAccess& kv) {
  return kv.block_bytes / kv.layout.n_layers;
}

/// Whether its devices have ranges of layers, one behind the other.
bool is_row(const model::CompiledModel& model) {
  std::uint32_t next = model.shards.empty() ? 0 : model.shards.front().kv.first_layer;
  return std::ranges::all_of(model.shards, [&next](const model::Shard& shard) {
    return shard.kv.first_layer == std::exchange(next, end_of(shard.kv));
  });
}

/// Calls visit(from, to, first_layer, n_layers) for what any two of their shards have in common,
/// until one call returns false. Returns  whether none did
template <typename Visit>
bool visit_overlaps(const model::CompiledModel& from,
                    const model::CompiledModel& to,
                    const Visit& visit) {
  const bool are_rows = is_row(from) && is_row(to);
  for (std::size_t f = 0; f < from.shards.size(); ++f) {
    for (std::size_t t = 0; t < to.shards.size(); ++t) {
      if (!are_rows && f != t) continue;
      const model::KvAccess& a = from.shards[f].kv;
      const model::KvAccess& b = to.shards[t].kv;
      const std::uint32_t first = std::max(a.first_layer, b.first_layer);
      const std::uint32_t end = std::min(end_of(a), end_of(b));
      if (first < end && !visit(from.shards[f], to.shards[t], first, end - first)) return false;
    }
  }
  return true;
}

bool has_same_layers(const model::CompiledModel& from, const model::CompiledModel& to) {
  if (!is_row(from) || !is_row(to)) return has_same_cuts(from, to);
  return from.shards.front().kv.first_layer == to.shards.front().kv.first_layer &&
         end_of(from.shards.back().kv) == end_of(to.shards.back().kv);
}

/// Some layers of a shard's blocks.
luna_kv_part part_of(const model::KvAccess& kv,
                     std::span<const std::uint32_t> blocks,
                     std::uint32_t first_layer,
                     std::uint32_t n_layers) {
  luna_kv_part part{};
  part.struct_size = sizeof(part);
  part.n_blocks = static_cast<std::uint32_t>(blocks.size());
  part.buffer = kv.buffer;
  part.layout = &kv.layout;
  part.blocks = blocks.data();
  part.first_layer = first_layer - kv.first_layer;
  part.n_layers = n_layers;
  part.n_bytes = blocks.size() * n_layers * layer_bytes(kv);
  return part;
}

}  // namespace

bool has_same_cuts(const model::CompiledModel& a, const model::CompiledModel& b) {
  return std::ranges::equal(a.shards, b.shards, [](const model::Shard& x, const model::Shard& y) {
    return x.kv.first_layer == y.kv.first_layer && x.kv.layout.n_layers == y.kv.layout.n_layers;
  });
}

bool can_copy_kv(const model::CompiledModel& from, const model::CompiledModel& to) {
  const auto lets_copy = [](const model::Shard& shard) {
    return shard.kv.table != nullptr && shard.kv.layout.n_layers > 0;
  };
  if (from.shards.empty() || to.shards.empty() || !std::ranges::all_of(from.shards, lets_copy) ||
      !std::ranges::all_of(to.shards, lets_copy) || !has_same_layers(from, to))
    return false;
  return visit_overlaps(
      from, to, [](const model::Shard& a, const model::Shard& b, std::uint32_t, std::uint32_t) {
        return a.attention == b.attention && layer_bytes(a.kv) == layer_bytes(b.kv) &&
               is_same_layer(a.kv.layout, b.kv.layout);
      });
}

KvCopier::KvCopier(const Clock& clock, WakeSignal& wake, std::size_t n_copies_max, bool has_thread)
    : clock_(clock), wake_(wake), queue_(n_copies_max), urgent_(n_copies_max) {
  if (has_thread) thread_ = std::thread([this] { run(); });
}

KvCopier::~KvCopier() {
  stopping_.store(true);
  n_started_.fetch_add(1);
  n_started_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void KvCopier::start(KvCopy& copy) {
  copy.is_cancelled.store(false, std::memory_order_relaxed);
  copy.state.store(KvCopy::State::running, std::memory_order_relaxed);
  if (!thread_.joinable()) {
    make(copy);
    return;
  }
  // There is room: whoever asks has no more copies than that.
  (copy.is_urgent ? urgent_ : queue_).try_push(&copy);
  n_started_.fetch_add(1);
  n_started_.notify_one();
}

void KvCopier::run() {
  for (;;) {
    const std::uint32_t seen = n_started_.load();
    while (const std::optional<KvCopy*> copy = next())
      make(**copy);
    if (stopping_.load()) return;
    n_started_.wait(seen);
  }
}

std::optional<KvCopy*> KvCopier::next() {
  if (const std::optional<KvCopy*> copy = urgent_.try_pop()) return copy;
  return queue_.try_pop();
}

// Within another copy, which has nothing in the memory between.
void KvCopier::make_urgent() {
  const Nanoseconds began = clock_.now();
  while (const std::optional<KvCopy*> copy = urgent_.try_pop())
    make(**copy);
  lent_ += clock_.now() - began;
}

void KvCopier::make(KvCopy& copy) {
  const Nanoseconds began = clock_.now() - lent_;
  std::uint64_t n_bytes = 0;
  copy.failed_at = KvCopy::Side::none;
  const bool ok =
      visit_overlaps(*copy.from,
                     *copy.to,
                     [&](const model::Shard& from,
                         const model::Shard& to,
                         std::uint32_t first_layer,
                         std::uint32_t n_layers) {
                       n_bytes += copy.from_blocks.size() * n_layers * layer_bytes(from.kv);
                       return copy_overlap(copy, {&from.kv, &to.kv, first_layer, n_layers});
                     });
  if (ok && n_bytes > 0) {
    const auto took = static_cast<double>((clock_.now() - lent_ - began).count());
    const double now = took / static_cast<double>(n_bytes);
    const double before = ns_per_byte();
    ns_per_byte_.store(before > 0.0 ? before + kNewShare * (now - before) : now,
                       std::memory_order_relaxed);
    n_bytes_.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  copy.state.store(ok ? KvCopy::State::done : KvCopy::State::failed, std::memory_order_release);
  wake_.set();
}

bool KvCopier::copy_overlap(KvCopy& copy, const Overlap& overlap) {
  const model::KvAccess& from = *overlap.from;
  const model::KvAccess& to = *overlap.to;
  const std::size_t block_bytes = overlap.n_layers * layer_bytes(from);
  const std::size_t n_at_once = std::max<std::size_t>(1, kBytesAtOnce / block_bytes);
  between_.resize(std::max(between_.size(), n_at_once * block_bytes));
  const std::span from_blocks(copy.from_blocks);
  const std::span to_blocks(copy.to_blocks);
  for (std::size_t first = 0; first < from_blocks.size(); first += n_at_once) {
    if (!copy.is_urgent) make_urgent();
    if (copy.is_cancelled.load(std::memory_order_relaxed)) return false;
    const std::size_t n = std::min(n_at_once, from_blocks.size() - first);
    const luna_kv_part source =
        part_of(from, from_blocks.subspan(first, n), overlap.first_layer, overlap.n_layers);
    const luna_kv_part target =
        part_of(to, to_blocks.subspan(first, n), overlap.first_layer, overlap.n_layers);
    luna_err err = make_err();
    if (from.table->kv_export(from.device, &source, between_.data(), &err) < 0) {
      copy.failed_at = KvCopy::Side::from;
      return false;
    }
    if (to.table->kv_import(to.device, &target, between_.data(), &err) < 0) {
      copy.failed_at = KvCopy::Side::to;
      return false;
    }
  }
  return true;
}

}  // namespace luna::engine
