// The program: command line, exit codes, the outermost fence.
#include "core/app/command_bench.hpp"
#include "core/app/command_check.hpp"
#include "core/app/command_generate.hpp"
#include "core/app/command_inspect.hpp"
#include "core/app/command_line.hpp"
#include "core/app/command_plugins.hpp"
#include "core/app/command_pull.hpp"
#include "core/app/command_replay.hpp"
#include "core/app/command_serve.hpp"
#include "core/app/command_split.hpp"
#include "core/app/command_template.hpp"
#include "core/app/command_tokenize.hpp"
#include "core/app/command_worker.hpp"
#include "core/app/known_models.hpp"
#include "core/app/layout_choice.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/log.hpp"
#include "core/model/vocabulary_loader.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace luna::app {
namespace {

constexpr int kExitWrongUse = 2;

void add_prompt_options(CLI::App& command, PromptOptions& options) {
  command.add_option("--config", options.config, "TOML file with devices, models and stages");
  command.add_option(
      "--model",
      options.model,
      "a GGUF file, a folder of shards or of Hugging Face, or a name that `luna pull` knows; "
      "without --config");
  command.add_option("--system", options.system, "system message");
  command.add_option("--max-tokens",
                     options.n_tokens_max,
                     "tokens to make at most (default: to the end of the context)");
  command.add_option("--temperature", options.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command.add_option("--top-p", options.top_p, "nucleus")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "0: all")->capture_default_str();
  command.add_option("--min-p", options.min_p, "relative to the likeliest token")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "makes sampling repeatable");
  command.add_option(
      "--stop", options.stop, "ends the answer where this text would begin; may be repeated");
}

void add_set_option(CLI::App& command, std::vector<std::string>& overrides) {
  command
      .add_option("--set",
                  overrides,
                  "KEY=VALUE in place of the file's, such as scheduler.policy=srf or "
                  "model[0].kv_cache=int8; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// "HOST:PORT", "[::1]:PORT" or "PORT" into the options.
Result<void> apply_listen(const std::string& listen, ServeOptions& options) {
  if (listen.empty()) return {};
  const auto colon = listen.rfind(':');
  std::string host = colon == std::string::npos ? "" : listen.substr(0, colon);
  const std::string port = listen.substr(colon == std::string::npos ? 0 : colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  char* end = nullptr;
  const long number = std::strtol(port.c_str(), &end, 10);
  if (port.empty() || *end != '\0' || number < 0 || number > 65535)
    return Error{Code::invalid_argument,
                 "--listen " + listen + ": must be HOST:PORT with a port of 0 to 65535"};
  if (!host.empty()) options.host = host;
  options.port = static_cast<std::uint16_t>(number);
  return {};
}

void add_serving_commands(CLI::App& app, CommandLine& line) {
  CLI::App* serve = add(app,
                        line,
                        "serve",
                        "Serve the OpenAI API over HTTP",
                        [](CommandLine& l, const CommandStreams& s) {
                          if (const auto listen = apply_listen(l.listen, l.serve); !listen)
                            return fail(s, listen.error());
                          l.serve.plugin_folders = l.plugin_folders;
                          l.serve.overrides = l.overrides;
                          return run_serve(l.serve, s);
                        });
  serve->add_option(
      "--config", line.serve.config, "TOML file (default: the shipped configs/luna.toml)");
  serve->add_option("--host", line.serve.host, "address to listen on, instead of the file's");
  serve->add_option(
      "--port", line.serve.port, "port to listen on, instead of the file's; 0: any free one");
  serve->add_option("--record-plans",
                    line.serve.record_plans,
                    "file for every plan of the scheduler, for `luna replay`");
  serve->add_option("--listen", line.listen, "HOST:PORT, both at once");
  add_set_option(*serve, line.overrides);

  CLI::App* generate =
      add(app, line, "generate", "Answer one prompt", [](CommandLine& l, const CommandStreams& s) {
        l.generate.common.plugin_folders = l.plugin_folders;
        return run_generate(l.generate, s);
      });
  generate->add_option("prompt", line.generate.prompt, "the prompt; '-' or none: standard input");
  generate->add_flag("--raw", line.generate.raw, "the prompt as it is, without the chat template");
  generate->add_flag(
      "--json", line.generate.json, "one JSON object with text, finish reason and counts");
  generate->add_option(
      "--trace", line.generate.trace, "file for the times of the steps, a line of JSON each");
  generate->add_flag(
      "--verify-reproducible",
      line.generate.verify_reproducible,
      "compute the answer in several ways, compare tokens and logits to the bit, and "
      "fail where they differ");
  add_prompt_options(*generate, line.generate.common);

  CLI::App* chat =
      add(app, line, "chat", "Chat in the terminal", [](CommandLine& l, const CommandStreams& s) {
        l.chat.plugin_folders = l.plugin_folders;
        return run_chat(l.chat, s);
      });
  line.chat.temperature = 0.7F;
  add_prompt_options(*chat, line.chat);
}

void add_worker_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = add(app,
                          line,
                          "worker",
                          "Lend this machine's devices to a server elsewhere",
                          [](CommandLine& l, const CommandStreams& s) {
                            l.worker.plugin_folders = l.plugin_folders;
                            l.worker.overrides = l.overrides;
                            return run_worker(l.worker, s);
                          });
  WorkerCommand& options = line.worker;
  command->add_option("--join", options.join, "HOST:PORT of the server's [cluster]")->required();
  command->add_option("--name", options.name, "unlike any other worker's (default: the host's)");
  command->add_option("--devices", options.devices, "BACKEND:INDEX, several by commas: cpu:0,cpu:1")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--memory", options.memory, "budget of each device: \"4 GiB\"")->required();
  command->add_option(
      "--threads", options.n_threads, "of each device (default: the cores, shared out)");
  command->add_option(
      "--first-cpu",
      options.first_cpu,
      "core of the first thread, so that workers of one machine take different ones (default: 0)");
  command->add_option("--shard-path",
                      options.shard_path,
                      "folder of shards or model file (default: the model of the server's name "
                      "that was pulled here)");
  command->add_option("--roles", options.roles, "stages it may be given (default: all)")
      ->delimiter(',');
  command->add_option("--token-file", options.token_file, "file with the server's secret");
  command->add_option(
      "--data-host", options.data_host, "its address for other workers (default: as the server's)");
  command
      ->add_option("--drain-timeout-ms", options.drain_timeout_ms, "to hand over, once told to end")
      ->capture_default_str();
  add_set_option(*command, line.overrides);
}

void add_bench_load_options(CLI::App& command, BenchOptions& options) {
  bench::LoadOptions& load = options.load;
  auto* clients = command.add_option(
      "--clients", load.n_clients, "closed loop: each sends its next request when the last ended");
  clients->check(CLI::Range(1U, 65536U))->capture_default_str();
  command
      .add_option("--rate", load.rate_per_s, "open loop: requests a second, at Poisson arrivals")
      ->check(CLI::PositiveNumber)
      ->excludes(clients);
  command.add_option("--requests", load.n_requests, "how many are measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--warm-up", load.n_warm_up, "requests before these, dropped")
      ->capture_default_str();
  command.add_option("--duration", options.duration_s, "seconds; nothing is begun later")
      ->check(CLI::PositiveNumber);
  command.add_option("--timeout", options.timeout_s, "seconds a request may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seed", options.seed, "of prompts and arrivals; else the clock's, printed");
  command.add_option("--ttft-limit-ms", options.limits.ttft_ms, "for goodput: to the first token");
  command.add_option("--itl-limit-ms", options.limits.itl_ms, "for goodput: the longest gap");
  command.add_option("--tpot-limit-ms", options.limits.tpot_ms, "for goodput: the mean gap");
  command.add_option("--e2e-limit-ms", options.limits.e2e_ms, "for goodput: to the end");
}

void add_bench_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = add(app,
                          line,
                          "bench",
                          "Measure a server, or a model in this process, under load",
                          [](CommandLine& l, const CommandStreams& s) {
                            l.bench.plugin_folders = l.plugin_folders;
                            return run_bench(l.bench, s);
                          });
  BenchOptions& options = line.bench;
  auto* url = command->add_option(
      "--url", options.url, "of any OpenAI-compatible server; else the model runs in this process");
  command->add_option("--served-model", options.served_model, "name there (default: the first)")
      ->needs(url);
  command->add_option("--config", options.config, "TOML file, for this process")->excludes(url);
  command->add_option("--model", options.model, "a GGUF file or a known name, for this process")
      ->excludes(url);
  bench::SyntheticPrompts& synthetic = options.synthetic;
  auto* file = command->add_option(
      "--prompts", options.prompts, "a file with a prompt a line; .jsonl: strings or objects");
  command->add_option("--prompt-tokens", synthetic.n_tokens, "synthetic prompts: their length")
      ->excludes(file)
      ->capture_default_str();
  command
      ->add_option("--shared-prefix-tokens",
                   synthetic.n_shared_prefix_tokens,
                   "synthetic prompts: of their length, the same in all")
      ->excludes(file);
  command->add_option("--token-id-max", synthetic.token_id_max, "synthetic prompts: ids are below")
      ->excludes(file)
      ->capture_default_str();
  command->add_option("--output-tokens", options.n_output_tokens, "length of an answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--body", options.body, "fields added to each request's body")
      ->capture_default_str();
  command->add_option("--json", options.json_file, "file for programs");
  command->add_flag("--token-times", options.with_token_times, "with the time of every token");
  command->add_option("--plot", options.plot_file, "SVG file with the latencies' distributions");
  add_bench_load_options(*command, options);
}

void add_text_commands(CLI::App& app, CommandLine& line) {
  const auto with_model = [](CommandLine& l,
                             const CommandStreams& s,
                             std::filesystem::path& target) -> std::optional<int> {
    if (l.model.empty()) return std::nullopt;
    std::error_code ignored;
    // A folder with tokenizer.json may have a name without a slash.
    if (std::filesystem::is_directory(l.model, ignored)) {
      target = l.model;
      return std::nullopt;
    }
    auto path = resolve_model(l.model);
    if (!path) return fail(s, path.error());
    target = *path;
    return std::nullopt;
  };
  CLI::App* tokenize = add(app,
                           line,
                           "tokenize",
                           "Text to token ids, and back",
                           [with_model](CommandLine& l, const CommandStreams& s) {
                             if (const auto status = with_model(l, s, l.tokenize.model))
                               return *status;
                             return run_tokenize(l.tokenize, model::load_vocabulary, s);
                           });
  tokenize
      ->add_option(
          "--model", line.model, "a GGUF file, a folder with tokenizer.json, or a known name")
      ->required();
  tokenize->add_flag(
      "--no-special", line.tokenize.no_special, "the text of control tokens stays text");
  tokenize->add_flag(
      "--jsonl", line.tokenize.jsonl, "a JSON string a line in, a JSON list a line out");
  tokenize->add_flag("--decode", line.tokenize.decode, "JSON lists of ids in, text out");

  CLI::App* render =
      add(app,
          line,
          "template",
          "Messages to a prompt, by a chat template",
          [with_model](CommandLine& l, const CommandStreams& s) {
            if (const auto status = with_model(l, s, l.chat_template.model)) return *status;
            return run_template(
                l.chat_template, model::load_vocabulary, std::chrono::system_clock::now(), s);
          });
  auto* model = render->add_option(
      "--model", line.model, "a GGUF file, a folder with tokenizer.json, or a known name");
  render->add_option("--template", line.chat_template.template_file, "a file with a template")
      ->excludes(model);
}

NamedModels named_models() {
  NamedModels models;
  for (const KnownModel& model : known_models())
    models.known.emplace_back(model.name);
  models.is_here = [](const std::string& name) { return find_model(name).has_value(); };
  return models;
}

void add_file_commands(CLI::App& app, CommandLine& line) {
  CLI::App* inspect = add(app,
                          line,
                          "inspect",
                          "What a model file holds, checked",
                          [](CommandLine& l, const CommandStreams& s) {
                            return run_inspect({l.path, l.json}, s);
                          });
  inspect
      ->add_option(
          "file", line.path, "a GGUF or safetensors file, a folder of shards or of Hugging Face")
      ->required();
  inspect->add_flag("--json", line.json, "for programs");

  CLI::App* check = add(
      app,
      line,
      "check",
      "Check a TOML file and the plugins it names",
      [](CommandLine& l, const CommandStreams& s) {
        if (l.keys) return run_check_keys(s);
        return run_check(
            {l.path, l.plugin_folders, named_models(), l.json, l.overrides, explain_layouts}, s);
      });
  CLI::Option_group* what = check->add_option_group("what", "one of");
  what->add_option("file", line.path, "a TOML file");
  what->add_flag("--keys", line.keys, "print every key there is instead");
  what->require_option(1);
  check->add_flag("--json", line.json, "for programs");
  add_set_option(*check, line.overrides);

  CLI::App* pull = add(app,
                       line,
                       "pull",
                       "Bring a model into the user's cache",
                       [](CommandLine& l, const CommandStreams& s) {
                         if (l.pull.source.empty()) l.pull.source = known_models().front().name;
                         return run_pull(l.pull, s);
                       });
  pull->add_option("source", line.pull.source, "a known name, a .gguf file, or its http(s) URL");
  pull->add_option("--sha256", line.pull.sha256, "what the file must be")
      ->check([](const std::string& text) {
        const bool good =
            text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
        return good ? std::string() : std::string("must be 64 lower-case hexadecimal digits");
      });
  pull->add_flag("--quiet", line.pull.quiet, "no progress");

  add(app, line, "version", "Print the version", [](CommandLine&, const CommandStreams& s) {
    s.out << "luna " << kVersion << '\n';
    return kExitFine;
  });
}

void add_shard_commands(CLI::App& app, CommandLine& line) {
  CLI::App* split =
      add(app,
          line,
          "split",
          "Cut a model into shards, a file each, any number",
          [](CommandLine& l, const CommandStreams& s) {
            std::error_code ignored;
            const bool is_folder = std::filesystem::is_directory(l.model, ignored);
            auto path = is_folder ? Result<std::filesystem::path>(l.model) : resolve_model(l.model);
            if (!path) return fail(s, path.error());
            l.split.model = *path;
            l.split.json = l.json;
            l.split.is_stopped = StopSignal::is_set;
            return run_split(l.split, s);
          });
  split->add_option("model", line.model, "a GGUF file, a folder of shards, or a known name")
      ->required();
  auto* n_shards = split->add_option(
      "--num-shards", line.split.n_shards, "1 to the number of layers, balanced by bytes");
  n_shards->check(CLI::PositiveNumber);
  split->add_option(
      "--layers", line.split.layers, "first and last layer of each shard instead: 0..9,10..29");
  split->add_option(
      "--out", line.split.out, "folder for them (default: MODEL-shards-N in the current one)");
  split->add_flag("--force", line.split.force, "replace the shards in that folder");
  split->add_flag("--json", line.json, "for programs");

  CLI::App* verify = add(app,
                         line,
                         "verify",
                         "Prove a folder of shards, byte by byte",
                         [](CommandLine& l, const CommandStreams& s) {
                           l.verify.folder = l.path;
                           l.verify.json = l.json;
                           l.verify.is_stopped = StopSignal::is_set;
                           return run_verify(l.verify, s);
                         });
  verify->add_option("folder", line.path, "what `luna split` wrote")->required();
  verify->add_option("--shard", line.verify.shard, "only this one, from 0");
  verify->add_flag("--json", line.json, "for programs");
}

void add_replay_command(CLI::App& app, CommandLine& line) {
  CLI::App* replay = add(app,
                         line,
                         "replay",
                         "Ask the policy for recorded plans again, and prove them equal",
                         [](CommandLine& l, const CommandStreams& s) {
                           l.replay.file = l.path;
                           l.replay.json = l.json;
                           l.replay.plugin_folders = l.plugin_folders;
                           return run_replay(l.replay, s);
                         });
  replay->add_option("file", line.path, "what `luna serve --record-plans` wrote")->required();
  replay->add_option("--policy", line.replay.policy, "another policy, with its defaults");
  replay->add_flag("--json", line.json, "for programs");
}

int run(int argc, char** argv) {
  CLI::App app(
      "Luna serves large language models through plugins: schedulers, stage roles, weight formats, "
      "transports and backends.\nStart with: luna serve, luna chat, luna generate \"Hello\"",
      "luna");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("luna ") + kVersion);
  CommandLine line;
  app.add_option(
      "--plugin-dir", line.plugin_folders, "folder searched for plugins first; may be repeated");
  add_serving_commands(app, line);
  add_worker_command(app, line);
  add_bench_command(app, line);
  add_text_commands(app, line);
  add_file_commands(app, line);
  add_quantize_command(app, line);
  add_shard_commands(app, line);
  add_replay_command(app, line);
  add_plugin_commands(app, line);
  app.fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, std::cout, std::cerr);
    return status == 0 ? kExitFine : kExitWrongUse;
  }
  StopSignal::install();
  init_logging(spdlog::level::info);
  return line.run(line, CommandStreams{std::cin, std::cout, std::cerr});
}

}  // namespace
}  // namespace luna::app

int main(int argc, char** argv) {
  try {
    return luna::app::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "luna: " << error.what() << '\n';
  } catch (...) {
    std::cerr << "luna: an unknown exception\n";
  }
  return luna::app::kExitFailed;
}
