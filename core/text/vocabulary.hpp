// What a model file says about its tokens: plain data, filled by a reader, checked by Tokenizer.
#pragma once

#include "core/text/split_rules.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace luna::text {

using TokenId = std::uint32_t;

/// What a token stands for. The values are GGUF's (`tokenizer.ggml.token_type`).
enum class TokenType : std::uint8_t {
  normal = 1,  // text, written in the byte alphabet
  unknown = 2,
  control = 3,       // steers the model (<|im_end|>); never made from a client's text
  user_defined = 4,  // its text is found whole in any input, before words are split
  unused = 5,
  byte = 6,
};

/// How the text of a control or user-defined token is found in an input.
struct AddedToken {
  TokenId id = 0;
  bool strips_left = false;   // takes the white space before it along
  bool strips_right = false;  // takes the white space after it along
  bool single_word = false;   // not inside a word
  bool normalized = false;    // looked for after normalisation, not before
};

/// The tokens of one model. A value.
struct Vocabulary {
  // Text by id; normal tokens in the byte alphabet of GPT-2, or by characters with U+2581 for a
  // space.
  std::vector<std::string> tokens;
  std::vector<TokenType> types;     // by id, as many as tokens
  std::vector<std::string> merges;  // "left right" as tokens are written, best first
  std::vector<float> scores;        // by id, where they rank merges instead: the highest first
  std::string model;                // `tokenizer.ggml.model`: "gpt2" is byte-level BPE, "llama" BPE
                                    // over characters
  bool adds_space = false;          // "llama": one more space before a text
  std::string pre;                  // `tokenizer.ggml.pre`: the family's way of splitting words
  std::optional<SplitRules> rules;  // set by a reader that knows them; then `pre` is not asked
  std::vector<AddedToken> added;    // what differs from plain search; may lack tokens

  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::optional<TokenId> eot_id;  // end of turn, where it is not the eos
  std::vector<TokenId> end_ids;   // further tokens that end generation
  std::optional<TokenId> pad_id;
  std::optional<TokenId> unknown_id;
  bool adds_bos = false;  // the model expects bos before a prompt that does not begin with it
  bool adds_eos = false;
  std::string chat_template;  // Jinja source, empty where the file has none
};

}  // namespace luna::text
