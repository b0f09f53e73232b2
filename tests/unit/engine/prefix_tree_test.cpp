// The keys of KV blocks: never a wrong block, whatever the hash; the right one to be given away.
#include "core/engine/prefix_tree.hpp"

#include "core/engine/kv_pool.hpp"
#include "support/test_seed.hpp"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace luna::engine {
namespace {

namespace json = boost::json;

constexpr std::uint32_t kBlockTokens = 4;
using Tokens = std::vector<std::uint32_t>;

std::uint64_t always_one(std::uint64_t, std::span<const std::uint32_t>) {
  return 1;
}
constexpr std::array<PrefixHash, 2> kHashes = {hash_words, always_one};

PrefixKey key_of(std::optional<std::uint32_t> parent,
                 std::span<const std::uint32_t> tokens,
                 PrefixScope scope = {}) {
  return {.parent = parent, .scope = scope, .token_ids = tokens};
}

TEST(PrefixTree, FindsWhatWasInsertedAndNothingElse) {
  for (const PrefixHash hash : kHashes) {
    PrefixTree tree({.n_blocks = 8, .block_tokens = kBlockTokens, .hash = hash});
    const Tokens a = {1, 2, 3, 4};
    const Tokens b = {5, 6, 7, 8};
    tree.insert(3, key_of(std::nullopt, a));
    tree.insert(5, key_of(3, b));
    EXPECT_EQ(tree.find(key_of(std::nullopt, a)), 3U);
    EXPECT_EQ(tree.find(key_of(3, b)), 5U);
    EXPECT_EQ(tree.find(key_of(std::nullopt, b)), std::nullopt);
    EXPECT_EQ(tree.find(key_of(3, a)), std::nullopt);
    EXPECT_EQ(tree.find(key_of(5, b)), std::nullopt);
    EXPECT_FALSE(tree.is_leaf(3));
    EXPECT_EQ(tree.parent(5), 3U);
    const std::uint32_t stamp = tree.stamp(5);
    tree.erase(5);
    EXPECT_NE(tree.stamp(5), stamp);
    EXPECT_TRUE(tree.is_leaf(3));
    EXPECT_EQ(tree.find(key_of(3, b)), std::nullopt);
    EXPECT_EQ(tree.n_keys(), 1U);
  }
}

TEST(PrefixTree, ScopesShareNothing) {
  const std::string longest(pipeline::kCacheSaltBytesMax, 's');
  std::string other = longest;
  other.back() = 't';
  const std::vector<PrefixScope> scopes = {{0, ""},
                                           {1, ""},
                                           {0, "a"},
                                           {1, "a"},
                                           {0, "b"},
                                           {0, std::string_view("a\0", 2)},
                                           {0, longest},
                                           {0, other}};
  for (const PrefixHash hash : kHashes) {
    PrefixTree tree({.n_blocks = 16, .block_tokens = kBlockTokens, .hash = hash});
    const Tokens tokens = {1, 2, 3, 4};
    for (std::uint32_t i = 0; i < scopes.size(); ++i) {
      EXPECT_EQ(tree.find(key_of(std::nullopt, tokens, scopes[i])), std::nullopt) << i;
      tree.insert(i, key_of(std::nullopt, tokens, scopes[i]));
    }
    for (std::uint32_t i = 0; i < scopes.size(); ++i)
      EXPECT_EQ(tree.find(key_of(std::nullopt, tokens, scopes[i])), i);
  }
}

// The table's `adapter` is another word of the key beside the salt; here that is the tenant.
TEST(PrefixTree, CaseUnitKvkey1) {
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  json::value table;
  for (std::string line; std::getline(file, line);)
    if (line.find("\"UNIT-KVKEY-1\"") != std::string::npos) table = json::parse(line);
  ASSERT_TRUE(table.is_object());
  const json::array& keys = table.at("input").at("keys").as_array();
  ASSERT_EQ(keys.size(), 5U);
  for (const PrefixHash hash : kHashes) {
    // Blocks hold one token here, so that prefixes of every length have keys.
    KvPool pool({.n_blocks = 32, .block_tokens = 1, .hash = hash});
    std::vector<std::vector<std::uint32_t>> paths;
    for (const json::value& key : keys) {
      PrefixScope scope;
      if (key.at("salt").is_string()) scope.salt = key.at("salt").as_string();
      if (key.at("adapter").is_string()) scope.tenant = 'x';
      Tokens tokens;
      for (const char* part : {"tokens", "then"})
        if (const json::value* ids = key.as_object().if_contains(part))
          for (const json::value& id : ids->as_array())
            tokens.push_back(static_cast<std::uint32_t>(id.to_number<int>()));
      std::vector<std::uint32_t> path;
      for (const std::uint32_t& token : tokens) {
        const std::optional<std::uint32_t> parent =
            path.empty() ? std::nullopt : std::optional(path.back());
        const PrefixKey wanted = key_of(parent, std::span(&token, 1), scope);
        std::optional<std::uint32_t> block = pool.tree()->find(wanted);
        if (!block) {
          block = pool.allocate();
          // A block gets its key only after its data are written.
          EXPECT_FALSE(pool.tree()->has_key(*block));
          EXPECT_EQ(pool.tree()->find(wanted), std::nullopt);
          pool.give_key(*block, wanted);
        } else {
          pool.share(*block);
        }
        path.push_back(*block);
      }
      paths.push_back(path);
    }
    for (std::size_t i = 0; i < paths.size(); ++i)
      for (std::size_t j = i + 1; j < paths.size(); ++j)
        EXPECT_EQ(paths[i].back() == paths[j].back(), i == 2 && j == 3) << i << ' ' << j;
    for (auto path : paths)
      for (; !path.empty(); path.pop_back())
        pool.release(path.back());
    // Given to other tokens, a block has no key any more.
    for (std::uint32_t b = 0; b < pool.n_blocks(); ++b)
      EXPECT_FALSE(pool.tree()->has_key(*pool.allocate()));
    EXPECT_EQ(pool.tree()->n_keys(), 0U);
  }
}

/// The pool's keys as a list: what is kept, by (scope, all tokens to the block's end).
class NaiveCache {
 public:
  using Path = std::pair<std::uint32_t, Tokens>;  // tenant, tokens
  struct Kept {
    std::uint32_t block;
    std::uint32_t n_users;
    std::uint64_t released_at;
  };

  [[nodiscard]] std::vector<std::uint32_t> find(std::uint32_t tenant, const Tokens& tokens) const {
    std::vector<std::uint32_t> blocks;
    for (std::size_t n = kBlockTokens; n <= tokens.size(); n += kBlockTokens) {
      const auto at = kept.find({tenant, first(tokens, n)});
      if (at == kept.end()) break;
      blocks.push_back(at->second.block);
    }
    return blocks;
  }
  /// Takes the leaf away that nobody has used for the longest time.
  std::uint32_t evict() {
    auto oldest = kept.end();
    for (auto at = kept.begin(); at != kept.end(); ++at) {
      if (at->second.n_users > 0 || has_child(at->first)) continue;
      if (oldest == kept.end() || at->second.released_at < oldest->second.released_at) oldest = at;
    }
    EXPECT_NE(oldest, kept.end());
    const std::uint32_t block = oldest->second.block;
    kept.erase(oldest);
    return block;
  }
  static Tokens first(const Tokens& tokens, std::size_t n) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)};
  }

  std::map<Path, Kept> kept;
  std::uint64_t n_releases = 0;

 private:
  [[nodiscard]] bool has_child(const Path& path) const {
    for (const auto& [other, unused] : kept)
      if (other.first == path.first && other.second.size() == path.second.size() + kBlockTokens &&
          std::equal(path.second.begin(), path.second.end(), other.second.begin()))
        return true;
    return false;
  }
};

struct Holder {
  std::uint32_t tenant;
  Tokens tokens;
  std::vector<std::uint32_t> blocks;
  std::size_t n_keyed;
};

class PrefixTrial {
 public:
  PrefixTrial(std::uint32_t seed, PrefixHash hash)
      : random_(seed), pool_({.n_blocks = 24, .block_tokens = kBlockTokens, .hash = hash}) {}

  void turn() {
    if (holders_.size() < 5 && random_() % 2 == 0) start();
    if (!holders_.empty() && random_() % 3 == 0) end(random_() % holders_.size());
    std::size_t n_cached = 0;
    for (const auto& [path, kept] : naive_.kept)
      if (kept.n_users == 0) ++n_cached;
    ASSERT_EQ(pool_.n_cached(), n_cached);
    ASSERT_EQ(pool_.tree()->n_keys(), naive_.kept.size());
    ASSERT_EQ(pool_.n_free() + pool_.n_used() + pool_.n_cached(), pool_.n_blocks());
  }

 private:
  void start() {
    Holder holder{.tenant = static_cast<std::uint32_t>(random_() % 2),
                  .tokens = {},
                  .blocks = {},
                  .n_keyed = 0};
    const std::size_t n_blocks = 1 + random_() % 4;
    // Blocks that begin alike and few of them, so that paths meet.
    for (std::size_t b = 0; b < n_blocks; ++b)
      for (std::uint32_t i = 0; i < kBlockTokens; ++i)
        holder.tokens.push_back(i + 1 < kBlockTokens ? 7 : random_() % 3);
    const std::vector<std::uint32_t> expected = naive_.find(holder.tenant, holder.tokens);
    while (holder.n_keyed < n_blocks) {
      const std::optional<std::uint32_t> found = pool_.tree()->find(next_key(holder));
      if (!found) break;
      pool_.share(*found);
      holder.blocks.push_back(*found);
      ++naive_.kept.at(path(holder)).n_users;
      ++holder.n_keyed;
    }
    ASSERT_EQ(holder.blocks, expected);
    const bool fails = random_() % 5 == 0;  // its step fails: it keeps nothing
    while (holder.blocks.size() < n_blocks && compute(holder, !fails)) {}
    holders_.push_back(std::move(holder));
  }

  bool compute(Holder& holder, bool keeps) {
    const bool evicts = pool_.n_free() == 0 && pool_.n_cached() > 0;
    const std::optional<std::uint32_t> block = pool_.allocate();
    if (evicts) {
      EXPECT_EQ(block, naive_.evict());
    }
    if (!block) return false;
    EXPECT_FALSE(pool_.tree()->has_key(*block));
    if (keeps && holder.n_keyed == holder.blocks.size()) {
      pool_.give_key(*block, next_key(holder));
      naive_.kept[path(holder)] = {*block, 1, 0};
      ++holder.n_keyed;
    }
    holder.blocks.push_back(*block);
    return true;
  }

  void end(std::size_t i) {
    Holder& holder = holders_[i];
    for (; !holder.blocks.empty(); holder.blocks.pop_back()) {
      pool_.release(holder.blocks.back());
      if (holder.blocks.size() > holder.n_keyed) continue;
      --holder.n_keyed;
      NaiveCache::Kept& kept = naive_.kept.at(path(holder));
      --kept.n_users;
      kept.released_at = ++naive_.n_releases;
    }
    holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  /// Of the block after the holder's keyed ones.
  [[nodiscard]] static PrefixKey next_key(const Holder& holder) {
    const std::size_t n = holder.n_keyed;
    return key_of(n == 0 ? std::nullopt : std::optional(holder.blocks[n - 1]),
                  std::span(holder.tokens).subspan(n * kBlockTokens, kBlockTokens),
                  {.tenant = holder.tenant, .salt = {}});
  }
  [[nodiscard]] static NaiveCache::Path path(const Holder& holder) {
    return {holder.tenant, NaiveCache::first(holder.tokens, (holder.n_keyed + 1) * kBlockTokens)};
  }

  std::mt19937 random_;
  KvPool pool_;
  NaiveCache naive_;
  std::vector<Holder> holders_;
};

TEST(PrefixTree, AgreesWithAListUnderAnySeed) {
  const std::uint32_t seed = test::test_seed();
  for (const PrefixHash hash : kHashes) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed + i));
      PrefixTrial trial(seed + i, hash);
      for (int turn = 0; turn < 300; ++turn)
        ASSERT_NO_FATAL_FAILURE(trial.turn());
    }
  }
}

}  // namespace
}  // namespace luna::engine
