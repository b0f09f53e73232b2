// Byte-pair merging: joins the best-ranked pair of neighbours until no pair has a rule.
#pragma once

#include "core/text/vocabulary.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::text {

/// A rule of the vocabulary: what a pair becomes, and how early.
struct MergeRule {
  std::uint32_t rank = 0;  // lower is earlier
  TokenId id = 0;
};

/// Pair of ids to rule: an open-addressing table, built once, then only read.
class MergeTable {
 public:
  explicit MergeTable(std::size_t n_rules_max);

  /// A pair that is there already takes the new rule, as in the reference.
  void insert(TokenId left, TokenId right, MergeRule rule);
  [[nodiscard]] std::optional<MergeRule> find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair = 0;
    MergeRule rule;
    bool used = false;
  };
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
};

/// The working memory of one caller; its buffers are reused from word to word. A resource.
///
/// Cost  O(n log n) for a word of n symbols: every rule applied removes a symbol and offers at most
///       two new pairs
class PairMerger {
 public:
  /// Appends the tokens of one word, given its symbols.
  void merge(std::span<const TokenId> symbols, const MergeTable& table, std::vector<TokenId>& out);

  /// Pairs looked at since construction: what a test of linear time counts.
  [[nodiscard]] std::uint64_t n_pairs_seen() const { return n_pairs_seen_; }

 private:
  // Positions are 32 bits; the tokenizer refuses longer texts.
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  struct Symbol {
    TokenId id;
    std::uint32_t previous;
    std::uint32_t next;
    bool alive;
  };
  struct Offer {  // a pair that may be joined
    std::uint32_t rank;
    std::uint32_t left;  // position of its left symbol
    TokenId left_id;     // the ids it was made from: an offer whose symbols changed is stale
    TokenId right_id;
    TokenId id;
  };

  void offer(std::uint32_t left, const MergeTable& table);
  void merge_short(const MergeTable& table, std::vector<TokenId>& out);
  void merge_long(const MergeTable& table, std::vector<TokenId>& out);
  static bool is_later(const Offer& a, const Offer& b);

  std::vector<TokenId> short_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Offer> offers_;  // a heap, the best in front
  std::uint64_t n_pairs_seen_ = 0;
};

}  // namespace luna::text
