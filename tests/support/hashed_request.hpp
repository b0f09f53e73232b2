// A long request whose logits are hashed: two engines that compute it alike agree to the bit.
#pragma once

#include "core/engine/engine.hpp"

#include <cstdint>
#include <memory>
#include <random>

namespace luna::test {

/// Greedy, with random tokens as its prompt; the answer has exactly n_generated tokens. Its stream
/// is the only one of `streams`.
///
/// seed         of the prompt; the request's id too
/// n_generated  tokens
/// tokenizer    of the engine: says how many bytes a token may have
inline std::unique_ptr<engine::SequenceRequest> hashed_request(std::uint64_t seed,
                                                               std::uint32_t n_prompt,
                                                               std::uint32_t n_generated,
                                                               std::uint32_t vocab_size,
                                                               const text::Tokenizer& tokenizer) {
  auto asked = std::make_unique<engine::SequenceRequest>();
  std::mt19937_64 random(seed);
  for (std::uint32_t i = 0; i < n_prompt; ++i)
    asked->prompt.push_back(static_cast<pipeline::TokenId>(random() % vocab_size));
  asked->sampling.temperature = 0.0F;
  asked->stop.n_generated_max = n_generated;
  asked->stop.ignore_eos = true;
  asked->hash_logits = true;
  asked->id = seed;
  const std::size_t n_bytes =
      pipeline::TokenStream::text_bytes_for(n_generated, tokenizer.token_bytes_max());
  asked->streams.push_back(std::make_shared<pipeline::TokenStream>(n_generated, n_bytes, 0));
  return asked;
}

}  // namespace luna::test
