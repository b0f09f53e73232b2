// Text to token ids and back, by byte-pair encoding over bytes or over characters.
#pragma once

#include "core/text/added_token_finder.hpp"
#include "core/text/pair_merger.hpp"
#include "core/text/text_run.hpp"
#include "core/text/vocabulary.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace luna::text {

/// What becomes of the text of a control token in an input.
enum class SpecialTokens : std::uint8_t {
  recognise,  // it becomes the token
  plain,      // it stays text
};

/// The tokenizer of one model. A value after creation; every call is const and thread-safe.
///
/// Source  `tokenizers` (Hugging Face), model BPE with ByteLevel or with byte fallback; equal ids
/// are
///         tested against it. SentencePiece, model BPE, for ranks by score
class Tokenizer {
 public:
  /// Texts above this are refused: positions inside are 32 bits, with room for normalisation.
  static constexpr std::size_t kTextBytesMax = std::size_t{1} << 30U;

  /// Checks a vocabulary and builds the tables. [start-up]
  ///
  /// Errors  unsupported (kind of model, pre-tokenizer name, a control token above 1,024 bytes);
  ///         corrupt (counts, ids, merges)
  /// Cost    O(bytes of the vocabulary)
  static Result<Tokenizer> create(Vocabulary vocabulary);

  /// The ids of a text; nothing is put before or after. [any]
  ///
  /// Bytes for which the vocabulary has no token give none, as in the reference (missing_bytes()).
  /// Errors  invalid_argument (too long); exhausted (memory in normalisation)
  /// Cost    O(n log n) at worst, for one word of n bytes
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    SpecialTokens mode) const;

  /// The ids of the text that the runs make together. The borders between runs cut no word; only
  /// the text of control tokens has to lie wholly inside trusted bytes. [any]
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::span<const TextRun> runs) const;

  /// The bytes that a token stands for, or nothing for an id the model has not. [any]
  [[nodiscard]] std::string_view bytes(TokenId id) const;

  /// The bytes of all tokens in turn, control tokens by their text. May not be valid UTF-8. [any]
  [[nodiscard]] std::string decode(std::span<const TokenId> ids) const;

  [[nodiscard]] std::size_t vocab_size() const { return types_.size(); }
  [[nodiscard]] std::size_t token_bytes_max() const { return token_bytes_max_; }
  [[nodiscard]] bool is_control(TokenId id) const {
    return id < types_.size() && types_[id] == TokenType::control;
  }
  /// Ends a generation: eos, end of turn, and the control tokens known by name to end a turn.
  [[nodiscard]] bool is_end_of_generation(TokenId id) const;
  [[nodiscard]] std::span<const TokenId> end_of_generation_ids() const { return ends_; }
  [[nodiscard]] std::optional<TokenId> bos_id() const { return bos_id_; }
  [[nodiscard]] std::optional<TokenId> eos_id() const { return eos_id_; }
  [[nodiscard]] bool adds_bos() const { return adds_bos_; }
  [[nodiscard]] bool adds_eos() const { return adds_eos_; }
  /// The control or user-defined token with exactly this text.
  [[nodiscard]] std::optional<TokenId> added_token(std::string_view text) const;
  /// Bytes that no token of the vocabulary carries; a text with them does not round-trip.
  [[nodiscard]] std::vector<std::uint8_t> missing_bytes() const;

 private:
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using IdByText = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

  explicit Tokenizer(std::size_t n_merges) : merges_(n_merges) {}

  static Result<void> check(const Vocabulary& vocabulary);
  void store_bytes(const Vocabulary& vocabulary);
  Result<void> index_merges(const Vocabulary& vocabulary);
  Result<void> index_added(const Vocabulary& vocabulary);
  void choose_ends(const Vocabulary& vocabulary);

  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    std::span<const ByteRange> trusted) const;
  Result<void> encode_segment(std::string_view segment,
                              std::span<const ByteRange> trusted,
                              std::vector<TokenId>& out) const;
  void encode_plain(std::string_view text, std::vector<TokenId>& out) const;
  void encode_characters(std::string_view text, std::vector<TokenId>& out) const;
  /// The tokens of a character's bytes; the unknown token where there is none.
  void append_bytes(std::string_view character, std::vector<TokenId>& out) const;
  void index_characters(const Vocabulary& vocabulary);
  Result<void> index_scores(const Vocabulary& vocabulary);

  SplitRules rules_;
  std::vector<TokenType> types_;       // by id
  std::string arena_;                  // the bytes of all tokens, one after the other
  std::vector<std::uint32_t> starts_;  // by id, and the end of the last
  std::size_t token_bytes_max_ = 0;
  std::array<std::optional<TokenId>, 256> id_by_byte_{};
  std::unordered_map<char32_t, TokenId> id_by_character_;  // only where symbols are characters
  MergeTable merges_;
  IdByText word_ids_;  // whole words, by their bytes; only where the rules ignore merges
  IdByText added_ids_;
  AddedTokenFinder raw_finder_;         // looked for in the input
  AddedTokenFinder normalized_finder_;  // looked for after normalisation
  std::vector<TokenId> ends_;           // ascending
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;
  std::optional<TokenId> unknown_id_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
};

}  // namespace luna::text
