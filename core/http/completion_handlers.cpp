#include "core/http/completion_handlers.hpp"

#include "core/http/openai_response.hpp"
#include "core/http/openai_schema.hpp"
#include "core/http/output_channel.hpp"

#include <boost/asio/this_coro.hpp>
#include <openssl/rand.h>

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace luna::http {
namespace {

namespace asio = boost::asio;
using pipeline::Endpoint;

// Proxies drop connections that are silent for a minute; a prefill can take longer.
constexpr std::chrono::seconds kPingInterval{15};

std::string random_id(Endpoint endpoint) {
  constexpr char kHex[] = "0123456789abcdef";
  std::array<unsigned char, 12> bytes{};
  RAND_bytes(bytes.data(), static_cast<int>(bytes.size()));
  std::string id = endpoint == Endpoint::chat ? "chatcmpl-" : "cmpl-";
  for (const unsigned char byte : bytes) {
    id += kHex[byte >> 4U];
    id += kHex[byte & 15U];
  }
  return id;
}

std::int64_t unix_seconds() {
  // The wall clock, for people: nothing is decided by it.
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The answer to a request that failed. Who is to come again is told when.
Reply failure(const Error& error, Exchange& exchange, const std::string& model) {
  return error_reply(to_api_error(error, exchange.service().pipeline.queue_wait(model)));
}

/// One body on its way through the pipeline.
struct Running {
  std::string model;
  std::shared_ptr<OutputChannel> channel;
  std::vector<std::unique_ptr<pipeline::RunningRequest>> requests;  // destroyed: cancelled
  std::vector<std::string> echoes;                                  // by prompt; empty without echo
  std::uint32_t n_choices = 0;                                      // of all prompts together
  std::uint32_t n_choices_per_prompt = 1;
};

/// The prompt as `echo` shows it: valid UTF-8, whatever the ids.
std::string prompt_as_text(const pipeline::Request& request, const pipeline::Pipeline& pipeline) {
  if (!request.prompt_text.empty()) return request.prompt_text;
  std::string text;
  for (const pipeline::TokenId id : request.prompt_ids)
    text += pipeline.token_bytes(request.model, id);
  return replace_invalid_utf8(text);
}

/// Starts every prompt of the body; the first failure stops all.
Result<void> start_all(ParsedBody& body,
                       Exchange& exchange,
                       const std::string& id,
                       Running& running) {
  pipeline::Pipeline& pipeline = exchange.service().pipeline;
  std::uint32_t first_choice = 0;
  for (pipeline::Request& request : body.requests) {
    request.id = id;
    request.tenant = exchange.tenant();
    if (body.echo) running.echoes.push_back(prompt_as_text(request, pipeline));
    const std::uint32_t n_choices = request.n_choices;
    auto sink = running.channel->sink(first_choice);
    LUNA_TRY(auto started, pipeline.start(std::move(request), std::move(sink)));
    running.requests.push_back(std::move(started));
    running.n_choices_per_prompt = n_choices;
    first_choice += n_choices;
  }
  running.n_choices = first_choice;
  return {};
}

const std::string& echo_of(const Running& running, std::uint32_t choice) {
  static const std::string kNone;
  return running.echoes.empty() ? kNone : running.echoes[choice / running.n_choices_per_prompt];
}

/// The chunks of one batch of events.
std::vector<std::string> to_chunks(const std::vector<pipeline::OutputEvent>& events,
                                   const OpenaiResponse& response) {
  std::vector<std::string> chunks;
  for (const pipeline::OutputEvent& event : events) {
    if (!event.text.empty() || !event.tokens.empty())
      chunks.push_back(response.text_chunk(event.choice, event.text, event.tokens));
    if (event.finish) chunks.push_back(response.finish_chunk(event.choice, *event.finish));
  }
  return chunks;
}

asio::awaitable<void> stream_answer(Exchange& exchange,
                                    const ParsedBody& body,
                                    const Running& running,
                                    const OpenaiResponse& response) {
  OutputChannel& channel = *running.channel;
  std::vector<std::string> opening;
  for (std::uint32_t choice = 0; choice < running.n_choices; ++choice) {
    if (body.endpoint == Endpoint::chat) opening.push_back(response.role_chunk(choice));
    if (!echo_of(running, choice).empty())
      opening.push_back(response.text_chunk(choice, echo_of(running, choice), {}));
  }
  // Until the first output the status is still open: what fails before it is an HTTP error, not an
  // event. A long prefill gets its head, and pings, after the first interval.
  std::vector<pipeline::OutputEvent> pending = co_await channel.first_events(kPingInterval);
  if (channel.is_client_gone()) {
    exchange.close_after();
    co_return;
  }
  if (pending.empty() && channel.has_ended() && channel.error()) {
    Reply refusal = failure(*channel.error(), exchange, running.model);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  bool is_open = co_await exchange.begin_events();
  while (is_open && !channel.is_client_gone()) {
    auto events = std::exchange(pending, {});
    for (pipeline::OutputEvent& event : channel.take_events())
      events.push_back(std::move(event));
    const bool ended = channel.has_ended();
    // A choice opens with its first output, so that the first chunk means the first token.
    std::vector<std::string> chunks;
    if (!events.empty()) chunks = std::exchange(opening, {});
    for (std::string& chunk : to_chunks(events, response))
      chunks.push_back(std::move(chunk));
    if (ended) {
      if (channel.error()) {
        chunks.push_back(error_body(to_api_error(*channel.error())));
      } else {
        if (body.include_usage) chunks.push_back(response.usage_chunk(channel.usage()));
        chunks.emplace_back("[DONE]");
      }
    }
    if (!chunks.empty()) {
      is_open = co_await exchange.send_events(std::move(chunks));
    }
    if (ended || !is_open) break;
    const auto before = std::chrono::steady_clock::now();
    co_await channel.wait(kPingInterval);
    const bool timed_out = std::chrono::steady_clock::now() - before >= kPingInterval;
    if (timed_out && !channel.is_client_gone()) is_open = co_await exchange.send_ping();
  }
  if (!is_open || channel.is_client_gone()) {
    exchange.close_after();
    co_return;
  }
  if (channel.error()) exchange.close_after();
  is_open = co_await exchange.end_events();
  if (!is_open) exchange.close_after();
}

asio::awaitable<void> whole_answer(Exchange& exchange,
                                   const Running& running,
                                   const OpenaiResponse& response) {
  OutputChannel& channel = *running.channel;
  std::vector<ChoiceText> choices(running.n_choices);
  for (std::uint32_t i = 0; i < running.n_choices; ++i)
    choices[i].text = echo_of(running, i);
  for (;;) {
    for (pipeline::OutputEvent& event : channel.take_events()) {
      ChoiceText& choice = choices[event.choice];
      choice.text += event.text;
      for (auto& token : event.tokens)
        choice.tokens.push_back(std::move(token));
      if (event.finish) choice.finish = *event.finish;
    }
    if (channel.is_client_gone()) {
      exchange.close_after();
      co_return;
    }
    if (channel.has_ended()) break;
    co_await channel.wait(std::chrono::hours(1));
  }
  Reply reply;
  if (channel.error()) {
    reply = failure(*channel.error(), exchange, running.model);
  } else {
    reply.body = response.whole(choices, channel.usage());
  }
  const bool sent = co_await exchange.send(std::move(reply));
  if (!sent) exchange.close_after();
}

/// Completions with max_tokens 0 and echo: the prompts come back, counted.
asio::awaitable<void> echo_answer(Exchange& exchange,
                                  const ParsedBody& body,
                                  const OpenaiResponse& response) {
  const pipeline::Pipeline& pipeline = exchange.service().pipeline;
  std::vector<ChoiceText> choices;
  pipeline::Usage usage;
  Reply reply;
  for (const pipeline::Request& request : body.requests) {
    auto ids = pipeline.tokenize(request);
    if (!ids) {
      reply = error_reply(to_api_error(ids.error()));
      break;
    }
    usage.n_prompt += static_cast<std::uint32_t>(ids->size());
    const std::string text = prompt_as_text(request, pipeline);
    for (std::uint32_t i = 0; i < request.n_choices; ++i)
      choices.push_back({text, {}, pipeline::FinishReason::length});
  }
  if (reply.body.empty()) reply.body = response.whole(choices, usage);
  const bool sent = co_await exchange.send(std::move(reply));
  if (!sent) exchange.close_after();
}

OpenaiResponse make_response(const ParsedBody& body, Exchange& exchange, const std::string& id) {
  const pipeline::Request& first = body.requests.front();
  const pipeline::Pipeline& pipeline = exchange.service().pipeline;
  OpenaiResponse::Options options;
  options.id = id;
  options.model = first.model;
  options.created_s = unix_seconds();
  options.endpoint = body.endpoint;
  options.logprobs = first.logprobs.enabled;
  options.include_usage = body.streaming && body.include_usage;
  options.token_bytes = [&pipeline, model = first.model](pipeline::TokenId token) {
    return pipeline.token_bytes(model, token);
  };
  return OpenaiResponse(std::move(options));
}

}  // namespace

asio::awaitable<void> handle_completion(Exchange& exchange, Endpoint endpoint) {
  Service& service = exchange.service();
  const std::string default_model = service.pipeline.model_names().front();
  // One that is refused takes no place, however slowly its client reads the refusal.
  const Result<Places::Place> place = service.places->take(exchange.tenant());
  if (!place) {
    Reply refusal = failure(place.error(), exchange, default_model);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  auto parsed = parse_body(endpoint, exchange.request().body(), default_model);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    Reply refusal = error_reply(*error);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  ParsedBody& body = std::get<ParsedBody>(parsed);
  const std::string id = random_id(endpoint);
  const OpenaiResponse response = make_response(body, exchange, id);
  if (body.prompt_only) {
    co_await echo_answer(exchange, body, response);
    co_return;
  }
  auto executor = co_await asio::this_coro::executor;
  Running running;
  running.model = body.requests.front().model;
  running.channel =
      std::make_shared<OutputChannel>(executor, static_cast<std::uint32_t>(body.requests.size()));
  const Result<void> started = start_all(body, exchange, id, running);
  if (!started) {
    running.requests.clear();  // those that had started are of no use any more
    Reply refusal = failure(started.error(), exchange, running.model);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  running.channel->watch(exchange.stream());
  if (body.streaming) {
    co_await stream_answer(exchange, body, running, response);
  } else {
    co_await whole_answer(exchange, running, response);
  }
}

}  // namespace luna::http
