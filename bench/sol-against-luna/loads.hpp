// The loads that the two sides are compared under.
#pragma once

#include "core/bench/prompt_source.hpp"
#include "core/config/settings.hpp"
#include "router.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace luna::sol_against_luna {

/// Means of lengths in tokens; prompts and outputs are drawn evenly within kSpreadPercent of them.
struct Load {
  std::string_view name;
  std::uint32_t n_history = 0;  ///< of a session, the same in each of its turns
  std::uint32_t n_prompt = 0;   ///< after the history
  std::uint32_t n_generated = 0;

  [[nodiscard]] bool has_sessions() const { return n_history > 0; }
  [[nodiscard]] std::uint32_t n_sequence_tokens() const {
    return n_history + n_prompt + n_generated;
  }
  /// The routings that make sense for it, the likeliest best first.
  [[nodiscard]] std::span<const Routing> routings() const;
};

inline constexpr std::uint32_t kSpreadPercent = 50;

/// As a configuration says it.
config::ExpectedLoad expected_of(const Load& load);

/// turns, long, decode, chat.
std::span<const Load> all_loads();
/// Null: there is no such load.
const Load* find_load(std::string_view name);

/// What a run draws its requests by. Equal draws on both sides and in all runs of a seed; ids of
/// prompts never the same twice, so that no run finds another's in a prefix cache.
struct PromptSeeds {
  std::uint64_t history = 0;
  std::uint64_t draws = 0;
  std::uint64_t ids = 0;
};

/// n_sequence_tokens_max  the largest request that both sides can serve; longer ones shrink
Result<bench::PromptSource> make_prompts(const Load& load,
                                         std::uint32_t n_sessions,
                                         std::uint32_t n_sequence_tokens_max,
                                         const PromptSeeds& seeds);

/// Requests of the mean lengths, with one history, shortened alike.
Result<bench::PromptSource> make_mean_prompts(const Load& load,
                                              std::uint32_t n_sequence_tokens_max,
                                              const PromptSeeds& seeds);

}  // namespace luna::sol_against_luna
