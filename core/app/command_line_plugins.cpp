// The command line of `luna plugins`.
#include "core/app/command_line.hpp"
#include "core/app/command_plugins.hpp"

#include <CLI/CLI.hpp>

namespace luna::app {

void add_plugin_commands(CLI::App& app, CommandLine& line) {
  using Action = int (*)(const std::string&, const PluginsOptions&, const CommandStreams&);
  const auto on_subject = [](Action action) {
    return [action](CommandLine& l, const CommandStreams& s) {
      return action(l.plugin, {l.plugin_folders, l.json}, s);
    };
  };
  CLI::App* plugins =
      app.add_subcommand("plugins", "What plugins there are, and why one is not used");
  plugins->require_subcommand(1);
  CLI::App* list = add(
      *plugins, line, "list", "Every plugin found", [](CommandLine& l, const CommandStreams& s) {
        return run_plugins_list({l.plugin_folders, l.json}, s);
      });
  list->add_flag("--json", line.json, "for programs");
  CLI::App* info = add(
      *plugins, line, "info", "A plugin and the settings it takes", on_subject(run_plugins_info));
  info->add_option("name", line.plugin, "short name or full id")->required();
  info->add_flag("--json", line.json, "for programs");
  CLI::App* why =
      add(*plugins, line, "why", "Why a plugin can or cannot be used", on_subject(run_plugins_why));
  why->add_option("subject", line.plugin, "short name, full id or file")->required();
  CLI::App* validator =
      add(*plugins,
          line,
          "check",
          "Hold a plugin against the contract, each case in a process of its own",
          [](CommandLine& l, const CommandStreams& s) {
            return check::run_check(l.plugin_check, "luna plugins check", s.out, s.err);
          });
  check::add_check_options(*validator, line.plugin_check);
  CLI::App* fresh =
      add(*plugins,
          line,
          "new",
          "Write a plugin that builds, with its tests, outside Luna's tree",
          [](CommandLine& l, const CommandStreams& s) { return run_plugins_new(l.new_plugin, s); });
  fresh->add_option("kind", line.new_plugin.kind, "scheduler, role, quant, transport or backend")
      ->required();
  fresh->add_option("name", line.new_plugin.name, "short name, as the TOML will say it")
      ->required();
  fresh->add_option("--id", line.new_plugin.id, "reverse DNS (default: org.example.KIND.NAME)");
  fresh->add_option("--dir", line.new_plugin.folder, "where to (default: NAME)");
}

}  // namespace luna::app
