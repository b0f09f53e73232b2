#include "core/engine/kv_copier.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <optional>
#include <span>

namespace luna::engine {
namespace {

bool is_same_layout(const luna_kv_layout& a, const luna_kv_layout& b) {
  return a.n_layers == b.n_layers && a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim &&
         a.dtype == b.dtype && a.block_tokens == b.block_tokens && a.flags == b.flags;
}

// How fast copies were lately: the last counts for a quarter.
constexpr double kNewShare = 0.25;

luna_kv_part part_of(const model::KvAccess& kv, std::span<const std::uint32_t> blocks) {
  luna_kv_part part{};
  part.struct_size = sizeof(part);
  part.n_blocks = static_cast<std::uint32_t>(blocks.size());
  part.buffer = kv.buffer;
  part.layout = &kv.layout;
  part.blocks = blocks.data();
  part.first_layer = 0;
  part.n_layers = kv.layout.n_layers;
  part.n_bytes = blocks.size() * kv.block_bytes;
  return part;
}

}  // namespace

bool can_copy_kv(const model::CompiledModel& from, const model::CompiledModel& to) {
  return std::ranges::equal(
      from.shards, to.shards, [](const model::Shard& a, const model::Shard& b) {
        return a.kv.table != nullptr && b.kv.table != nullptr && a.attention == b.attention &&
               a.kv.first_layer == b.kv.first_layer && a.kv.block_bytes == b.kv.block_bytes &&
               is_same_layout(a.kv.layout, b.kv.layout);
      });
}

KvCopier::KvCopier(const Clock& clock, WakeSignal& wake, std::size_t n_copies_max, bool has_thread)
    : clock_(clock), wake_(wake), queue_(n_copies_max) {
  if (has_thread) thread_ = std::thread([this] { run(); });
}

KvCopier::~KvCopier() {
  stopping_.store(true);
  n_started_.fetch_add(1);
  n_started_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void KvCopier::start(KvCopy& copy) {
  copy.state.store(KvCopy::State::running, std::memory_order_relaxed);
  if (!thread_.joinable()) {
    make(copy);
    return;
  }
  // There is room: whoever asks has no more copies than that.
  queue_.try_push(&copy);
  n_started_.fetch_add(1);
  n_started_.notify_one();
}

void KvCopier::run() {
  for (;;) {
    const std::uint32_t seen = n_started_.load();
    while (const std::optional<KvCopy*> copy = queue_.try_pop())
      make(**copy);
    if (stopping_.load()) return;
    n_started_.wait(seen);
  }
}

void KvCopier::make(KvCopy& copy) {
  const Nanoseconds began = clock_.now();
  std::uint64_t n_bytes = 0;
  bool ok = true;
  for (std::size_t shard = 0; ok && shard < copy.from->shards.size(); ++shard) {
    ok = copy_shard(copy, shard);
    n_bytes += copy.from_blocks.size() * copy.from->shards[shard].kv.block_bytes;
  }
  if (ok && n_bytes > 0) {
    const auto took = static_cast<double>((clock_.now() - began).count());
    const double now = took / static_cast<double>(n_bytes);
    const double before = ns_per_byte();
    ns_per_byte_.store(before > 0.0 ? before + kNewShare * (now - before) : now,
                       std::memory_order_relaxed);
    n_bytes_.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  copy.state.store(ok ? KvCopy::State::done : KvCopy::State::failed, std::memory_order_release);
  wake_.set();
}

bool KvCopier::copy_shard(const KvCopy& copy, std::size_t shard) {
  const model::KvAccess& from = copy.from->shards[shard].kv;
  const model::KvAccess& to = copy.to->shards[shard].kv;
  between_.resize(std::max<std::size_t>(between_.size(), kBlocksAtOnce * from.block_bytes));
  const std::span from_blocks(copy.from_blocks);
  const std::span to_blocks(copy.to_blocks);
  for (std::size_t first = 0; first < from_blocks.size(); first += kBlocksAtOnce) {
    const std::size_t n = std::min(kBlocksAtOnce, from_blocks.size() - first);
    const luna_kv_part source = part_of(from, from_blocks.subspan(first, n));
    const luna_kv_part target = part_of(to, to_blocks.subspan(first, n));
    luna_err err = make_err();
    if (from.table->kv_export(from.device, &source, between_.data(), &err) < 0) return false;
    if (to.table->kv_import(to.device, &target, between_.data(), &err) < 0) return false;
  }
  return true;
}

}  // namespace luna::engine
