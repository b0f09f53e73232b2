// The same prompt computed in several ways: tokens and logits must be equal to the bit.
#pragma once

#include "core/engine/engine.hpp"
#include "core/pipeline/pipeline_model.hpp"
#include "core/pipeline/token_stream.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

/// One run of the prompt. What its setting was meant to do it may not have done: the trace tells.
struct Reproduction {
  std::string setting;
  std::vector<pipeline::TokenId> tokens;
  pipeline::StreamEnd end;
  bool is_same = false;  ///< tokens and logits are those of the first run
};

/// A way to run the prompt beside the plain one.
struct ReproductionSetting {
  std::string name;
  std::uint32_t n_beside = 0;  ///< other sequences submitted with it
  std::optional<std::uint32_t> prompt_chunk_tokens_max = std::nullopt;
  bool finds_prefix = false;  ///< what earlier runs with this wish have left in the prefix cache
  engine::Drafts drafts = engine::Drafts::never;
};

/// Alone again; beside 1, 6, 31 and 63 others; in chunks of 7 and 32 tokens; twice with one salt,
/// so that the second finds the first in the prefix cache; with as many drafts as the engine makes,
/// alone and beside 6. Where the model lies on several devices, the others are in its step and in
/// those that run on the other devices meanwhile: the trace tells how many.
std::vector<ReproductionSetting> reproduction_settings();

/// Runs `asked` alone, then once for each setting, on an engine that does nothing else. Others are
/// decoding when it comes in; their prompts are made of its tokens. [any]
///
/// asked        one sequence; id, streams, salt and trace wishes are set here
/// wait         called while nothing is to be done: lets some time pass, or runs the engine where
/// the
///              caller does; false ends the check
/// Returns      the plain run, then one for each setting
/// Errors       those of submit() and of a run that failed; cancelled
Result<std::vector<Reproduction>> reproduce(const pipeline::PipelineModel& model,
                                            const engine::SequenceRequest& asked,
                                            const std::vector<ReproductionSetting>& settings,
                                            const std::function<bool()>& wait);

}  // namespace luna::app
