#include "core/http/openai_schema.hpp"

#include "core/http/chat_messages.hpp"
#include "core/http/field_reader.hpp"
#include "core/text/json_text.hpp"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include <charconv>
#include <limits>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;
using pipeline::Endpoint;
using pipeline::Request;
using pipeline::TokenId;

constexpr std::int64_t kTokensMax = 1 << 24;  // far beyond any context; the pipeline clamps
constexpr std::int64_t kChoicesMax = 16;
constexpr std::size_t kDepthMax = 128;
constexpr std::size_t kStopStringsMax = 16;
constexpr std::size_t kPromptsMax = 128;
constexpr std::int64_t kTopLogprobsMax = 20;
constexpr std::int64_t kTokenIdMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

void read_logit_bias(FieldReader& fields, pipeline::SamplingParams& sampling) {
  const json::object* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : *bias) {
    std::uint32_t id = 0;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    if (key.empty() || error != std::errc{} || stop != end || id > kTokenIdMax) {
      fields.fail(invalid_request(
          "logit_bias",
          "'logit_bias' has the key '" + std::string(key) + "': must be a token id of the model"));
      return;
    }
    const bool is_number = value.is_number();
    const double weight = is_number ? value.to_number<double>() : 0.0;
    if (!is_number || !(weight >= -100.0 && weight <= 100.0)) {
      fields.fail(invalid_request(
          "logit_bias",
          "'logit_bias' of token " + std::string(key) + " must be a number between -100 and 100"));
      return;
    }
    sampling.logit_bias.emplace_back(id, static_cast<float>(weight));
  }
}

void read_sampling(FieldReader& fields, pipeline::SamplingParams& sampling) {
  const auto as_float = [&](const char* key, double min, double max, float& target) {
    if (const auto value = fields.number(key, min, max)) target = static_cast<float>(*value);
  };
  as_float("temperature", 0.0, 2.0, sampling.temperature);
  as_float("top_p", 0.0, 1.0, sampling.top_p);
  as_float("min_p", 0.0, 1.0, sampling.min_p);
  as_float("typical_p", 0.0, 1.0, sampling.typical_p);
  as_float("presence_penalty", -2.0, 2.0, sampling.presence_penalty);
  as_float("frequency_penalty", -2.0, 2.0, sampling.frequency_penalty);
  as_float("repetition_penalty", 0.01, 10.0, sampling.repetition_penalty);
  // -1 is what other servers call "all".
  if (const auto k = fields.integer("top_k", -1, kTokensMax))
    sampling.top_k = *k < 0 ? 0 : static_cast<std::uint32_t>(*k);
  read_logit_bias(fields, sampling);
}

void read_limits(FieldReader& fields, Endpoint endpoint, Request& request) {
  const std::int64_t min = endpoint == Endpoint::completion ? 0 : 1;
  const auto older = fields.integer("max_tokens", min, kTokensMax);
  const auto newer = fields.integer("max_completion_tokens", min, kTokensMax);
  if (const auto limit = newer ? newer : older)
    request.n_generated_max = static_cast<std::uint32_t>(*limit);
  if (const auto n = fields.integer("min_tokens", 0, kTokensMax))
    request.stop.n_generated_min = static_cast<std::uint32_t>(*n);
  request.stop.stop_strings = fields.strings("stop", kStopStringsMax);
  request.stop.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (const json::array* ids = fields.array("stop_token_ids")) {
    for (const json::value& element : *ids) {
      const auto id = as_integer(element);
      if (!id || *id < 0 || *id > kTokenIdMax) {
        fields.fail(invalid_request("stop_token_ids", "'stop_token_ids' must hold token ids"));
        return;
      }
      request.stop.stop_token_ids.push_back(static_cast<TokenId>(*id));
    }
  }
}

void read_logprobs(FieldReader& fields, Endpoint endpoint, pipeline::LogprobParams& logprobs) {
  if (endpoint == Endpoint::completion) {
    if (const auto n = fields.integer("logprobs", 0, kTopLogprobsMax)) {
      logprobs.enabled = true;
      logprobs.n_top = static_cast<std::uint32_t>(*n);
    }
    return;
  }
  logprobs.enabled = fields.boolean("logprobs").value_or(false);
  const auto n = fields.integer("top_logprobs", 0, kTopLogprobsMax);
  if (!n) return;
  if (*n > 0 && !logprobs.enabled)
    fields.fail(invalid_request("top_logprobs", "'top_logprobs' needs 'logprobs': true"));
  logprobs.n_top = static_cast<std::uint32_t>(*n);
}

void read_response_format(FieldReader& fields) {
  const json::object* format = fields.object("response_format");
  if (format == nullptr) return;
  const auto* type = format->if_contains("type");
  if (type == nullptr || !type->is_string()) {
    fields.fail(invalid_request("response_format.type", "'response_format' must have a 'type'"));
    return;
  }
  const std::string name(type->get_string());
  if (name == "text") return;
  if (name == "json_object" || name == "json_schema")
    fields.fail(unsupported_parameter(
        "response_format", "response_format '" + name + "' is not supported yet; use 'text'"));
  else
    fields.fail(invalid_request(
        "response_format.type",
        "response_format type '" + name + "': must be text, json_object or json_schema"));
}

/// Fields that would change the answer and are not built: refused, never ignored.
void refuse_unbuilt(FieldReader& fields) {
  for (const char* key : {"structured_outputs",
                          "guided_json",
                          "guided_regex",
                          "guided_choice",
                          "guided_grammar",
                          "grammar",
                          "modalities",
                          "audio",
                          "suffix"}) {
    const json::value* value = fields.find(key);
    if (value == nullptr) continue;
    if (std::string_view(key) == "modalities" && value->is_array() &&
        value->get_array().size() == 1 && value->get_array()[0] == json::value("text"))
      continue;
    if (std::string_view(key) == "suffix" && value->is_string() && value->get_string().empty())
      continue;
    fields.fail(unsupported_parameter(key, std::string("'") + key + "' is not supported"));
  }
  if (const auto best_of = fields.integer("best_of", 1, kChoicesMax))
    if (*best_of != fields.integer("n", 1, kChoicesMax).value_or(1))
      fields.fail(unsupported_parameter("best_of", "'best_of' other than 'n' is not supported"));
}

/// One prompt: text or token ids.
bool read_prompt(const json::value& value, Request& request, FieldReader& fields) {
  if (const auto* text = value.if_string()) {
    if (text->empty()) {
      fields.fail(invalid_request("prompt",
                                  "'prompt' holds an empty string: at least one token is needed"));
      return false;
    }
    request.prompt_text = std::string(*text);
    return true;
  }
  const auto* ids = value.if_array();
  if (ids == nullptr || ids->empty()) {
    fields.fail(invalid_request("prompt",
                                "'prompt' must be a string, a list of strings, a list of token ids "
                                "or a list of such lists, none of them empty"));
    return false;
  }
  for (const json::value& element : *ids) {
    const auto id = as_integer(element);
    if (!id || *id < 0 || *id > kTokenIdMax) {
      fields.fail(invalid_request("prompt", "'prompt' must hold token ids of the model"));
      return false;
    }
    request.prompt_ids.push_back(static_cast<TokenId>(*id));
  }
  return true;
}

void read_prompts(FieldReader& fields, const Request& base, std::vector<Request>& requests) {
  const json::value* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail(invalid_request("prompt", "'prompt' is missing"));
    return;
  }
  const auto* list = prompt->if_array();
  const bool is_batch = list != nullptr && !list->empty() && !(*list)[0].is_number();
  if (!is_batch) {
    Request request = base;
    if (read_prompt(*prompt, request, fields)) requests.push_back(std::move(request));
    return;
  }
  if (list->size() > kPromptsMax) {
    fields.fail(invalid_request("prompt",
                                "'prompt' has " + std::to_string(list->size()) +
                                    " entries: at most " + std::to_string(kPromptsMax)));
    return;
  }
  for (const json::value& element : *list) {
    Request request = base;
    if (!read_prompt(element, request, fields)) return;
    requests.push_back(std::move(request));
  }
}

void read_common(FieldReader& fields, Endpoint endpoint, Request& request, ParsedBody& body) {
  request.endpoint = endpoint;
  if (auto model = fields.string("model")) request.model = std::move(*model);
  read_sampling(fields, request.sampling);
  read_limits(fields, endpoint, request);
  read_logprobs(fields, endpoint, request.logprobs);
  read_response_format(fields);
  refuse_unbuilt(fields);
  if (const auto n = fields.integer("n", 1, kChoicesMax))
    request.n_choices = static_cast<std::uint32_t>(*n);
  if (const auto seed = fields.integer("seed", kInt64Min, kInt64Max)) {
    request.sampling.seed = static_cast<std::uint64_t>(*seed);
    request.has_seed = true;
  }
  if (auto salt = fields.string("cache_salt")) {
    if (salt->empty() || salt->size() > pipeline::kCacheSaltBytesMax) {
      fields.fail(invalid_request("cache_salt",
                                  "'cache_salt' has " + std::to_string(salt->size()) +
                                      " bytes: must be 1.." +
                                      std::to_string(pipeline::kCacheSaltBytesMax)));
    }
    request.cache_salt = std::move(*salt);
  }
  if (const auto priority = fields.integer("priority", -1000, 1000))
    request.priority = static_cast<std::int32_t>(*priority);
  if (const auto deadline = fields.integer("deadline_ms", 1, 86'400'000))
    request.deadline = std::chrono::milliseconds(*deadline);
  body.streaming = request.streaming = fields.boolean("stream").value_or(false);
  if (const json::object* options = fields.object("stream_options")) {
    FieldReader inner(*options);
    body.include_usage = inner.boolean("include_usage").value_or(false);
    if (inner.error()) fields.fail(*inner.error());
  }
}

}  // namespace

std::variant<ParsedBody, ApiError> parse_body(Endpoint endpoint,
                                              std::string_view body_text,
                                              const std::string& default_model) {
  json::value root;
  if (const auto parsed = text::parse_json(body_text, root, kDepthMax); !parsed)
    return invalid_request("", "the body is " + parsed.error().message(), "invalid_json");
  const auto* object = root.if_object();
  if (object == nullptr)
    return invalid_request("",
                           "the body must be a JSON object, not " + std::string(kind_name(root)));

  FieldReader fields(*object);
  ParsedBody body;
  body.endpoint = endpoint;
  Request base;
  base.model = default_model;
  read_common(fields, endpoint, base, body);
  if (endpoint == Endpoint::chat) {
    base.template_variables = read_template_variables(fields);
    body.requests.push_back(std::move(base));
  } else {
    body.echo = base.echo = fields.boolean("echo").value_or(false);
    base.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
    // OpenAI's default for completions; chat runs to the end of the context.
    if (!base.n_generated_max) base.n_generated_max = 16;
    body.prompt_only = base.n_generated_max == 0;
    if (body.prompt_only && !body.echo)
      fields.fail(invalid_request("max_tokens",
                                  "'max_tokens' is 0: must be at least 1 unless 'echo' is set"));
    if (body.echo && base.logprobs.enabled)
      fields.fail(
          unsupported_parameter("logprobs", "'logprobs' together with 'echo' is not supported"));
    read_prompts(fields, base, body.requests);
  }
  if (fields.error()) return *fields.error();
  return body;
}

}  // namespace luna::http
