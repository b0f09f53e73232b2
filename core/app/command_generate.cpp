#include "core/app/command_generate.hpp"

#include "core/app/app.hpp"
#include "core/app/known_models.hpp"
#include "core/app/prompt_runner.hpp"
#include "core/app/run_settings.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/log.hpp"
#include "core/config/settings_reader.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <chrono>
#include <fstream>
#include <istream>
#include <memory>
#include <ostream>
#include <unistd.h>
#include <utility>

namespace luna::app {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kDrain{1000};

json::object message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Result<std::unique_ptr<App>> start(const PromptOptions& options) {
  config::Settings settings;
  if (options.config.empty()) {
    const std::string model =
        options.model.empty() ? std::string(known_models().front().name) : options.model;
    LUNA_TRY(settings, settings_for_model(model));
  } else {
    LUNA_TRY(settings, config::read_settings(options.config));
  }
  init_logging(spdlog::level::warn);
  App::Options app_options;
  app_options.plugin_folders = options.plugin_folders;
  app_options.version = kVersion;
  return App::create(std::move(settings), app_options);
}

pipeline::Request make_request(const PromptOptions& options, const pipeline::Pipeline& pipeline) {
  pipeline::Request request;
  request.id = "terminal";
  request.model = pipeline.model_names().front();
  request.streaming = true;
  request.n_generated_max = options.n_tokens_max;
  request.sampling.temperature = options.temperature;
  request.sampling.top_p = options.top_p;
  request.sampling.top_k = options.top_k;
  request.sampling.min_p = options.min_p;
  request.stop.stop_strings = options.stop;
  if (options.seed) {
    request.sampling.seed = *options.seed;
    request.has_seed = true;
  }
  return request;
}

Result<std::string> read_prompt(const GenerateOptions& options, const CommandStreams& streams) {
  std::string prompt = options.prompt;
  if (prompt.empty() || prompt == "-") prompt = read_all(streams.in);
  if (prompt.empty())
    return Error{Code::invalid_argument,
                 "the prompt is empty: give it as an argument or on standard input"};
  return prompt;
}

Result<void> write_trace(const App& app, const std::filesystem::path& path) {
  std::ofstream file(path);
  file << app.metrics().render_steps(telemetry::StepTrace::kRecords);
  file.close();
  if (file.fail()) return Error{Code::io, "--trace " + path.string() + ": it cannot be written"};
  return {};
}

Result<int> generate(const GenerateOptions& options, const CommandStreams& streams) {
  LUNA_TRY(std::string prompt, read_prompt(options, streams));
  LUNA_TRY(auto app, start(options.common));
  pipeline::Request request = make_request(options.common, app->pipeline());
  if (options.raw) {
    request.endpoint = pipeline::Endpoint::completion;
    request.prompt_text = std::move(prompt);
  } else {
    json::array messages;
    if (!options.common.system.empty())
      messages.push_back(message("system", options.common.system));
    messages.push_back(message("user", prompt));
    request.template_variables["messages"] = std::move(messages);
    request.template_variables["add_generation_prompt"] = true;
  }
  std::string text;
  const auto on_text = [&](std::string_view piece) {
    if (options.json)
      text += piece;
    else
      streams.out << piece << std::flush;
  };
  LUNA_TRY(const PromptOutcome outcome,
           run_prompt(
               app->pipeline(), std::move(request), on_text, [] { return !StopSignal::is_set(); }));
  if (options.json) {
    const json::object object = {{"text", text},
                                 {"finish_reason", pipeline::finish_reason_name(outcome.finish)},
                                 {"prompt_tokens", outcome.usage.n_prompt},
                                 {"completion_tokens", outcome.usage.n_generated}};
    streams.out << json::serialize(object);
  }
  streams.out << '\n';
  app->drain(kDrain);
  if (!options.trace.empty()) LUNA_TRY(write_trace(*app, options.trace));
  return outcome.finish == pipeline::FinishReason::cancelled ? kExitFailed : kExitFine;
}

/// One turn; the answer joins the conversation.
Result<bool> answer(App& app,
                    const PromptOptions& options,
                    json::array& messages,
                    const CommandStreams& streams) {
  pipeline::Request request = make_request(options, app.pipeline());
  request.template_variables["messages"] = messages;
  request.template_variables["add_generation_prompt"] = true;
  std::string text;
  const auto on_text = [&](std::string_view piece) {
    text += piece;
    streams.out << piece << std::flush;
  };
  LUNA_TRY(const PromptOutcome outcome, run_prompt(app.pipeline(), std::move(request), on_text, [] {
             return !StopSignal::is_set();
           }));
  streams.out << std::endl;
  messages.push_back(message("assistant", text));
  return outcome.finish != pipeline::FinishReason::cancelled;
}

Result<int> chat(const PromptOptions& options, const CommandStreams& streams) {
  LUNA_TRY(auto app, start(options));
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  if (is_terminal)
    streams.err << "An empty line or Ctrl-D ends the chat; Ctrl-C ends it at once.\n";
  json::array messages;
  if (!options.system.empty()) messages.push_back(message("system", options.system));
  std::string line;
  for (;;) {
    if (is_terminal) streams.err << "> " << std::flush;
    // A read that was begun goes on after a signal; so it begins only when there is a line.
    if (is_terminal && !StopSignal::wait_readable(STDIN_FILENO)) break;
    if (StopSignal::is_set() || !std::getline(streams.in, line) || line.empty()) break;
    messages.push_back(message("user", line));
    LUNA_TRY(const bool goes_on, answer(*app, options, messages, streams));
    if (!goes_on) break;
  }
  app->drain(kDrain);
  return kExitFine;
}

int exit_status(const Result<int>& result, const CommandStreams& streams) {
  return result ? *result : fail(streams, result.error());
}

}  // namespace

int run_generate(const GenerateOptions& options, const CommandStreams& streams) {
  return exit_status(generate(options, streams), streams);
}

int run_chat(const PromptOptions& options, const CommandStreams& streams) {
  return exit_status(chat(options, streams), streams);
}

}  // namespace luna::app
