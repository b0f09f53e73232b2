#include "core/text/added_token_finder.hpp"

#include "core/text/unicode_classes.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>

namespace luna::text {
namespace {

/// The start of the character that ends at `pos` (which is above 0).
std::size_t step_back(std::string_view text, std::size_t pos) {
  std::size_t begin = pos - 1;
  while (begin > 0 && pos - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80) {
    --begin;
  }
  return utf8_step(text, begin).n_bytes == pos - begin ? begin : pos - 1;
}

bool is_space_at(std::string_view text, std::size_t pos) {
  const Utf8Step step = utf8_step(text, pos);
  return step.valid && char_class(step.point) == CharClass::space;
}

bool is_word_at(std::string_view text, std::size_t pos) {
  const Utf8Step step = utf8_step(text, pos);
  return step.valid && is_word_char(step.point);
}

bool stands_alone(std::string_view text, ByteRange where) {
  if (where.begin > 0 && is_word_at(text, step_back(text, where.begin))) return false;
  return where.end >= text.size() || !is_word_at(text, where.end);
}

/// The match with the white space that its token takes along, but nothing before `from`.
ByteRange with_stripped_space(std::string_view text,
                              std::size_t from,
                              ByteRange where,
                              const AddedToken& flags) {
  while (flags.strips_left && where.begin > from) {
    const std::size_t before = step_back(text, where.begin);
    if (before < from || !is_space_at(text, before)) break;
    where.begin = before;
  }
  while (flags.strips_right && where.end < text.size() && is_space_at(text, where.end)) {
    where.end += utf8_step(text, where.end).n_bytes;
  }
  return where;
}

}  // namespace

std::uint32_t AddedTokenFinder::child(std::uint32_t node, unsigned char byte) const {
  if (node == 0) return root_child_[byte];
  std::uint32_t at = nodes_[node].first_child;
  while (at != 0 && nodes_[at].byte != byte)
    at = nodes_[at].next_sibling;
  return at;
}

void AddedTokenFinder::add(std::string_view text, const AddedToken& flags, bool is_control) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({0, nodes_[node].first_child, 0, byte});
      nodes_[node].first_child = next;
      if (node == 0) root_child_[byte] = next;
    }
    node = next;
  }
  entries_.push_back({flags, is_control});
  nodes_[node].entry = static_cast<std::uint32_t>(entries_.size());
}

std::optional<AddedTokenFinder::Candidate> AddedTokenFinder::match_at(
    std::string_view text, std::size_t pos, std::size_t trusted_end) const {
  std::optional<Candidate> best;
  std::uint32_t node = 0;
  for (std::size_t i = pos; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    if (nodes_[node].entry == 0) continue;
    const std::uint32_t entry = nodes_[node].entry - 1;
    if (entries_[entry].is_control && i >= trusted_end) continue;
    best = Candidate{{pos, i + 1}, entry};
  }
  return best;
}

std::optional<AddedMatch> AddedTokenFinder::find(std::string_view text,
                                                 std::size_t from,
                                                 std::span<const ByteRange> trusted) const {
  if (empty()) return std::nullopt;
  auto range = static_cast<std::size_t>(
      std::partition_point(
          trusted.begin(), trusted.end(), [from](const ByteRange& r) { return r.end <= from; }) -
      trusted.begin());
  for (std::size_t pos = from; pos < text.size();) {
    if (root_child_[static_cast<unsigned char>(text[pos])] == 0) {
      ++pos;
      continue;
    }
    while (range < trusted.size() && trusted[range].end <= pos)
      ++range;
    const bool inside = range < trusted.size() && trusted[range].begin <= pos;
    const auto match = match_at(text, pos, inside ? trusted[range].end : 0);
    if (!match) {
      ++pos;
      continue;
    }
    const AddedToken& flags = entries_[match->entry].flags;
    if (flags.single_word && !stands_alone(text, match->where)) {
      pos = match->where.end;
      continue;
    }
    return AddedMatch{with_stripped_space(text, from, match->where, flags), flags.id};
  }
  return std::nullopt;
}

}  // namespace luna::text
