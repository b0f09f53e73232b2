#include "core/plugin/settings_check.hpp"

#include "core/plugin/settings_rows.hpp"

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace luna::plugin {
namespace {

/// "stage[1].role = "x" (luna.toml:3:8)", then what the catalog says.
Error place(const Error& error,
            const std::string& what,
            const std::string& file,
            config::Position at) {
  return {error.code(), what + " (" + config::locate(file, at) + "): " + error.message()};
}

class Checker {
 public:
  Checker(const config::Settings& settings, Catalog& catalog)
      : settings_(settings), catalog_(catalog) {}

  std::vector<Error> run() {
    for (const config::DeviceSettings& device : settings_.devices)
      check(LUNA_KIND_BACKEND, device.backend, device.own, {"backend", device.backend_at});
    for (const config::StageSettings& stage : settings_.stages)
      check(LUNA_KIND_ROLE, stage.role, stage.own, {"role", stage.role_at});
    const config::SchedulerSettings& scheduler = settings_.scheduler;
    check_tables(LUNA_KIND_SCHEDULER,
                 {"scheduler.policy", scheduler.policy, scheduler.policy_at},
                 scheduler.policies);
    const config::TransportSettings& transport = settings_.transport;
    check_tables(LUNA_KIND_TRANSPORT,
                 {"transport.data", transport.data, transport.data_at},
                 transport.transports);
    return std::move(errors_);
  }

 private:
  struct Key {
    std::string_view name;
    config::Position at;
  };
  struct Choice {
    std::string_view key;
    const std::string& plugin;
    config::Position at;
  };

  /// A plugin and its own keys; `key` is where its name stands in the group's table.
  void check(const char* kind, const std::string& name, const config::RawGroup& own, Key key) {
    const auto library = catalog_.load(kind, name);
    if (!library) {
      const std::string what = own.table + "." + std::string(key.name) + " = \"" + name + "\"";
      errors_.push_back(place(library.error(), what, settings_.file, key.at));
      return;
    }
    check_group(**library, kind, own);
  }

  /// The chosen plugin, and the table of every plugin that has one.
  void check_tables(const char* kind,
                    const Choice& choice,
                    const std::map<std::string, config::RawGroup>& groups) {
    const bool is_auto = choice.plugin == "auto" && std::string_view(kind) == LUNA_KIND_TRANSPORT;
    if (!is_auto) {
      const auto library = catalog_.load(kind, choice.plugin);
      const std::string what = std::string(choice.key) + " = \"" + choice.plugin + "\"";
      if (!library)
        errors_.push_back(place(library.error(), what, settings_.file, choice.at));
      else if (!groups.contains((*library)->descriptor().name) &&
               !groups.contains((*library)->descriptor().id))
        check_group(**library, kind, absent_group(kind, choice));
    }
    for (const auto& [name, group] : groups) {
      const auto library = catalog_.load(kind, name);
      if (!library)
        errors_.push_back(
            place(library.error(), "table [" + group.table + "]", settings_.file, group.at));
      else
        check_group(**library, kind, group);
    }
  }

  /// No table was written: required keys are missing at the word that chose the plugin.
  config::RawGroup absent_group(const char* kind, const Choice& choice) const {
    const bool is_scheduler = std::string_view(kind) == LUNA_KIND_SCHEDULER;
    return {settings_.file,
            (is_scheduler ? "scheduler." : "transport.") + choice.plugin,
            choice.at,
            {},
            {}};
  }

  void check_group(const Library& library, const char* kind, const config::RawGroup& own) {
    const auto head = library.table(kind, table_size(kind));
    if (!head) {
      errors_.push_back(head.error().in(library.file().string()));
      return;
    }
    for (Error& error : check_rows(**head, own).errors)
      errors_.push_back(std::move(error));
  }

  const config::Settings& settings_;
  Catalog& catalog_;
  std::vector<Error> errors_;
};

}  // namespace

std::vector<Error> check_settings(const config::Settings& settings, Catalog& catalog) {
  return Checker(settings, catalog).run();
}

}  // namespace luna::plugin
