#include "core/engine/prefix_tree.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace luna::engine {

PrefixTree::PrefixTree(const Options& options)
    : options_(options),
      nodes_(options.n_blocks),
      token_ids_(std::size_t{options.n_blocks} * options.block_tokens),
      salts_(options.n_blocks),
      buckets_(std::bit_ceil(std::max<std::size_t>(options.n_blocks, 1)), kNone) {}

std::optional<std::uint32_t> PrefixTree::find(const PrefixKey& key) const {
  std::uint32_t block = buckets_[hash_of(key) & (buckets_.size() - 1)];
  while (block != kNone && !holds(block, key))
    block = nodes_[block].next;
  if (block == kNone) return std::nullopt;
  return block;
}

void PrefixTree::insert(std::uint32_t block, const PrefixKey& key) {
  Node& node = nodes_[block];
  LUNA_VERIFY(!node.has_key);
  LUNA_VERIFY(key.token_ids.size() == options_.block_tokens);
  LUNA_ASSERT(!find(key));
  node.hash = hash_of(key);
  node.has_key = true;
  node.parent = key.parent.value_or(kNone);
  ++node.stamp;
  std::copy(
      key.token_ids.begin(),
      key.token_ids.end(),
      token_ids_.begin() + static_cast<std::ptrdiff_t>(std::size_t{block} * options_.block_tokens));
  if (key.parent) {
    LUNA_VERIFY(nodes_[*key.parent].has_key);
    ++nodes_[*key.parent].n_children;
    ++nodes_[*key.parent].n_given;
  } else {
    ++n_first_given_;
    Salt& salt = salts_[block];
    LUNA_VERIFY(key.scope.salt.size() <= sizeof(salt.bytes));
    salt.tenant = key.scope.tenant;
    salt.n_bytes = static_cast<std::uint32_t>(key.scope.salt.size());
    std::copy(key.scope.salt.begin(), key.scope.salt.end(), salt.bytes);
  }
  std::uint32_t& bucket = buckets_[node.hash & (buckets_.size() - 1)];
  node.next = bucket;
  bucket = block;
  ++n_keys_;
  ++version_;
}

void PrefixTree::erase(std::uint32_t block) {
  Node& node = nodes_[block];
  LUNA_VERIFY(node.has_key);
  LUNA_VERIFY(node.n_children == 0);
  std::uint32_t* link = &buckets_[node.hash & (buckets_.size() - 1)];
  while (*link != block)
    link = &nodes_[*link].next;
  *link = node.next;
  if (node.parent != kNone) --nodes_[node.parent].n_children;
  node.has_key = false;
  ++node.stamp;
  --n_keys_;
  ++version_;
}

std::optional<std::uint32_t> PrefixTree::parent(std::uint32_t block) const {
  if (nodes_[block].parent == kNone) return std::nullopt;
  return nodes_[block].parent;
}

std::uint64_t PrefixTree::hash_of(const PrefixKey& key) const {
  if (key.parent) return options_.hash(nodes_[*key.parent].hash, key.token_ids);
  std::uint64_t state = options_.hash_seed;
  if (key.scope.tenant != 0 || !key.scope.salt.empty()) {
    std::array<std::uint32_t, 1 + pipeline::kCacheSaltBytesMax / sizeof(std::uint32_t)> words{};
    words[0] = key.scope.tenant;
    const std::string_view salt = key.scope.salt.substr(0, pipeline::kCacheSaltBytesMax);
    if (!salt.empty()) std::memcpy(words.data() + 1, salt.data(), salt.size());
    state = options_.hash(state, words);
  }
  return options_.hash(state, key.token_ids);
}

bool PrefixTree::holds(std::uint32_t block, const PrefixKey& key) const {
  const auto first =
      token_ids_.begin() + static_cast<std::ptrdiff_t>(std::size_t{block} * options_.block_tokens);
  if (nodes_[block].parent != key.parent.value_or(kNone)) return false;
  if (!std::equal(key.token_ids.begin(),
                  key.token_ids.end(),
                  first,
                  first + static_cast<std::ptrdiff_t>(options_.block_tokens)))
    return false;
  return key.parent || scope_of(block) == key.scope;
}

PrefixScope PrefixTree::scope_of(std::uint32_t first_block) const {
  const Salt& salt = salts_[first_block];
  return {.tenant = salt.tenant, .salt = {salt.bytes, salt.n_bytes}};
}

}  // namespace luna::engine
