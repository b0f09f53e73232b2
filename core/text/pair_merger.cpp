#include "core/text/pair_merger.hpp"

#include <algorithm>
#include <bit>

namespace luna::text {
namespace {

// Up to here a scan for the best pair is quicker than a heap.
constexpr std::size_t kShortWord = 24;

constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(left) << 32U) | right;
}

/// Finaliser of SplitMix64: spreads neighbouring ids over the table.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace

MergeTable::MergeTable(std::size_t n_rules_max)
    : slots_(std::bit_ceil(std::max<std::size_t>(16, 2 * n_rules_max))) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = mixed(pair) & mask;
  while (slots_[i].used && slots_[i].pair != pair)
    i = (i + 1) & mask;
  return i;
}

void MergeTable::insert(TokenId left, TokenId right, MergeRule rule) {
  const std::uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, rule, true};
}

std::optional<MergeRule> MergeTable::find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (!slot.used) return std::nullopt;
  return slot.rule;
}

void PairMerger::merge(std::span<const TokenId> symbols,
                       const MergeTable& table,
                       std::vector<TokenId>& out) {
  if (symbols.size() <= kShortWord) {
    short_ids_.assign(symbols.begin(), symbols.end());
    return merge_short(table, out);
  }
  symbols_.clear();
  offers_.clear();
  const auto n = static_cast<std::uint32_t>(symbols.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols_.push_back({symbols[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1, true});
  }
  merge_long(table, out);
}

void PairMerger::merge_short(const MergeTable& table, std::vector<TokenId>& out) {
  while (short_ids_.size() > 1) {
    std::optional<MergeRule> best;
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < short_ids_.size(); ++i) {
      ++n_pairs_seen_;
      const auto rule = table.find(short_ids_[i], short_ids_[i + 1]);
      if (rule && (!best || rule->rank < best->rank)) {
        best = rule;
        best_at = i;
      }
    }
    if (!best) break;
    short_ids_[best_at] = best->id;
    short_ids_.erase(short_ids_.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  out.insert(out.end(), short_ids_.begin(), short_ids_.end());
}

bool PairMerger::is_later(const Offer& a, const Offer& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void PairMerger::offer(std::uint32_t left, const MergeTable& table) {
  if (left == kNone || symbols_[left].next == kNone) return;
  ++n_pairs_seen_;
  const TokenId left_id = symbols_[left].id;
  const TokenId right_id = symbols_[symbols_[left].next].id;
  if (const auto rule = table.find(left_id, right_id)) {
    offers_.push_back({rule->rank, left, left_id, right_id, rule->id});
    std::push_heap(offers_.begin(), offers_.end(), is_later);
  }
}

void PairMerger::merge_long(const MergeTable& table, std::vector<TokenId>& out) {
  for (std::uint32_t i = 0; i < symbols_.size(); ++i)
    offer(i, table);
  while (!offers_.empty()) {
    std::pop_heap(offers_.begin(), offers_.end(), is_later);
    const Offer best = offers_.back();
    offers_.pop_back();
    Symbol& left = symbols_[best.left];
    if (!left.alive || left.id != best.left_id || left.next == kNone) continue;
    Symbol& right = symbols_[left.next];
    if (right.id != best.right_id) continue;
    left.id = best.id;
    right.alive = false;
    left.next = right.next;
    if (left.next != kNone) symbols_[left.next].previous = best.left;
    offer(left.previous, table);
    offer(best.left, table);
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.alive) out.push_back(symbol.id);
  }
}

}  // namespace luna::text
