#include "core/pipeline/prompt_builder.hpp"

#include <algorithm>

namespace luna::pipeline {
namespace {

Error bad(std::string message) {
  return {Code::invalid_argument, std::move(message)};
}

Result<void> check_ids(const char* what,
                       const std::vector<TokenId>& ids,
                       const PipelineModel& model) {
  for (const TokenId id : ids) {
    if (id >= model.tokenizer->vocab_size()) {
      return bad(std::string(what) + ": token id " + std::to_string(id) + " is not one of the " +
                 std::to_string(model.tokenizer->vocab_size()) + " of model " + model.name);
    }
  }
  return {};
}

/// The most tokens of 1..n_max that fit, where one does.
std::uint32_t longest_fit(std::uint32_t n_prompt,
                          std::uint32_t n_max,
                          std::uint32_t n_choices,
                          const PipelineModel& model) {
  std::uint32_t fits = 1;
  std::uint32_t over = n_max + 1;
  while (over - fits > 1) {
    const std::uint32_t middle = fits + (over - fits) / 2;
    (model.runner->can_fit(n_prompt, middle, n_choices) ? fits : over) = middle;
  }
  return fits;
}

}  // namespace

Result<std::vector<TokenId>> chat_ids(const boost::json::object& variables,
                                      const PipelineModel& model) {
  if (model.chat == nullptr) {
    return bad("model " + model.name + " has no chat template: use completions");
  }
  LUNA_TRY(const auto runs, model.chat->render(variables));
  return model.tokenizer->encode(runs);
}

Result<std::vector<TokenId>> text_ids(const std::string& text,
                                      bool add_special_tokens,
                                      const PipelineModel& model) {
  LUNA_TRY(auto ids, model.tokenizer->encode(text, text::SpecialTokens::plain));
  if (add_special_tokens && model.tokenizer->adds_bos() && model.tokenizer->bos_id()) {
    ids.insert(ids.begin(), *model.tokenizer->bos_id());
  }
  return ids;
}

Result<std::vector<TokenId>> prompt_ids(const Request& request, const PipelineModel& model) {
  std::vector<TokenId> ids;
  if (request.endpoint == Endpoint::chat) {
    LUNA_TRY(ids, chat_ids(request.template_variables, model));
  } else if (!request.prompt_ids.empty()) {
    LUNA_TRY(check_ids("prompt", request.prompt_ids, model));
    ids = request.prompt_ids;
  } else {
    LUNA_TRY(ids, text_ids(request.prompt_text, request.add_special_tokens, model));
  }
  if (ids.empty()) return bad("the prompt is empty: at least one token is needed to start from");
  return ids;
}

Result<std::uint32_t> settle_length(std::size_t n_prompt,
                                    std::optional<std::uint32_t> wanted,
                                    std::uint32_t n_choices,
                                    const PipelineModel& model) {
  if (wanted == 0U) return bad("max_tokens is 0: must be at least 1");
  if (n_prompt >= model.context_tokens_max) {
    return Error{Code::invalid_argument,
                 "the prompt has " + std::to_string(n_prompt) +
                     " tokens: the context length of model " + model.name + " is " +
                     std::to_string(model.context_tokens_max) +
                     ", and at least one token must be left to generate",
                 "context_length_exceeded"};
  }
  const auto n = static_cast<std::uint32_t>(n_prompt);
  const std::uint32_t room = model.context_tokens_max - n;
  if (wanted) {
    const std::uint32_t settled = std::min(*wanted, room);
    LUNA_TRY(model.runner->can_fit(n, settled, n_choices));
    return settled;
  }
  LUNA_TRY(model.runner->can_fit(n, 1, n_choices));
  return longest_fit(n, room, n_choices, model);
}

Result<void> check_token_ids(const Request& request, const PipelineModel& model) {
  std::vector<TokenId> biased;
  for (const auto& [id, bias] : request.sampling.logit_bias)
    biased.push_back(id);
  LUNA_TRY(check_ids("logit_bias", biased, model));
  LUNA_TRY(check_ids("stop_token_ids", request.stop.stop_token_ids, model));
  return check_ids("allowed_tokens", request.sampling.allowed_tokens, model);
}

Error same_first_token(const PipelineModel& model,
                       TokenId id,
                       const std::string& one,
                       const std::string& other) {
  return bad("'" + one + "' and '" + other + "' begin with the same token " + std::to_string(id) +
             " ('" + std::string(model.tokenizer->bytes(id)) + "') of model " + model.name +
             ", which is to choose between them");
}

Result<std::vector<std::pair<TokenId, std::string>>> first_tokens(
    const std::vector<std::string>& texts, const PipelineModel& model) {
  std::vector<std::pair<TokenId, std::string>> firsts;
  for (const std::string& text : texts) {
    LUNA_TRY(const auto ids, model.tokenizer->encode(text, text::SpecialTokens::plain));
    if (ids.empty()) return bad("the text '" + text + "' has no tokens in model " + model.name);
    for (const auto& [id, other] : firsts) {
      if (id == ids.front()) return same_first_token(model, id, other, text);
    }
    firsts.emplace_back(ids.front(), text);
  }
  return firsts;
}

}  // namespace luna::pipeline
