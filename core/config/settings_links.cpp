#include "core/config/settings_links.hpp"

#include "core/config/nearest_key.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace luna::config {
namespace {

using List = TomlNode::List;

// In place of a device's name: all that workers bring.
constexpr std::string_view kAllJoined = "*";

class LinkCheck {
 public:
  LinkCheck(Settings& settings, const SettingsNodes& nodes) : settings_(settings), nodes_(nodes) {}

  std::vector<Found> run() {
    resolve_models();
    resolve_stages();
    resolve_draft_model();
    check_names("device", settings_.devices, nodes_.devices);
    check_names("model", settings_.models, nodes_.models);
    return std::move(found_);
  }

 private:
  void report(Position at, std::string message) { found_.push_back({at, std::move(message)}); }

  template <typename Record>
  void check_names(const std::string& table,
                   const std::vector<Record>& records,
                   const std::vector<const TomlNode*>& nodes) {
    std::set<std::string> seen;
    for (std::size_t i = 0; i < records.size(); ++i)
      if (!records[i].name.empty() && !seen.insert(records[i].name).second)
        report(value_position(*nodes[i], "name"), name_taken(table, i, records[i].name));
  }
  static std::string name_taken(const std::string& table, std::size_t i, const std::string& name) {
    return table + "[" + std::to_string(i) + "].name = \"" + name + "\": another " + table +
           " has this name";
  }

  void resolve_models() {
    std::vector<std::string> known;
    for (const DeviceSettings& device : settings_.devices)
      known.push_back(device.name);
    for (std::size_t i = 0; i < settings_.models.size(); ++i) {
      ModelSettings& model = settings_.models[i];
      const std::string name = "model[" + std::to_string(i) + "]";
      if (model.source.find('/') != std::string::npos || model.source.ends_with(".gguf"))
        model.path = (settings_.folder / model.source).lexically_normal();
      resolve_devices(model, name, *nodes_.models[i], known);
      resolve_groups(model, name, *nodes_.models[i]);
      check_layers(model, name, *nodes_.models[i]);
    }
  }

  void check_layers(const ModelSettings& model, const std::string& name, const TomlNode& node) {
    if (!model.layers || model.devices.empty()) return;
    if (!model.groups && (model.layout == Layout::tensor || model.layout == Layout::automatic)) {
      report(value_position(node, "layers"),
             name + ".layers: has no effect beside " + name +
                 ".layout = \"tensor\" or \"auto\"; remove one of them");
      return;
    }
    for (const std::vector<std::string>& group : model.device_groups()) {
      if (model.layers->size() == group.size()) continue;
      report(value_position(node, "layers"),
             name + ".layers has " + std::to_string(model.layers->size()) +
                 " elements: must be one for each of the " + std::to_string(group.size()) +
                 (model.device_groups().size() > 1 ? " devices of a group" : " devices"));
      return;
    }
  }

  /// The groups hold the devices of the model, each once.
  void resolve_groups(const ModelSettings& model, const std::string& name, const TomlNode& node) {
    const TomlEntry* entry = find_entry(node, "groups");
    if (entry == nullptr || !model.groups) return;
    if (const TomlEntry* layout = find_entry(node, "layout"); layout != nullptr)
      report(layout->key_at,
             name + ".layout: has no effect beside " + name +
                 ".groups, which says which devices hold a copy; remove one of them");
    std::vector<std::string> seen;
    const auto& lists = std::get<List>(entry->node.value);
    for (std::size_t g = 0; g < model.groups->size(); ++g) {
      const auto& devices = std::get<List>(lists[g].value);
      for (std::size_t d = 0; d < devices.size(); ++d) {
        const std::string& device = (*model.groups)[g][d];
        const std::string what = name + ".groups: \"" + device + "\"";
        if (std::ranges::count(model.devices, device) == 0)
          report(devices[d].at,
                 what + " is not one of " + name + ".devices" +
                     nearest_key_hint(device, model.devices));
        if (std::ranges::count(seen, device) != 0)
          report(devices[d].at, what + " stands there twice");
        seen.push_back(device);
      }
    }
    for (const std::string& device : model.devices)
      if (std::ranges::count(seen, device) == 0)
        report(entry->node.at,
               name + ".groups: \"" + device + "\" of " + name + ".devices is in none of them");
  }

  /// "*": the devices of workers, whose names are not known yet.
  void resolve_joined_devices(ModelSettings& model, const std::string& name, const TomlNode& node) {
    const Position at = value_position(node, "devices");
    if (!nodes_.has_cluster)
      report(at, name + ".devices: \"*\" are the devices of workers: it needs a [cluster] table");
    if (model.devices.size() > 1)
      report(at, name + ".devices: \"*\" stands alone: no other device can be named beside it");
    if (model.layers)
      report(value_position(node, "layers"),
             name + ".layers: must be \"auto\" where devices = [\"*\"]");
    model.devices.clear();
    model.has_joined_devices = true;
    if (model.layout == Layout::tensor || model.layout == Layout::automatic)
      report(value_position(node, "layout"),
             name +
                 ".layout: devices that workers bring are neither timed nor share layers: must be "
                 "pipeline or replicas");
  }

  void resolve_devices(ModelSettings& model,
                       const std::string& name,
                       const TomlNode& node,
                       const std::vector<std::string>& known) {
    if (std::ranges::count(model.devices, kAllJoined) != 0)
      return resolve_joined_devices(model, name, node);
    for (std::size_t i = 0; i < model.devices.size(); ++i) {
      const std::string& device = model.devices[i];
      const Position at = std::get<List>(find_entry(node, "devices")->node.value)[i].at;
      if (std::ranges::count(known, device) == 0)
        report(at,
               device_of(name, device) + " is not the name of a [[device]]" +
                   nearest_key_hint(device, known));
      if (std::find(model.devices.begin(), model.devices.begin() + static_cast<long>(i), device) !=
          model.devices.begin() + static_cast<long>(i))
        report(at, device_of(name, device) + " stands there twice");
    }
  }
  static std::string device_of(const std::string& model, const std::string& device) {
    return model + ".devices: \"" + device + "\"";
  }

  void resolve_stages() {
    std::vector<std::string> known;
    for (const ModelSettings& model : settings_.models)
      known.push_back(model.name);
    for (std::size_t i = 0; i < settings_.stages.size(); ++i) {
      const auto& model = settings_.stages[i].model;
      if (model && std::ranges::count(known, *model) == 0)
        report(value_position(*nodes_.stages[i], "model"),
               "stage[" + std::to_string(i) + "].model = \"" + *model +
                   "\" is not the name of a [[model]]" + nearest_key_hint(*model, known));
    }
  }

  void resolve_draft_model() {
    const SpeculationSettings& speculation = settings_.speculation;
    if (!speculation.draft_model) {
      if (speculation.method == SpeculationMethod::draft)
        report(value_position(*nodes_.speculation, "method"),
               "speculation.method = \"draft\": needs speculation.draft_model, the name of a "
               "[[model]]");
      return;
    }
    const std::string& wanted = *speculation.draft_model;
    const std::string what = "speculation.draft_model = \"" + wanted + "\"";
    const Position at = value_position(*nodes_.speculation, "draft_model");
    std::vector<std::string> known;
    for (const ModelSettings& model : settings_.models)
      known.push_back(model.name);
    const auto found = std::ranges::find(known, wanted);
    if (found == known.end())
      return report(at, what + " is not the name of a [[model]]" + nearest_key_hint(wanted, known));
    const auto draft_idx = static_cast<std::size_t>(found - known.begin());
    const ModelSettings& draft = settings_.models[draft_idx];
    if (known.size() == 1)
      report(at, what + " is the only [[model]]: there must be one it drafts for");
    if (speculation.method == SpeculationMethod::draft) refuse_groups_with_drafts(at, what);
    if (!draft.kv_tokens_max)
      report(at, what + ": that [[model]] needs kv_tokens_max, what is left is for the others");
    if (draft.prune_keep_percent != 100)
      report(at, what + ": that [[model]] must have prune_keep_percent = 100");
    for (std::size_t i = 0; i < settings_.stages.size(); ++i)
      if (settings_.stages[i].model == wanted)
        report(value_position(*nodes_.stages[i], "model"),
               "stage[" + std::to_string(i) + "].model = \"" + wanted +
                   "\": it is speculation.draft_model, which answers nothing itself; must be "
                   "another [[model]]");
    for (std::size_t i = 0; i < settings_.models.size(); ++i)
      if (settings_.models[i].has_joined_devices)
        report(value_position(*nodes_.models[i], "devices"),
               "model[" + std::to_string(i) +
                   "].devices: \"*\" beside speculation.draft_model: both lie on named devices");
    refuse_idle_draft_keys(draft_idx);
  }

  /// A draft model and the one that it drafts for take turns on one copy.
  void refuse_groups_with_drafts(Position at, const std::string& what) {
    for (std::size_t i = 0; i < settings_.models.size(); ++i) {
      const std::size_t n_groups = settings_.models[i].device_groups().size();
      if (n_groups > 1)
        report(at,
               what + ": model[" + std::to_string(i) + "] is held by " + std::to_string(n_groups) +
                   " groups of devices; with a draft model there must be one copy of each model");
    }
  }

  /// Keys of a [[model]] that only an engine of its own would read. They would be believed.
  void refuse_idle_draft_keys(std::size_t draft_idx) {
    for (const char* key : {"prefix_cache",
                            "prefix_cache_scope",
                            "kv_reserve_percent",
                            "validate_output_consistency"})
      if (const TomlEntry* entry = find_entry(*nodes_.models[draft_idx], key))
        report(entry->key_at,
               "model[" + std::to_string(draft_idx) + "]." + key +
                   ": has no effect for a draft model: remove it here, set it where it drafts");
  }

  Settings& settings_;
  const SettingsNodes& nodes_;
  std::vector<Found> found_;
};

}  // namespace

std::vector<Found> check_links(Settings& settings, const SettingsNodes& nodes) {
  return LinkCheck(settings, nodes).run();
}

}  // namespace luna::config
