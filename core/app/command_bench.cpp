#include "core/app/command_bench.hpp"

#include "core/app/app.hpp"
#include "core/app/run_settings.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/log.hpp"
#include "core/bench/cdf_plot.hpp"
#include "core/bench/http_target.hpp"
#include "core/bench/pipeline_target.hpp"
#include "core/bench/quiet_wait.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>

namespace luna::app {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kDrain{1000};
constexpr const char* kApiKeyVariable = "OPENAI_API_KEY";

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(seconds));
}

Result<bench::HttpTargetOptions> http_options(const BenchOptions& options) {
  LUNA_TRY(bench::HttpTargetOptions http, bench::parse_base_url(options.url));
  boost::system::error_code failed;
  const json::value body = json::parse(options.body, failed);
  if (failed || !body.is_object())
    return Error{Code::invalid_argument, "--body " + options.body + ": must be a JSON object"};
  http.body = body.get_object();
  http.timeout = milliseconds(options.timeout_s);
  if (const char* key = std::getenv(kApiKeyVariable)) http.api_key = key;
  http.model = options.served_model;
  if (http.model.empty()) {
    LUNA_TRY(http.model, bench::first_model(http));
  }
  return http;
}

Result<std::unique_ptr<App>> start_app(const BenchOptions& options) {
  LUNA_TRY(config::Settings settings, settings_for_run(options.config, options.model));
  App::Options app_options;
  app_options.plugin_folders = options.plugin_folders;
  app_options.version = kVersion;
  LUNA_TRY(auto app, App::create(std::move(settings), app_options));
  LUNA_TRY(app->warm_up([] { return !StopSignal::is_set(); }));
  return app;
}

/// A server that is measured has been up for a while; so has this process then.
void wait_for_rest(std::ostream& err) {
  bench::QuietWait wait;
  wait.cpu_time = bench::process_cpu_time;
  wait.pause = [](Nanoseconds time) { std::this_thread::sleep_for(time); };
  wait.keep_going = [] { return !StopSignal::is_set(); };
  if (bench::wait_until_quiet(wait) || StopSignal::is_set()) return;
  err << "luna: the model still starts after "
      << std::chrono::duration_cast<std::chrono::seconds>(wait.longest).count()
      << " s; the figures are of a process that is busy with itself\n";
}

Result<bench::PromptSource> prompt_source(const BenchOptions& options, std::uint64_t seed) {
  if (!options.prompts.empty())
    return bench::PromptSource::from_file(options.prompts, options.n_output_tokens);
  bench::SyntheticPrompts synthetic = options.synthetic;
  synthetic.seed = seed;
  return bench::PromptSource::synthetic(synthetic, options.n_output_tokens);
}

/// What was run, for the JSON file and, in short, for people.
json::object describe(const BenchOptions& options,
                      const bench::LoadOptions& load,
                      const std::string& target) {
  json::object about = {{"luna", kVersion},
                        {"target", target},
                        {"output_tokens", options.n_output_tokens},
                        {"seed", load.seed}};
  if (load.rate_per_s) {
    about["rate_per_s"] = *load.rate_per_s;
  } else {
    about["clients"] = load.n_clients;
  }
  if (options.prompts.empty()) {
    about["prompt_tokens"] = options.synthetic.n_tokens;
    about["shared_prefix_tokens"] = options.synthetic.n_shared_prefix_tokens;
  } else {
    about["prompts"] = options.prompts.string();
  }
  return about;
}

std::string headline(const BenchOptions& options,
                     const bench::LoadOptions& load,
                     const std::string& target) {
  std::string text = target + ": ";
  text += load.rate_per_s ? "open loop, " + std::to_string(*load.rate_per_s) + " requests a second"
                          : "closed loop, " + std::to_string(load.n_clients) + " clients";
  text += options.prompts.empty() ? ", " + std::to_string(options.synthetic.n_tokens) + " tokens in"
                                  : ", prompts of " + options.prompts.filename().string();
  return text + ", " + std::to_string(options.n_output_tokens) + " out";
}

Result<void> write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{Code::io, path.string() + ": " + std::strerror(errno)};
  return {};
}

Result<int> bench(const BenchOptions& options, const CommandStreams& streams) {
  init_logging(spdlog::level::warn);
  bench::LoadOptions load = options.load;
  if (options.duration_s) load.duration = milliseconds(*options.duration_s);
  // Another seed each time: a server's prefix cache must not know the prompts of the last run.
  load.seed = options.seed.value_or(
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
  LUNA_TRY(const bench::PromptSource prompts, prompt_source(options, load.seed));
  std::unique_ptr<App> app;
  bench::TargetFactory target;
  std::string target_name = options.url;
  if (options.url.empty()) {
    LUNA_TRY(app, start_app(options));
    wait_for_rest(streams.err);
    target = bench::pipeline_target(app->pipeline());
    target_name = app->pipeline().model_names().front() + " in this process";
  } else {
    LUNA_TRY(auto http, http_options(options));
    target = bench::http_target(std::move(http));
  }
  const std::string what = headline(options, load, target_name);
  streams.out << what << "; seed " << load.seed << std::endl;
  const auto n_distinct = prompts.n_distinct();
  if (n_distinct && *n_distinct < load.n_warm_up + load.n_requests)
    streams.err << "luna: the file's " << *n_distinct << " prompts are used again and again\n";
  const auto records = bench::run_load(load, prompts, target, [] { return !StopSignal::is_set(); });
  if (app) app->drain(kDrain);
  const bench::Report report = bench::make_report(records, options.limits);
  if (StopSignal::is_set()) streams.out << "ended early: what follows is of a part of the run\n";
  bench::print_report(report, streams.out);
  if (!options.json_file.empty()) {
    LUNA_TRY(write_file(
        options.json_file,
        bench::report_json(
            report, records, describe(options, load, target_name), options.with_token_times)));
  }
  if (!options.plot_file.empty()) {
    LUNA_TRY(write_file(options.plot_file, bench::plot_cdfs(report, options.limits, what)));
  }
  return report.n_done > 0 ? kExitFine : kExitFailed;
}

}  // namespace

int run_bench(const BenchOptions& options, const CommandStreams& streams) {
  const auto result = bench(options, streams);
  return result ? *result : fail(streams, result.error());
}

}  // namespace luna::app
