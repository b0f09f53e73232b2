// What the command line says, and how a command comes into it.
#pragma once

#include "core/app/command_bench.hpp"
#include "core/app/command_generate.hpp"
#include "core/app/command_new.hpp"
#include "core/app/command_pull.hpp"
#include "core/app/command_quantize.hpp"
#include "core/app/command_replay.hpp"
#include "core/app/command_serve.hpp"
#include "core/app/command_split.hpp"
#include "core/app/command_template.hpp"
#include "core/app/command_tokenize.hpp"
#include "core/app/command_worker.hpp"
#include "core/check/check_command.hpp"

#include <CLI/App.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace luna::app {

/// What the command line said: one options struct a command, and the command that was chosen.
struct CommandLine {
  std::vector<std::filesystem::path> plugin_folders;
  ServeOptions serve;
  WorkerCommand worker;
  GenerateOptions generate;
  PromptOptions chat;
  TokenizeOptions tokenize;
  TemplateOptions chat_template;
  PullOptions pull;
  SplitCommand split;
  QuantizeCommand quantize;
  VerifyCommand verify;
  BenchOptions bench;
  ReplayOptions replay;
  check::CheckCommand plugin_check;
  NewPluginOptions new_plugin;
  std::string path;                    // inspect, check, plugin
  std::string plugin;                  // plugins info, why
  std::string model;                   // tokenize, template, split: a path or a known name
  std::string listen;                  // serve --listen
  std::vector<std::string> overrides;  // serve, worker, check --set
  bool keys = false;                   // check --keys
  bool json = false;
  std::function<int(CommandLine&, const CommandStreams&)> run;
};

/// A subcommand that runs `run` when it is chosen.
inline CLI::App* add(CLI::App& app,
                     CommandLine& line,
                     const char* name,
                     const char* help,
                     std::function<int(CommandLine&, const CommandStreams&)> run) {
  CLI::App* command = app.add_subcommand(name, help);
  command->callback([&line, run = std::move(run)] { line.run = run; });
  return command;
}

/// `luna quantize`
void add_quantize_command(CLI::App& app, CommandLine& line);

/// `luna plugins ...`
void add_plugin_commands(CLI::App& app, CommandLine& line);

}  // namespace luna::app
