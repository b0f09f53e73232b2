#include "loads.hpp"

#include <algorithm>
#include <array>

namespace luna::sol_against_luna {
namespace {

constexpr std::array<Load, 4> kLoads = {
    Load{.name = "turns", .n_history = 1500, .n_prompt = 50, .n_generated = 50},
    Load{.name = "long", .n_history = 0, .n_prompt = 1024, .n_generated = 512},
    Load{.name = "decode", .n_history = 0, .n_prompt = 64, .n_generated = 256},
    Load{.name = "chat", .n_history = 0, .n_prompt = 200, .n_generated = 64}};

constexpr std::array kSessionRoutings = {
    Routing::sticky, Routing::least_outstanding, Routing::round_robin};

bench::SyntheticPrompts synthetic(const Load& load, const PromptSeeds& seeds) {
  bench::SyntheticPrompts prompts;
  prompts.n_tokens = load.n_history + load.n_prompt;
  prompts.n_shared_prefix_tokens = load.n_history;
  prompts.seed = seeds.ids;
  prompts.prefix_seed = seeds.history;
  prompts.draw_seed = seeds.draws;
  return prompts;
}

}  // namespace

std::span<const Routing> Load::routings() const {
  const std::span<const Routing> all = kSessionRoutings;
  return has_sessions() ? all : all.subspan(1);  // without sessions nothing can stick
}

config::ExpectedLoad expected_of(const Load& load) {
  config::ExpectedLoad expected;
  expected.prompt = load.n_prompt;
  expected.reused = load.n_history;
  expected.output = load.n_generated;
  return expected;
}

std::span<const Load> all_loads() {
  return kLoads;
}

const Load* find_load(std::string_view name) {
  const auto* const found = std::find_if(
      kLoads.begin(), kLoads.end(), [&](const Load& load) { return load.name == name; });
  return found == kLoads.end() ? nullptr : found;
}

Result<bench::PromptSource> make_prompts(const Load& load,
                                         std::uint32_t n_sessions,
                                         std::uint32_t n_sequence_tokens_max,
                                         const PromptSeeds& seeds) {
  bench::SyntheticPrompts prompts = synthetic(load, seeds);
  prompts.n_prefixes = n_sessions;
  prompts.spread_percent = kSpreadPercent;
  prompts.n_sequence_tokens_max = n_sequence_tokens_max;
  return bench::PromptSource::synthetic(prompts, load.n_generated);
}

Result<bench::PromptSource> make_mean_prompts(const Load& load,
                                              std::uint32_t n_sequence_tokens_max,
                                              const PromptSeeds& seeds) {
  bench::SyntheticPrompts prompts = synthetic(load, seeds);
  prompts.n_sequence_tokens_max = n_sequence_tokens_max;
  return bench::PromptSource::synthetic(prompts, load.n_generated);
}

}  // namespace luna::sol_against_luna
