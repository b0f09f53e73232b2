#include "core/http/completion_handlers.hpp"

#include "core/http/openai_response.hpp"
#include "core/http/openai_schema.hpp"
#include "core/http/output_channel.hpp"
#include "core/text/utf8.hpp"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
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
  return error_reply(to_api_error(error, exchange.models()->pipeline.queue_wait(model)));
}

/// One body on its way through the pipeline.
struct Running {
  Running() = default;
  ~Running() {
    if (channel) channel->close();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

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
  pipeline::Pipeline& pipeline = exchange.models()->pipeline;
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

std::string_view echo_of(const Running& running, std::uint32_t choice) {
  if (running.echoes.empty()) return {};
  return running.echoes[choice / running.n_choices_per_prompt];
}

/// An answer as events. The channel's news become one piece of the connection's stream each time:
/// one write, however many tokens came since the last.
class EventStream {
 public:
  EventStream(const ParsedBody& body, const Running& running, OpenaiResponse& response)
      : body_(body), running_(running), response_(response) {}

  /// Adds what the channel's last take() brought.
  void write_news(SseWriter& out);
  /// Adds the last events, once the channel has ended.
  void write_end(SseWriter& out);
  /// The prompts alone, for who asked for no token.
  void write_echoes(SseWriter& out, const pipeline::Usage& usage);

 private:
  void open_choices(SseWriter& out);
  void close(SseWriter& out, const pipeline::Usage& usage);

  const ParsedBody& body_;
  const Running& running_;
  OpenaiResponse& response_;
  bool is_opened_ = false;
};

void EventStream::open_choices(SseWriter& out) {
  for (std::uint32_t choice = 0; choice < running_.n_choices; ++choice) {
    if (body_.endpoint == Endpoint::chat) {
      response_.role_chunk(out.open_event(), choice);
      out.close_event();
    }
    if (!echo_of(running_, choice).empty()) {
      response_.echo_chunk(out.open_event(), choice, echo_of(running_, choice));
      out.close_event();
    }
  }
}

void EventStream::write_news(SseWriter& out) {
  for (const pipeline::OutputEvent& event : running_.channel->events()) {
    if (!OutputChannel::is_news(event)) continue;
    // Choices open with the first output, so that the first chunk means the first token.
    if (!std::exchange(is_opened_, true)) open_choices(out);
    if (!event.text.empty() || !event.tokens.empty()) {
      response_.text_chunk(out.open_event(), event.choice, event.text, event.tokens);
      out.close_event();
    }
    if (!event.finish) continue;
    response_.finish_chunk(out.open_event(), event.choice, *event.finish);
    out.close_event();
  }
}

void EventStream::write_end(SseWriter& out) {
  const OutputChannel& channel = *running_.channel;
  if (channel.error()) {
    out.open_event() += error_body(to_api_error(*channel.error()));
    return out.close_event();
  }
  close(out, channel.usage());
}

void EventStream::write_echoes(SseWriter& out, const pipeline::Usage& usage) {
  open_choices(out);
  for (std::uint32_t choice = 0; choice < running_.n_choices; ++choice) {
    response_.finish_chunk(out.open_event(), choice, pipeline::FinishReason::length);
    out.close_event();
  }
  close(out, usage);
}

void EventStream::close(SseWriter& out, const pipeline::Usage& usage) {
  if (body_.include_usage) {
    response_.usage_chunk(out.open_event(), usage);
    out.close_event();
  }
  out.open_event() += "[DONE]";
  out.close_event();
}

/// The stream's pieces until its end. False when the client is gone.
asio::awaitable<bool> send_pieces(Exchange& exchange, EventStream& events, OutputChannel& channel) {
  SseWriter& out = exchange.lane()->writer();
  auto wakening = OutputChannel::Wakening::news;
  bool has_news = true;  // taken before the head was written
  for (;;) {
    if (channel.is_client_gone()) co_return false;
    out.begin();
    if (has_news) events.write_news(out);
    const bool is_last = channel.has_ended();
    if (is_last) events.write_end(out);
    if (out.empty() && wakening == OutputChannel::Wakening::silence) out.add_ping();
    if (!out.empty()) {
      const auto left = exchange.write_now(out.finish(exchange.framing(is_last)));
      const bool is_sent = left && left->empty();
      if (!is_sent) {
        const bool is_open = co_await exchange.write_rest(left);
        if (!is_open) co_return false;
      }
    }
    if (is_last) co_return true;
    wakening = co_await channel.wait();
    has_news = channel.take();
  }
}

asio::awaitable<void> stream_answer(Exchange& exchange,
                                    const ParsedBody& body,
                                    const Running& running,
                                    OpenaiResponse& response) {
  OutputChannel& channel = *running.channel;
  // Until the first output the status is still open: what fails before it is an HTTP error, not an
  // event. A long prefill gets its head, and pings, after the first silence.
  auto wakening = OutputChannel::Wakening::news;
  while (!channel.take() && !channel.has_ended() && !channel.is_client_gone() &&
         wakening == OutputChannel::Wakening::news)
    wakening = co_await channel.wait();
  if (channel.is_client_gone()) {
    exchange.close_after();
    co_return;
  }
  const bool has_news =
      std::any_of(channel.events().begin(), channel.events().end(), OutputChannel::is_news);
  if (!has_news && channel.error()) {
    Reply refusal = failure(*channel.error(), exchange, running.model);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  bool is_open = co_await exchange.begin_events();
  EventStream events(body, running, response);
  if (is_open) is_open = co_await send_pieces(exchange, events, channel);
  if (!is_open || channel.error()) exchange.close_after();
}

asio::awaitable<void> whole_answer(Exchange& exchange,
                                   const Running& running,
                                   const OpenaiResponse& response) {
  OutputChannel& channel = *running.channel;
  std::vector<ChoiceText> choices(running.n_choices);
  for (std::uint32_t i = 0; i < running.n_choices; ++i) {
    choices[i].text = echo_of(running, i);
    choices[i].n_echo_characters = text::count_characters(choices[i].text);
  }
  for (;;) {
    channel.take();
    for (const pipeline::OutputEvent& event : channel.events()) {
      ChoiceText& choice = choices[event.choice];
      choice.text += event.text;
      choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.finish) choice.finish = *event.finish;
    }
    if (channel.is_client_gone()) {
      exchange.close_after();
      co_return;
    }
    if (channel.has_ended()) break;
    co_await channel.wait();
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

/// Counts the prompts of a body that asks for no token, and keeps their texts.
Result<pipeline::Usage> read_prompts(const ParsedBody& body,
                                     const pipeline::Pipeline& pipeline,
                                     Running& running) {
  pipeline::Usage usage;
  for (const pipeline::Request& request : body.requests) {
    LUNA_TRY(const auto ids, pipeline.tokenize(request));
    usage.n_prompt += static_cast<std::uint32_t>(ids.size());
    running.echoes.push_back(prompt_as_text(request, pipeline));
    running.n_choices_per_prompt = request.n_choices;
    running.n_choices += request.n_choices;
  }
  return usage;
}

/// Completions with max_tokens 0 and echo: the prompts come back, counted.
asio::awaitable<void> echo_answer(Exchange& exchange,
                                  const ParsedBody& body,
                                  OpenaiResponse& response) {
  Running running;
  const Result<pipeline::Usage> usage = read_prompts(body, exchange.models()->pipeline, running);
  bool is_open = false;
  if (usage && body.streaming) {
    is_open = co_await exchange.begin_events();
    SseWriter& out = exchange.lane()->writer();
    out.begin();
    EventStream(body, running, response).write_echoes(out, *usage);
    const auto left = exchange.write_now(out.finish(exchange.framing(true)));
    if (is_open) is_open = co_await exchange.write_rest(left);
  } else {
    std::vector<ChoiceText> choices;
    for (std::uint32_t choice = 0; choice < running.n_choices; ++choice)
      choices.push_back(
          {std::string(echo_of(running, choice)), {}, 0, pipeline::FinishReason::length});
    Reply reply = usage ? Reply{} : failure(usage.error(), exchange, body.requests.front().model);
    if (usage) reply.body = response.whole(choices, *usage);
    is_open = co_await exchange.send(std::move(reply));
  }
  if (!is_open) exchange.close_after();
}

OpenaiResponse make_response(const ParsedBody& body, Exchange& exchange, const std::string& id) {
  const pipeline::Request& first = body.requests.front();
  const pipeline::Pipeline& pipeline = exchange.models()->pipeline;
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
  const std::string default_model = exchange.models()->pipeline.model_names().front();
  // One that is refused takes no place, however slowly its client reads the refusal.
  const Result<Places::Place> place = service.places->take(exchange.tenant());
  if (!place) {
    Reply refusal = failure(place.error(), exchange, default_model);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  const std::string json = exchange.take_body();
  auto parsed = parse_body(endpoint, json, default_model);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    Reply refusal = error_reply(*error);
    const bool sent = co_await exchange.send(std::move(refusal));
    if (!sent) exchange.close_after();
    co_return;
  }
  ParsedBody& body = std::get<ParsedBody>(parsed);
  const std::string id = random_id(endpoint);
  OpenaiResponse response = make_response(body, exchange, id);
  if (body.prompt_only) {
    co_await echo_answer(exchange, body, response);
    co_return;
  }
  Running running;
  running.model = body.requests.front().model;
  running.channel = std::make_shared<OutputChannel>(
      exchange.lane(), static_cast<std::uint32_t>(body.requests.size()), kPingInterval);
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
