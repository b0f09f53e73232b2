#include "core/plugin/settings_check.hpp"

#include "core/config/nearest_key.hpp"
#include "core/plugin/settings_rows.hpp"

#include <algorithm>
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
    check_choice(LUNA_KIND_SCHEDULER,
                 {"scheduler.policy", scheduler.policy, scheduler.policy_at},
                 scheduler.policies);
    check_fallbacks();
    check_tables(LUNA_KIND_SCHEDULER, scheduler.policies);
    const config::TransportSettings& transport = settings_.transport;
    if (transport.data != "auto")
      check_choice(LUNA_KIND_TRANSPORT,
                   {"transport.data", transport.data, transport.data_at},
                   transport.transports);
    check_tables(LUNA_KIND_TRANSPORT, transport.transports);
    for (Error& error : check_pins(settings_.plugins, settings_.file, catalog_))
      errors_.push_back(std::move(error));
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

  /// A plugin that is chosen by its name, where its table is not looked at anyway.
  const Library* check_choice(const char* kind,
                              const Choice& choice,
                              const std::map<std::string, config::RawGroup>& groups) {
    const auto library = catalog_.load(kind, choice.plugin);
    if (!library) {
      const std::string what = std::string(choice.key) + " = \"" + choice.plugin + "\"";
      errors_.push_back(place(library.error(), what, settings_.file, choice.at));
      return nullptr;
    }
    if (!groups.contains((*library)->descriptor().name) &&
        !groups.contains((*library)->descriptor().id))
      check_group(**library, kind, absent_group(kind, choice));
    return *library;
  }

  /// Each takes the place of the one before it, so none may be there twice.
  void check_fallbacks() {
    const config::SchedulerSettings& scheduler = settings_.scheduler;
    std::vector<const Library*> seen;
    if (const auto policy = catalog_.load(LUNA_KIND_SCHEDULER, scheduler.policy))
      seen.push_back(*policy);
    for (const std::string& name : scheduler.fallback) {
      const Library* const library =
          check_choice(LUNA_KIND_SCHEDULER,
                       {"scheduler.fallback", name, scheduler.fallback_at},
                       scheduler.policies);
      if (library == nullptr) continue;
      if (std::ranges::count(seen, library) != 0)
        errors_.push_back(
            place({Code::invalid_argument, "must be another policy than those before it"},
                  "scheduler.fallback = \"" + name + "\"",
                  settings_.file,
                  scheduler.fallback_at));
      seen.push_back(library);
    }
  }

  /// The table of every plugin that has one.
  void check_tables(const char* kind, const std::map<std::string, config::RawGroup>& groups) {
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

std::vector<Error> check_pins(const config::PluginSettings& settings,
                              const std::string& file,
                              const Catalog& catalog) {
  std::vector<std::string> known;
  for (const Candidate& candidate : catalog.candidates()) {
    if (!candidate.note) continue;
    known.emplace_back(candidate.note->name);
    known.emplace_back(candidate.note->id);
  }
  std::vector<Error> errors;
  for (const config::PluginPin& pin : settings.pins)
    if (std::ranges::count(known, pin.plugin) == 0)
      errors.emplace_back(
          Code::not_found,
          "plugins.sha256." + pin.plugin + " (" + config::locate(file, settings.pins_at) +
              "): no plugin of this name or id was found, so nothing is held to it" +
              config::nearest_key_hint(pin.plugin, known));
  return errors;
}

std::vector<Error> check_settings(const config::Settings& settings, Catalog& catalog) {
  return Checker(settings, catalog).run();
}

}  // namespace luna::plugin
