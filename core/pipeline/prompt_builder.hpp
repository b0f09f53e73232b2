// From what a client sent to token ids and settled limits. Pure; on the client's thread.
#pragma once

#include "core/pipeline/pipeline_model.hpp"
#include "core/pipeline/request.hpp"

#include <luna/result.hpp>

#include <string>
#include <utility>
#include <vector>

namespace luna::pipeline {

/// The request's prompt as ids of the model: template and tokenizer, or the client's own ids. Text
/// of the request never becomes a control token. [any]
///
/// Errors  invalid_argument (no template, the template refuses, an id out of the vocabulary,
///         nothing to start from)
Result<std::vector<TokenId>> prompt_ids(const Request& request, const PipelineModel& model);

/// The same for messages or text of a role's own.
Result<std::vector<TokenId>> chat_ids(const boost::json::object& variables,
                                      const PipelineModel& model);
Result<std::vector<TokenId>> text_ids(const std::string& text,
                                      bool add_special_tokens,
                                      const PipelineModel& model);

/// How many tokens a run may generate: what was wanted, at most the room that the context and the
/// model's KV leave for a prompt of this length. [any]
///
/// Errors  invalid_argument with the numbers; reason context_length_exceeded when the prompt leaves
///         no room
Result<std::uint32_t> settle_length(std::size_t n_prompt,
                                    std::optional<std::uint32_t> wanted,
                                    std::uint32_t n_choices,
                                    const PipelineModel& model);

/// Checks ids that the client named outside its prompt.
Result<void> check_token_ids(const Request& request, const PipelineModel& model);

/// The first token of each text, by which a model's choice among them is known.
///
/// Errors  invalid_argument (a text without tokens; two with the same first token, named)
Result<std::vector<std::pair<TokenId, std::string>>> first_tokens(
    const std::vector<std::string>& texts, const PipelineModel& model);

}  // namespace luna::pipeline
