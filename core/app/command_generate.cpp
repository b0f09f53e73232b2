#include "core/app/command_generate.hpp"

#include "core/app/app.hpp"
#include "core/app/prompt_runner.hpp"
#include "core/app/reproducibility_check.hpp"
#include "core/app/run_settings.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/log.hpp"
#include "core/pipeline/prompt_builder.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_from.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <istream>
#include <memory>
#include <ostream>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <utility>

namespace luna::app {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kDrain{1000};
constexpr std::chrono::milliseconds kPoll{1};  // how soon the end of a run is noticed
constexpr std::uint32_t kVerifiedTokens = 64;  // unless the command line names a length

std::string hex(std::uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << value;
  return out.str();
}

json::object message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

/// drafts  speculation is wanted, by look-up where the configuration has it off
Result<std::unique_ptr<App>> start(const PromptOptions& options, bool drafts = false) {
  LUNA_TRY(config::Settings settings, settings_for_run(options.config, options.model));
  if (drafts && settings.speculation.method == config::SpeculationMethod::off)
    settings.speculation.method = config::SpeculationMethod::ngram;
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

/// The ways the prompt was computed, as a table.
void print_table(const std::vector<Reproduction>& runs, std::ostream& out) {
  const auto row = [&out](const std::array<std::string, 9>& cells) {
    constexpr std::array<int, 9> kWidths = {16, 8, 13, 7, 10, 7, 8, 17, 0};
    for (std::size_t i = 0; i < cells.size(); ++i)
      out << std::left << std::setw(kWidths[i]) << cells[i];
    out << '\n';
  };
  row({"setting",
       "tokens",
       "prompt steps",
       "beside",
       "in flight",
       "cached",
       "drafted",
       "logits",
       ""});
  for (const Reproduction& run : runs) {
    const pipeline::ComputeTrace& trace = run.end.trace;
    row({run.setting,
         std::to_string(run.tokens.size()),
         std::to_string(trace.n_prompt_steps),
         std::to_string(trace.n_beside_max),
         std::to_string(1 + trace.n_steps_beside_max),
         std::to_string(run.end.n_cached),
         std::to_string(trace.n_drafted),
         hex(trace.logits_hash),
         run.is_same ? "same" : "DIFFERENT"});
  }
}

void print_json(const std::vector<Reproduction>& runs, bool all_same, std::ostream& out) {
  json::array settings;
  for (const Reproduction& run : runs) {
    const pipeline::ComputeTrace& trace = run.end.trace;
    settings.push_back(json::object{{"setting", run.setting},
                                    {"tokens", json::value_from(run.tokens)},
                                    {"prompt_steps", trace.n_prompt_steps},
                                    {"beside", trace.n_beside_max},
                                    {"steps_in_flight", 1 + trace.n_steps_beside_max},
                                    {"cached_tokens", run.end.n_cached},
                                    {"drafted_tokens", trace.n_drafted},
                                    {"logits_hash", hex(trace.logits_hash)},
                                    {"same", run.is_same}});
  }
  out << json::serialize(json::object{{"reproducible", all_same}, {"settings", settings}}) << '\n';
}

Result<int> verify(App& app,
                   const pipeline::Request& request,
                   bool as_json,
                   const CommandStreams& streams) {
  const std::optional<pipeline::PipelineModel> model = app.model(request.model);
  if (!model) return Error{Code::not_found, "model " + request.model + " is not served"};
  engine::SequenceRequest asked;
  LUNA_TRY(asked.prompt, pipeline::prompt_ids(request, *model));
  asked.sampling = request.sampling;
  asked.stop = request.stop;
  LUNA_TRY(asked.stop.n_generated_max,
           pipeline::settle_length(
               asked.prompt.size(), request.n_generated_max.value_or(kVerifiedTokens), 1, *model));
  const auto wait = [] {
    std::this_thread::sleep_for(kPoll);
    return !StopSignal::is_set();
  };
  LUNA_TRY(const auto runs, reproduce(*model, asked, reproduction_settings(), wait));
  const bool all_same =
      std::all_of(runs.begin(), runs.end(), [](const Reproduction& run) { return run.is_same; });
  if (as_json) {
    print_json(runs, all_same, streams.out);
  } else {
    print_table(runs, streams.out);
    streams.out << (all_same ? "reproducible: every setting gave the same tokens and logits\n"
                             : "NOT reproducible\n");
  }
  return all_same ? kExitFine : kExitFailed;
}

Result<int> generate(const GenerateOptions& options, const CommandStreams& streams) {
  LUNA_TRY(std::string prompt, read_prompt(options, streams));
  LUNA_TRY(auto app, start(options.common, options.verify_reproducible));
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
  if (options.verify_reproducible) return verify(*app, request, options.json, streams);
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
