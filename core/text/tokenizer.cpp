#include "core/text/tokenizer.hpp"

#include "core/text/normalizer.hpp"
#include "core/text/pre_tokenizer.hpp"
#include "core/text/symbols.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>

namespace luna::text {
namespace {

// One whole-text range: everything may become a control token.
constexpr ByteRange kAllBytes{0, static_cast<std::size_t>(-1)};

std::vector<ByteRange> trusted_ranges(std::span<const TextRun> runs) {
  std::vector<ByteRange> ranges;
  std::size_t pos = 0;
  for (const TextRun& run : runs) {
    const ByteRange range{pos, pos + run.text.size()};
    pos = range.end;
    if (!run.trusted || range.begin == range.end) continue;
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

/// The ranges as seen from a segment of the text, cut to it.
std::vector<ByteRange> ranges_within(std::span<const ByteRange> ranges, ByteRange segment) {
  std::vector<ByteRange> inside;
  auto range = std::partition_point(ranges.begin(), ranges.end(), [&segment](const ByteRange& r) {
    return r.end <= segment.begin;
  });
  for (; range != ranges.end() && range->begin < segment.end; ++range) {
    const std::size_t begin = std::max(range->begin, segment.begin);
    const std::size_t end = std::min(range->end, segment.end);
    inside.push_back({begin - segment.begin, end - segment.begin});
  }
  return inside;
}

}  // namespace

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, SpecialTokens mode) const {
  const std::span<const ByteRange> all(&kAllBytes, 1);
  return encode(text, mode == SpecialTokens::recognise ? all : all.first(0));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const TextRun> runs) const {
  std::string text;
  for (const TextRun& run : runs)
    text += run.text;
  const std::vector<ByteRange> trusted = trusted_ranges(runs);
  return encode(text, trusted);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               std::span<const ByteRange> trusted) const {
  if (text.size() > kTextBytesMax) {
    return Error{Code::invalid_argument,
                 "a text of " + std::to_string(text.size()) + " bytes is above the limit of " +
                     std::to_string(kTextBytesMax)};
  }
  std::vector<TokenId> ids;
  const auto encode_between = [&](ByteRange where) -> Result<void> {
    if (where.begin == where.end) return {};
    const std::string_view segment = text.substr(where.begin, where.end - where.begin);
    // Without tokens to look for after normalisation nobody asks who wrote what.
    if (normalized_finder_.empty()) return encode_segment(segment, {}, ids);
    const std::vector<ByteRange> inside = ranges_within(trusted, where);
    return encode_segment(segment, inside, ids);
  };
  std::size_t pos = 0;
  while (const auto match = raw_finder_.find(text, pos, trusted)) {
    LUNA_TRY(encode_between({pos, match->where.begin}));
    ids.push_back(match->id);
    pos = match->where.end;
  }
  LUNA_TRY(encode_between({pos, text.size()}));
  return ids;
}

Result<void> Tokenizer::encode_segment(std::string_view segment,
                                       std::span<const ByteRange> trusted,
                                       std::vector<TokenId>& out) const {
  std::string composed;
  std::vector<ByteRange> composed_trusted;
  if (rules_.nfc && !is_surely_nfc(segment)) {
    LUNA_TRY(composed, to_nfc(segment));
    // Composition may move bytes: then only a segment that is trusted as a whole stays trusted.
    if (composed != segment) {
      const bool whole =
          trusted.size() == 1 && trusted[0].begin == 0 && trusted[0].end == segment.size();
      if (whole) composed_trusted.push_back({0, composed.size()});
      trusted = composed_trusted;
      segment = composed;
    }
  }
  std::size_t pos = 0;
  while (const auto match = normalized_finder_.find(segment, pos, trusted)) {
    encode_plain(segment.substr(pos, match->where.begin - pos), out);
    out.push_back(match->id);
    pos = match->where.end;
  }
  encode_plain(segment.substr(pos), out);
  return {};
}

void Tokenizer::encode_plain(std::string_view text, std::vector<TokenId>& out) const {
  if (rules_.by_characters) return encode_characters(text, out);
  std::vector<std::string_view> words;
  split_words(text, rules_, words);
  PairMerger merger;
  std::vector<TokenId> symbols;
  for (const std::string_view word : words) {
    if (rules_.ignores_merges) {
      if (const auto whole = word_ids_.find(word); whole != word_ids_.end()) {
        out.push_back(whole->second);
        continue;
      }
    }
    symbols.clear();
    for (const char c : word) {
      if (const auto id = id_by_byte_[static_cast<unsigned char>(c)]) symbols.push_back(*id);
    }
    merger.merge(symbols, merges_, out);
  }
}

void Tokenizer::encode_characters(std::string_view text, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  std::vector<TokenId> symbols;
  const auto add = [&](char32_t point) {
    const auto known = id_by_character_.find(point);
    symbols.push_back(known == id_by_character_.end() ? symbol_of(point) : known->second);
  };
  if (rules_.adds_space) add(kSpaceMark);
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (step.valid)
      add(step.point == U' ' ? kSpaceMark : step.point);
    else
      append_bytes(text.substr(pos, 1), symbols);
    pos += step.n_bytes;
  }
  std::vector<TokenId> merged;
  PairMerger().merge(symbols, merges_, merged);
  std::string character;
  for (const TokenId id : merged) {
    if (!is_symbol(id)) {
      out.push_back(id);
      continue;
    }
    character.clear();
    append_utf8(character, point_of(id));
    append_bytes(character, out);
  }
}

void Tokenizer::append_bytes(std::string_view character, std::vector<TokenId>& out) const {
  const bool has_all = std::ranges::all_of(
      character, [&](char c) { return id_by_byte_[static_cast<unsigned char>(c)].has_value(); });
  if (!has_all) {
    if (unknown_id_) out.push_back(*unknown_id_);
    return;
  }
  for (const char c : character)
    out.push_back(*id_by_byte_[static_cast<unsigned char>(c)]);
}

std::string_view Tokenizer::bytes(TokenId id) const {
  if (id >= types_.size()) return {};
  return std::string_view(arena_).substr(starts_[id], starts_[id + 1] - starts_[id]);
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids)
    text += bytes(id);
  return text;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return std::binary_search(ends_.begin(), ends_.end(), id);
}

std::optional<TokenId> Tokenizer::added_token(std::string_view text) const {
  const auto found = added_ids_.find(text);
  if (found == added_ids_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::uint8_t> Tokenizer::missing_bytes() const {
  std::vector<std::uint8_t> missing;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!id_by_byte_[byte]) missing.push_back(static_cast<std::uint8_t>(byte));
  }
  return missing;
}

}  // namespace luna::text
