// OpenAI's request bodies to Requests. Fields that are known are checked, others are ignored.
#pragma once

#include "core/http/error_response.hpp"
#include "core/pipeline/request.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace luna::http {

/// A checked body: one Request a prompt (chat: one), and how the client wants the answer.
struct ParsedBody {
  std::vector<pipeline::Request> requests;
  pipeline::Endpoint endpoint = pipeline::Endpoint::chat;
  bool streaming = false;
  bool include_usage = false;
  bool echo = false;         ///< completions: the prompt precedes the output
  bool prompt_only = false;  ///< completions with max_tokens 0: nothing is generated
};

/// Parses and checks the body of POST /v1/chat/completions or /v1/completions. [io]
///
/// body            JSON, at most 128 levels deep
/// default_model   used when the body names none
std::variant<ParsedBody, ApiError> parse_body(pipeline::Endpoint endpoint,
                                              std::string_view body,
                                              const std::string& default_model);

}  // namespace luna::http
