// Any bytes as a text to tokenize, by every family's rules: ids within the vocabulary, and the same
// bytes again; and as a text in two runs of which one is a client's: no control token from that
// one.
#include "core/base/assert.hpp"
#include "core/text/tokenizer.hpp"
#include "support/tiny_vocabulary.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using luna::text::SpecialTokens;
using luna::text::TextRun;
using luna::text::TokenId;
using luna::text::Tokenizer;

constexpr std::array kFamilies = {"smollm", "gpt-2", "llama-bpe"};  // without normalisation

std::vector<Tokenizer> make_tokenizers() {
  std::vector<Tokenizer> tokenizers;
  for (const char* family : kFamilies) {
    luna::text::Vocabulary vocabulary = luna::test::tiny_vocabulary();
    vocabulary.pre = family;
    auto tokenizer = Tokenizer::create(std::move(vocabulary));
    LUNA_VERIFY(tokenizer.has_value());
    tokenizers.push_back(std::move(*tokenizer));
  }
  return tokenizers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Tokenizer> tokenizers = make_tokenizers();
  if (size < 2) return 0;
  const Tokenizer& tokenizer = tokenizers[data[0] % tokenizers.size()];
  const std::size_t n_trusted = std::min<std::size_t>(data[1], size - 2);
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  for (const SpecialTokens mode : {SpecialTokens::plain, SpecialTokens::recognise}) {
    const auto ids = tokenizer.encode(text, mode);
    LUNA_VERIFY(ids.has_value());
    for (const TokenId id : *ids)
      LUNA_VERIFY(id < tokenizer.vocab_size());
    LUNA_VERIFY(tokenizer.decode(*ids) == text);
  }
  const std::vector<TextRun> runs = {{std::string(text.substr(0, n_trusted)), true},
                                     {std::string(text.substr(n_trusted)), false}};
  const auto marked = tokenizer.encode(runs);
  LUNA_VERIFY(marked.has_value());
  LUNA_VERIFY(tokenizer.decode(*marked) == text);
  const auto trusted = tokenizer.encode(runs[0].text, SpecialTokens::recognise);
  const auto n_control = [&](const std::vector<TokenId>& ids) {
    return std::count_if(
        ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_control(id); });
  };
  LUNA_VERIFY(n_control(*marked) == n_control(*trusted));
  return 0;
}
