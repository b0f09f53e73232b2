#include "core/config/settings_reader.hpp"

#include "core/base/mapped_file.hpp"
#include "core/config/nearest_key.hpp"
#include "core/config/settings_schema.hpp"
#include "core/config/settings_value.hpp"
#include "core/config/toml_document.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

namespace luna::config {
namespace {

using Table = TomlNode::Table;
using List = TomlNode::List;

const TomlEntry* find_entry(const TomlNode& table, std::string_view key) {
  const auto& entries = std::get<Table>(table.value);
  const auto found = std::ranges::find(entries, key, &TomlEntry::key);
  return found == entries.end() ? nullptr : &*found;
}

Position value_position(const TomlNode& table, std::string_view key) {
  const TomlEntry* entry = find_entry(table, key);
  return entry == nullptr ? table.at : entry->node.at;
}

// In place of a device's name: all that workers bring.
constexpr std::string_view kAllJoined = "*";

/// Walks the tree once, fills the settings and collects what is wrong.
class Reader {
 public:
  Reader(const std::string& file, const std::filesystem::path& folder) {
    reading_.settings.file = file;
    reading_.settings.folder = folder;
  }

  SettingsReading read(const TomlNode& root) {
    for (const TomlEntry& entry : std::get<Table>(root.value))
      if (std::ranges::count(schema_tables(), entry.key, &TableRow::table) == 0)
        report_unknown_table(entry);
    has_cluster_ = find_entry(root, "cluster") != nullptr;
    for (const TableRow& row : schema_tables()) {
      const TomlEntry* entry = find_entry(root, row.table);
      if (row.form == TableForm::repeated)
        read_repeated(row, entry);
      else
        read_single(row, entry);
    }
    resolve_models();
    resolve_stages();
    resolve_draft_model();
    check_names("device", settings().devices, device_nodes_);
    check_names("model", settings().models, model_nodes_);
    std::ranges::stable_sort(
        found_, {}, [](const Found& f) { return std::pair(f.at.line, f.at.column); });
    for (Found& f : found_)
      reading_.errors.emplace_back(Code::invalid_argument,
                                   f.message + " (" + locate(settings().file, f.at) + ")");
    return std::move(reading_);
  }

 private:
  struct Found {
    Position at;
    std::string message;
  };

  Settings& settings() { return reading_.settings; }
  void report(Position at, std::string message) { found_.push_back({at, std::move(message)}); }

  void report_unknown_table(const TomlEntry& entry) {
    const bool is_table = std::holds_alternative<Table>(entry.node.value) ||
                          std::holds_alternative<List>(entry.node.value);
    std::string message = std::string("unknown ") + (is_table ? "table" : "key") + " '" +
                          entry.key + "' at the top of the file";
    const auto owner = std::ranges::find(schema_keys(), entry.key, &KeyRow::key);
    if (!is_table && owner != schema_keys().end()) {
      message += "; it belongs in [" + std::string(owner->table) + "]";
    } else {
      std::vector<std::string> known;
      for (const TableRow& row : schema_tables())
        known.emplace_back(row.table);
      message += nearest_key_hint(entry.key, known);
    }
    report(entry.key_at, std::move(message));
  }

  void read_single(const TableRow& row, const TomlEntry* entry) {
    const TomlNode absent{{1, 1}, Table{}};
    const std::string name(row.table);
    if (entry == nullptr && row.is_required)
      return report({1, 1}, "no [" + name + "] table: " + std::string(row.help));
    if (entry != nullptr && !std::holds_alternative<Table>(entry->node.value))
      return report(entry->node.at,
                    name + " = " + print_node(entry->node) + ": must be one table [" + name + "]");
    const TomlNode& node = entry == nullptr ? absent : entry->node;
    if (row.table == "server") read_table(row, name, node, &settings().server);
    if (row.table == "plugins") read_table(row, name, node, &settings().plugins);
    if (row.table == "log") read_table(row, name, node, &settings().log);
    if (row.table == "cluster" && entry != nullptr)
      read_table(row, name, node, &settings().cluster.emplace());
    if (row.table == "speculation") {
      read_table(row, name, node, &settings().speculation);
      speculation_node_ = &node;
      check_ngrams(node);
    }
    if (row.table == "scheduler") {
      read_table(row, name, node, &settings().scheduler);
      settings().scheduler.policy_at = value_position(node, "policy");
      read_plugin_tables(name, node, settings().scheduler.policies);
    }
    if (row.table == "transport") {
      read_table(row, name, node, &settings().transport);
      settings().transport.data_at = value_position(node, "data");
      read_plugin_tables(name, node, settings().transport.transports);
    }
  }

  void check_ngrams(const TomlNode& node) {
    const SpeculationSettings& speculation = settings().speculation;
    if (speculation.ngram_min <= speculation.ngram_max) return;
    const char* key = find_entry(node, "ngram_min") != nullptr ? "ngram_min" : "ngram_max";
    report(value_position(node, key),
           "speculation.ngram_min = " + std::to_string(speculation.ngram_min) +
               ": must be at most ngram_max = " + std::to_string(speculation.ngram_max));
  }

  void read_repeated(const TableRow& row, const TomlEntry* entry) {
    const std::string name(row.table);
    if (entry == nullptr) {
      const bool is_brought = row.table == "device" && has_cluster_;  // by workers
      if (row.is_required && !is_brought)
        report({1, 1},
               "no [[" + name + "]] table: at least one is needed, " + std::string(row.help));
      return;
    }
    const auto* list = std::get_if<List>(&entry->node.value);
    const bool are_tables =
        list != nullptr && !list->empty() && std::ranges::all_of(*list, [](const TomlNode& node) {
          return std::holds_alternative<Table>(node.value);
        });
    if (!are_tables)
      return report(entry->key_at,
                    name + " is " + print_node(entry->node) + ": must be [[" + name +
                        "]], in two pairs of brackets, once for each " + name);
    for (std::size_t i = 0; i < list->size(); ++i)
      read_element(row, name + "[" + std::to_string(i) + "]", (*list)[i]);
  }

  void read_element(const TableRow& row, const std::string& name, const TomlNode& node) {
    if (row.table == "device") {
      DeviceSettings& device = settings().devices.emplace_back();
      read_table(row, name, node, &device);
      device.at = node.at;
      device.backend_at = value_position(node, "backend");
      device.own = read_group(name, node, keys_of(row.table));
      device_nodes_.push_back(&node);
    } else if (row.table == "model") {
      ModelSettings& model = settings().models.emplace_back();
      read_table(row, name, node, &model);
      model.at = node.at;
      model.source_at = value_position(node, "path");
      model_nodes_.push_back(&node);
    } else if (row.table == "stage") {
      StageSettings& stage = settings().stages.emplace_back();
      read_table(row, name, node, &stage);
      stage.at = node.at;
      stage.role_at = value_position(node, "role");
      stage.own = read_group(name, node, keys_of(row.table));
      stage_nodes_.push_back(&node);
    }
  }

  /// Core's own keys of one table into `record`, which is the table's struct.
  void read_table(const TableRow& table,
                  const std::string& name,
                  const TomlNode& node,
                  void* record) {
    for (const KeyRow& row : schema_keys()) {
      if (row.table != table.table) continue;
      if (const TomlEntry* entry = find_entry(node, row.key))
        read_value(row, name, *entry, record);
      else if (!row.default_text)
        report(node.at,
               name + "." + std::string(row.key) + " is missing: must be " + describe_key(row));
      else if (const auto value = default_value(row))
        row.store(record, *value);
    }
    const std::vector<std::string> known = keys_of(table.table);
    for (const TomlEntry& entry : std::get<Table>(node.value)) {
      const bool is_plugins = table.other_keys == OtherKeys::of_plugin ||
                              (table.other_keys == OtherKeys::tables_of_plugins &&
                               std::holds_alternative<Table>(entry.node.value));
      if (!is_plugins && std::ranges::count(known, entry.key) == 0)
        report(entry.key_at,
               "unknown key '" + entry.key + "' in " + name + nearest_key_hint(entry.key, known));
    }
  }

  void read_value(const KeyRow& row,
                  const std::string& name,
                  const TomlEntry& entry,
                  void* record) {
    // The default may be written out, "" and "auto" included.
    const auto* text = std::get_if<std::string>(&entry.node.value);
    const bool is_empty_default = text != nullptr && row.default_text &&
                                  *text == *row.default_text &&
                                  (row.type == ValueType::path || row.type == ValueType::layers);
    if (is_empty_default) return;
    if (const auto value = convert(row, entry.node, settings().folder))
      row.store(record, *value);
    else
      report(entry.node.at,
             name + "." + entry.key + " = " + print_node(entry.node) + ": must be " +
                 describe_key(row));
  }

  /// Keys that core does not know, for the plugin that the table names.
  RawGroup read_group(const std::string& name,
                      const TomlNode& node,
                      std::vector<std::string> core_keys) {
    RawGroup group{settings().file, name, node.at, {}, std::move(core_keys)};
    for (const TomlEntry& entry : std::get<Table>(node.value)) {
      if (std::ranges::count(group.core_keys, entry.key) != 0) continue;
      if (auto value = convert_raw(entry.node))
        group.rows.push_back({entry.key, std::move(*value), entry.key_at, entry.node.at});
      else
        report(entry.node.at,
               name + "." + entry.key + " = " + print_node(entry.node) +
                   ": a plugin takes true or false, a number, a text, a list of texts or a table "
                   "of texts");
    }
    return group;
  }

  /// The tables [name.<plugin>].
  void read_plugin_tables(const std::string& name,
                          const TomlNode& node,
                          std::map<std::string, RawGroup>& groups) {
    for (const TomlEntry& entry : std::get<Table>(node.value))
      if (std::holds_alternative<Table>(entry.node.value) &&
          std::ranges::count(keys_of(name), entry.key) == 0)
        groups.emplace(entry.key, read_group(name + "." + entry.key, entry.node, {}));
  }

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
    for (const DeviceSettings& device : settings().devices)
      known.push_back(device.name);
    for (std::size_t i = 0; i < settings().models.size(); ++i) {
      ModelSettings& model = settings().models[i];
      const std::string name = "model[" + std::to_string(i) + "]";
      if (model.source.find('/') != std::string::npos || model.source.ends_with(".gguf"))
        model.path = (settings().folder / model.source).lexically_normal();
      resolve_devices(model, name, *model_nodes_[i], known);
      resolve_groups(model, name, *model_nodes_[i]);
      check_layers(model, name, *model_nodes_[i]);
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
    if (!has_cluster_)
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
    for (const ModelSettings& model : settings().models)
      known.push_back(model.name);
    for (std::size_t i = 0; i < settings().stages.size(); ++i) {
      const auto& model = settings().stages[i].model;
      if (model && std::ranges::count(known, *model) == 0)
        report(value_position(*stage_nodes_[i], "model"),
               "stage[" + std::to_string(i) + "].model = \"" + *model +
                   "\" is not the name of a [[model]]" + nearest_key_hint(*model, known));
    }
  }

  void resolve_draft_model() {
    const SpeculationSettings& speculation = settings().speculation;
    if (!speculation.draft_model) {
      if (speculation.method == SpeculationMethod::draft)
        report(value_position(*speculation_node_, "method"),
               "speculation.method = \"draft\": needs speculation.draft_model, the name of a "
               "[[model]]");
      return;
    }
    const std::string& wanted = *speculation.draft_model;
    const std::string what = "speculation.draft_model = \"" + wanted + "\"";
    const Position at = value_position(*speculation_node_, "draft_model");
    std::vector<std::string> known;
    for (const ModelSettings& model : settings().models)
      known.push_back(model.name);
    const auto found = std::ranges::find(known, wanted);
    if (found == known.end())
      return report(at, what + " is not the name of a [[model]]" + nearest_key_hint(wanted, known));
    const auto draft_idx = static_cast<std::size_t>(found - known.begin());
    const ModelSettings& draft = settings().models[draft_idx];
    if (known.size() == 1)
      report(at, what + " is the only [[model]]: there must be one it drafts for");
    if (speculation.method == SpeculationMethod::draft) refuse_groups_with_drafts(at, what);
    if (!draft.kv_tokens_max)
      report(at, what + ": that [[model]] needs kv_tokens_max, what is left is for the others");
    if (draft.prune_keep_percent != 100)
      report(at, what + ": that [[model]] must have prune_keep_percent = 100");
    for (std::size_t i = 0; i < settings().stages.size(); ++i)
      if (settings().stages[i].model == wanted)
        report(value_position(*stage_nodes_[i], "model"),
               "stage[" + std::to_string(i) + "].model = \"" + wanted +
                   "\": it is speculation.draft_model, which answers nothing itself; must be "
                   "another [[model]]");
    for (std::size_t i = 0; i < settings().models.size(); ++i)
      if (settings().models[i].has_joined_devices)
        report(value_position(*model_nodes_[i], "devices"),
               "model[" + std::to_string(i) +
                   "].devices: \"*\" beside speculation.draft_model: both lie on named devices");
    refuse_idle_draft_keys(draft_idx);
  }

  /// A draft model and the one that it drafts for take turns on one copy.
  void refuse_groups_with_drafts(Position at, const std::string& what) {
    for (std::size_t i = 0; i < settings().models.size(); ++i) {
      const std::size_t n_groups = settings().models[i].device_groups().size();
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
      if (const TomlEntry* entry = find_entry(*model_nodes_[draft_idx], key))
        report(entry->key_at,
               "model[" + std::to_string(draft_idx) + "]." + key +
                   ": has no effect for a draft model: remove it here, set it where it drafts");
  }

  SettingsReading reading_;
  std::vector<Found> found_;
  bool has_cluster_ = false;
  std::vector<const TomlNode*> device_nodes_;  // as settings().devices; live as long as the tree
  std::vector<const TomlNode*> model_nodes_;
  std::vector<const TomlNode*> stage_nodes_;
  const TomlNode* speculation_node_ = nullptr;  // if there is one
};

SettingsReading failed(Error error) {
  SettingsReading reading;
  reading.errors.push_back(std::move(error));
  return reading;
}

}  // namespace

SettingsReading read_settings_text(std::string_view text,
                                   const std::string& file,
                                   const std::filesystem::path& folder) {
  if (text.size() > kSettingsBytesMax)
    return failed({Code::invalid_argument,
                   file + ": " + std::to_string(text.size()) + " bytes, at most " +
                       std::to_string(kSettingsBytesMax) + " are allowed"});
  const auto root = parse_toml(text, file);
  if (!root) return failed(root.error());
  return Reader(file, folder).read(*root);
}

SettingsReading read_settings_file(const std::filesystem::path& path) {
  const auto mapped = MappedFile::open(path);
  if (!mapped) return failed(mapped.error());
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return failed({Code::io, path.string() + ": " + error.message()});
  const auto bytes = mapped->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return read_settings_text(text, path.string(), absolute.lexically_normal().parent_path());
}

Result<Settings> read_settings(const std::filesystem::path& path) {
  SettingsReading reading = read_settings_file(path);
  if (reading.errors.empty()) return std::move(reading.settings);
  return join_errors(reading.errors);
}

Error join_errors(const std::vector<Error>& errors) {
  std::string message;
  for (const Error& error : errors)
    message += (message.empty() ? "" : "\n") + error.message();
  return {errors.empty() ? Code::internal : errors.front().code(), std::move(message)};
}

}  // namespace luna::config
