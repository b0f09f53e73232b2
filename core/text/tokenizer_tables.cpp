// Checking a vocabulary and building the tokenizer's tables from it.
#include "core/text/byte_alphabet.hpp"
#include "core/text/symbols.hpp"
#include "core/text/tokenizer.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

namespace luna::text {
namespace {

constexpr std::string_view kByteLevelModel = "gpt2";
constexpr std::string_view kCharacterModel = "llama";

// Control tokens with these texts end a turn in the families that have them, although their files
// may name only one eos.
constexpr std::array<std::string_view, 12> kEndTexts = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<|return|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
};

std::string quoted(std::string_view text) {
  return "\"" + std::string(text.substr(0, 64)) + "\"";
}

Error corrupt(std::string what) {
  return {Code::corrupt, "vocabulary: " + std::move(what)};
}

bool is_added(TokenType type) {
  return type == TokenType::control || type == TokenType::user_defined;
}

/// Text with spaces for the marks that stand for them.
std::string without_marks(std::string_view token) {
  std::string text;
  for (std::size_t pos = 0; pos < token.size();) {
    const Utf8Step step = utf8_step(token, pos);
    if (step.valid && step.point == kSpaceMark)
      text += ' ';
    else
      text += token.substr(pos, step.n_bytes);
    pos += step.n_bytes;
  }
  return text;
}

/// The byte that "<0x0A>" stands for.
std::optional<std::uint8_t> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  std::uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc{} || end != token.data() + 5) return std::nullopt;
  return byte;
}

/// What a token over characters stands for.
std::string piece_bytes(std::string_view token, TokenType type) {
  if (type == TokenType::byte) {
    if (const auto byte = byte_of(token)) return std::string(1, static_cast<char>(*byte));
  }
  return type == TokenType::control ? std::string(token) : without_marks(token);
}

/// The character that a text is, if it is one.
std::optional<char32_t> only_character(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const Utf8Step step = utf8_step(text, 0);
  if (!step.valid || step.n_bytes != text.size()) return std::nullopt;
  return step.point;
}

}  // namespace

Result<Tokenizer> Tokenizer::create(Vocabulary vocabulary) {
  if (vocabulary.types.empty())
    vocabulary.types.resize(vocabulary.tokens.size(), TokenType::normal);
  LUNA_TRY(check(vocabulary));
  Tokenizer tokenizer(vocabulary.merges.size());
  if (vocabulary.rules) {
    tokenizer.rules_ = *vocabulary.rules;
  } else if (vocabulary.model == kCharacterModel) {
    tokenizer.rules_ = {
        .pattern = WordPattern::whole, .by_characters = true, .adds_space = vocabulary.adds_space};
  } else {
    LUNA_TRY(tokenizer.rules_, split_rules_by_name(vocabulary.pre));
  }
  tokenizer.types_ = vocabulary.types;
  tokenizer.bos_id_ = vocabulary.bos_id;
  tokenizer.eos_id_ = vocabulary.eos_id;
  tokenizer.unknown_id_ = vocabulary.unknown_id;
  tokenizer.adds_bos_ = vocabulary.adds_bos;
  tokenizer.adds_eos_ = vocabulary.adds_eos;
  tokenizer.store_bytes(vocabulary);
  if (vocabulary.scores.empty()) {
    LUNA_TRY(tokenizer.index_merges(vocabulary));
  } else {
    LUNA_TRY(tokenizer.index_scores(vocabulary));
  }
  LUNA_TRY(tokenizer.index_added(vocabulary));
  tokenizer.choose_ends(vocabulary);
  return tokenizer;
}

Result<void> Tokenizer::check(const Vocabulary& vocabulary) {
  const bool by_characters = vocabulary.model == kCharacterModel;
  if (vocabulary.model != kByteLevelModel && !by_characters) {
    return Error{
        Code::unsupported,
        "tokenizer model " + quoted(vocabulary.model) +
            " is not known; known are: gpt2 (byte-level BPE), llama (BPE over characters)"};
  }
  const std::size_t n = vocabulary.tokens.size();
  if (by_characters && vocabulary.merges.empty() && vocabulary.scores.size() != n) {
    return corrupt(std::to_string(n) + " tokens, but " + std::to_string(vocabulary.scores.size()) +
                   " scores that rank their merges");
  }
  if (n == 0) return corrupt("it has no tokens");
  if (vocabulary.types.size() != n) {
    return corrupt(std::to_string(n) + " tokens, but " + std::to_string(vocabulary.types.size()) +
                   " token types");
  }
  std::size_t n_bytes = 0;
  for (const std::string& token : vocabulary.tokens)
    n_bytes += token.size();
  if (n > 0x7FFFFFFF || n_bytes > 0x7FFFFFFF || vocabulary.merges.size() > 0x7FFFFFFF) {
    return corrupt("more than 2^31 tokens, merges or bytes of text");
  }
  struct NamedId {
    std::string_view name;
    std::optional<TokenId> id;
  };
  const std::array named = {NamedId{"bos", vocabulary.bos_id},
                            NamedId{"eos", vocabulary.eos_id},
                            NamedId{"eot", vocabulary.eot_id},
                            NamedId{"padding", vocabulary.pad_id},
                            NamedId{"unknown", vocabulary.unknown_id}};
  const auto wrong_end =
      std::ranges::find_if(vocabulary.end_ids, [n](TokenId id) { return id >= n; });
  if (wrong_end != vocabulary.end_ids.end()) {
    return corrupt("end token id " + std::to_string(*wrong_end) +
                   " is not below the number of tokens, " + std::to_string(n));
  }
  for (const auto& [name, id] : named) {
    if (id && *id >= n) {
      return corrupt(std::string(name) + " token id " + std::to_string(*id) +
                     " is not below the number of tokens, " + std::to_string(n));
    }
  }
  return {};
}

void Tokenizer::store_bytes(const Vocabulary& vocabulary) {
  starts_.reserve(vocabulary.tokens.size() + 1);
  starts_.push_back(0);
  for (TokenId id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (rules_.by_characters) {
      arena_ += piece_bytes(token, types_[id]);
    } else {
      const auto bytes = is_added(types_[id]) ? std::nullopt : alphabet_decode(token);
      arena_ += bytes ? *bytes : token;
    }
    starts_.push_back(static_cast<std::uint32_t>(arena_.size()));
    token_bytes_max_ = std::max<std::size_t>(token_bytes_max_, starts_[id + 1] - starts_[id]);
  }
}

Result<void> Tokenizer::index_merges(const Vocabulary& vocabulary) {
  // Control tokens are left out: no merge of a client's text may ever make one. Of equal texts the
  // first counts.
  std::unordered_map<std::string_view, TokenId> id_by_text;
  id_by_text.reserve(vocabulary.tokens.size());
  for (TokenId id = 0; id < vocabulary.tokens.size(); ++id) {
    if (types_[id] != TokenType::control) id_by_text.emplace(vocabulary.tokens[id], id);
  }
  index_characters(vocabulary);
  for (unsigned byte = 0; byte < 256 && !rules_.by_characters; ++byte) {
    std::string symbol;
    append_utf8(symbol, alphabet_char(static_cast<std::uint8_t>(byte)));
    if (const auto found = id_by_text.find(symbol); found != id_by_text.end()) {
      id_by_byte_[byte] = found->second;
    }
  }
  std::string joined;
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const std::size_t space = merge.find(' ');
    const std::string where = "merge " + std::to_string(rank) + " " + quoted(merge);
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return corrupt(where + " is not two texts with a space between");
    }
    joined.assign(merge.substr(0, space));
    joined += merge.substr(space + 1);
    const auto left = id_by_text.find(merge.substr(0, space));
    const auto right = id_by_text.find(merge.substr(space + 1));
    const auto whole = id_by_text.find(joined);
    const auto none = id_by_text.end();
    if (left == none || right == none || whole == none) {
      return corrupt(where + " names a text that is no token, or makes a control token");
    }
    merges_.insert(left->second, right->second, {static_cast<std::uint32_t>(rank), whole->second});
  }
  if (rules_.ignores_merges) {
    for (TokenId id = 0; id < types_.size(); ++id) {
      if (types_[id] == TokenType::normal) word_ids_.emplace(bytes(id), id);
    }
  }
  return {};
}

void Tokenizer::index_characters(const Vocabulary& vocabulary) {
  if (!rules_.by_characters) return;
  for (TokenId id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (types_[id] == TokenType::byte) {
      if (const auto byte = byte_of(token)) id_by_byte_[*byte] = id;
    } else if (types_[id] == TokenType::normal) {
      if (const auto point = only_character(token)) id_by_character_.emplace(*point, id);
    }
  }
}

/// Two neighbours merge where they make a token together; the one of the highest score comes first.
Result<void> Tokenizer::index_scores(const Vocabulary& vocabulary) {
  index_characters(vocabulary);
  std::unordered_map<std::string_view, TokenId> id_by_text;
  std::vector<TokenId> ranked;
  for (TokenId id = 0; id < vocabulary.tokens.size(); ++id) {
    const bool can_merge = types_[id] == TokenType::normal && !vocabulary.tokens[id].empty();
    if (!can_merge || std::isnan(vocabulary.scores[id])) continue;
    if (id_by_text.emplace(vocabulary.tokens[id], id).second) ranked.push_back(id);
  }
  std::ranges::stable_sort(
      ranked, std::ranges::greater{}, [&](TokenId id) { return vocabulary.scores[id]; });
  const auto find = [&](std::string_view text) -> std::optional<TokenId> {
    if (const auto found = id_by_text.find(text); found != id_by_text.end()) return found->second;
    if (const auto point = only_character(text)) return symbol_of(*point);
    return std::nullopt;
  };
  struct Merge {
    TokenId left, right;
    MergeRule rule;
  };
  std::vector<Merge> merges;
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const TokenId id = ranked[i];
    if (i != 0 && vocabulary.scores[id] != vocabulary.scores[ranked[i - 1]]) ++rank;
    const std::string_view token = vocabulary.tokens[id];
    for (std::size_t cut = utf8_step(token, 0).n_bytes; cut < token.size();
         cut += utf8_step(token, cut).n_bytes) {
      const auto left = find(token.substr(0, cut));
      const auto right = left ? find(token.substr(cut)) : std::nullopt;
      if (right) merges.push_back({*left, *right, {rank, id}});
    }
  }
  if (merges.size() > 0x7FFFFFFF) return corrupt("more than 2^31 merges");
  merges_ = MergeTable(merges.size());
  for (const Merge& merge : merges)
    merges_.insert(merge.left, merge.right, merge.rule);
  return {};
}

Result<void> Tokenizer::index_added(const Vocabulary& vocabulary) {
  std::unordered_map<TokenId, AddedToken> flags_by_id;
  for (const AddedToken& added : vocabulary.added) {
    if (added.id >= types_.size()) {
      return corrupt("added token id " + std::to_string(added.id) + " is not a token");
    }
    flags_by_id[added.id] = added;
  }
  for (TokenId id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (!is_added(types_[id]) || token.empty()) continue;
    if (token.size() > AddedTokenFinder::kTextBytesMax) {
      return Error{Code::unsupported,
                   "token " + std::to_string(id) + " has " + std::to_string(token.size()) +
                       " bytes; a control or user-defined token may have " +
                       std::to_string(AddedTokenFinder::kTextBytesMax)};
    }
    if (!added_ids_.emplace(token, id).second) continue;  // of equal texts the first counts
    const auto known = flags_by_id.find(id);
    const AddedToken flags = known == flags_by_id.end() ? AddedToken{.id = id} : known->second;
    AddedTokenFinder& finder = flags.normalized ? normalized_finder_ : raw_finder_;
    finder.add(token, flags, types_[id] == TokenType::control);
  }
  return {};
}

void Tokenizer::choose_ends(const Vocabulary& vocabulary) {
  if (vocabulary.eos_id) ends_.push_back(*vocabulary.eos_id);
  if (vocabulary.eot_id) ends_.push_back(*vocabulary.eot_id);
  ends_.insert(ends_.end(), vocabulary.end_ids.begin(), vocabulary.end_ids.end());
  for (const std::string_view text : kEndTexts) {
    const auto id = added_token(text);
    if (id && is_control(*id)) ends_.push_back(*id);
  }
  std::sort(ends_.begin(), ends_.end());
  ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
}

}  // namespace luna::text
