// A vocabulary small enough to reason about: all bytes, a few merges, two control tokens.
#pragma once

#include "core/text/byte_alphabet.hpp"
#include "core/text/utf8.hpp"
#include "core/text/vocabulary.hpp"

#include <string>
#include <vector>

namespace luna::test {

/// Ids 0 to 255 are the bytes; then <|im_start|> (256), <|im_end|> (257), the user-defined <think>
/// (258), and a token for each merge in turn.
inline text::Vocabulary tiny_vocabulary(const std::vector<std::string>& merges = {
                                            "t h", "th e", "a a", "aa aa", "Ġ the"}) {
  text::Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "smollm";
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    text::append_utf8(symbol, text::alphabet_char(static_cast<std::uint8_t>(byte)));
    vocabulary.tokens.push_back(symbol);
  }
  vocabulary.types.assign(256, text::TokenType::normal);
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(name);
    vocabulary.types.push_back(text::TokenType::control);
  }
  vocabulary.tokens.emplace_back("<think>");
  vocabulary.types.push_back(text::TokenType::user_defined);
  for (const std::string& merge : merges) {
    std::string joined = merge;
    joined.erase(joined.find(' '), 1);
    vocabulary.tokens.push_back(joined);
    vocabulary.types.push_back(text::TokenType::normal);
  }
  vocabulary.merges = merges;
  vocabulary.bos_id = 256;
  vocabulary.eos_id = 257;
  return vocabulary;
}

}  // namespace luna::test
