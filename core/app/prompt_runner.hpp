// One request from start to end on the calling thread, for the terminal commands.
#pragma once

#include "core/pipeline/pipeline.hpp"

#include <luna/result.hpp>

#include <functional>
#include <string_view>

namespace luna::app {

/// How a prompt ended.
struct PromptOutcome {
  pipeline::FinishReason finish = pipeline::FinishReason::stop;
  pipeline::Usage usage;
};

/// Runs the request and hands over each piece of text as it comes. When `keep_going` turns false
/// the request is cancelled. [main]
/// Errors  those of Pipeline::start and of the request's end
Result<PromptOutcome> run_prompt(pipeline::Pipeline& pipeline,
                                 pipeline::Request request,
                                 const std::function<void(std::string_view)>& on_text,
                                 const std::function<bool()>& keep_going);

}  // namespace luna::app
