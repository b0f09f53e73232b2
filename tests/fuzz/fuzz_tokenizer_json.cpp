// Any bytes as a tokenizer.json and a tokenizer_config.json: a tokenizer, or the part named.
#include "core/text/tokenizer.hpp"
#include "core/text/vocabulary_json.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  luna::text::Vocabulary vocabulary;
  (void)luna::text::apply_tokenizer_config(text, vocabulary);
  auto read = luna::text::parse_tokenizer_json(text);
  if (!read) return 0;
  const auto tokenizer = luna::text::Tokenizer::create(std::move(*read));
  if (tokenizer) (void)tokenizer->encode("a b 1 <x>", luna::text::SpecialTokens::recognise);
  return 0;
}
