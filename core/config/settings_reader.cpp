#include "core/config/settings_reader.hpp"

#include "core/base/mapped_file.hpp"
#include "core/config/nearest_key.hpp"
#include "core/config/settings_links.hpp"
#include "core/config/settings_override.hpp"
#include "core/config/settings_schema.hpp"
#include "core/config/settings_value.hpp"
#include "core/config/toml_document.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace luna::config {
namespace {

using Table = TomlNode::Table;
using List = TomlNode::List;

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
    nodes_.has_cluster = find_entry(root, "cluster") != nullptr;
    for (const TableRow& row : schema_tables()) {
      const TomlEntry* entry = find_entry(root, row.table);
      if (row.form == TableForm::repeated)
        read_repeated(row, entry);
      else
        read_single(row, entry);
    }
    for (Found& wrong : check_links(settings(), nodes_))
      found_.push_back(std::move(wrong));
    return finish();
  }

  /// What a worker reads; the other tables are the server's.
  SettingsReading read_for_worker(const TomlNode& root) {
    for (const TomlEntry& entry : std::get<Table>(root.value))
      if (!is_of_worker(entry.key))
        report(entry.key_at,
               entry.key +
                   ": a worker reads [plugins], [transport] and [log] only; what the "
                   "server needs is set where `luna serve` runs");
    if (const TomlEntry* transport = find_entry(root, "transport"))
      if (const auto* table = std::get_if<Table>(&transport->node.value);
          table != nullptr && find_entry(transport->node, "data") != nullptr)
        report(transport->key_at, "transport.data: the server says it for all its workers");
    for (const TableRow& row : schema_tables())
      if (is_of_worker(row.table)) read_single(row, find_entry(root, row.table));
    return finish();
  }

 private:
  static bool is_of_worker(std::string_view table) {
    return table == "plugins" || table == "transport" || table == "log";
  }

  Settings& settings() { return reading_.settings; }
  void report(Position at, std::string message) { found_.push_back({at, std::move(message)}); }

  SettingsReading finish() {
    std::ranges::stable_sort(
        found_, {}, [](const Found& f) { return std::pair(f.at.line, f.at.column); });
    for (Found& f : found_)
      reading_.errors.emplace_back(Code::invalid_argument,
                                   f.message + " (" + locate(settings().file, f.at) + ")");
    return std::move(reading_);
  }

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
    if (row.table == "plugins") {
      read_table(row, name, node, &settings().plugins);
      settings().plugins.pins_at = value_position(node, "sha256");
    }
    if (row.table == "log") read_table(row, name, node, &settings().log);
    if (row.table == "cluster" && entry != nullptr)
      read_table(row, name, node, &settings().cluster.emplace());
    if (row.table == "speculation") {
      read_table(row, name, node, &settings().speculation);
      nodes_.speculation = &node;
      check_ngrams(node);
    }
    if (row.table == "scheduler") {
      read_table(row, name, node, &settings().scheduler);
      settings().scheduler.policy_at = value_position(node, "policy");
      settings().scheduler.fallback_at = value_position(node, "fallback");
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
      const bool is_brought = row.table == "device" && nodes_.has_cluster;  // by workers
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
      nodes_.devices.push_back(&node);
    } else if (row.table == "model") {
      ModelSettings& model = settings().models.emplace_back();
      read_table(row, name, node, &model);
      model.at = node.at;
      model.source_at = value_position(node, "path");
      nodes_.models.push_back(&node);
    } else if (row.table == "stage") {
      StageSettings& stage = settings().stages.emplace_back();
      read_table(row, name, node, &stage);
      stage.at = node.at;
      stage.role_at = value_position(node, "role");
      stage.own = read_group(name, node, keys_of(row.table));
      nodes_.stages.push_back(&node);
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

  SettingsReading reading_;
  std::vector<Found> found_;
  SettingsNodes nodes_;
};

SettingsReading failed(Error error) {
  SettingsReading reading;
  reading.errors.push_back(std::move(error));
  return reading;
}

std::vector<Error> apply_overrides(TomlNode& root, const std::vector<std::string>& overrides) {
  std::vector<Error> refused;
  for (const std::string& text : overrides)
    if (const auto applied = apply_override(root, text); !applied)
      refused.push_back(applied.error());
  return refused;
}

}  // namespace

SettingsReading read_settings_text(std::string_view text,
                                   const std::string& file,
                                   const std::filesystem::path& folder,
                                   const std::vector<std::string>& overrides) {
  if (text.size() > kSettingsBytesMax)
    return failed({Code::invalid_argument,
                   file + ": " + std::to_string(text.size()) + " bytes, at most " +
                       std::to_string(kSettingsBytesMax) + " are allowed"});
  auto root = parse_toml(text, file);
  if (!root) return failed(root.error());
  std::vector<Error> refused = apply_overrides(*root, overrides);
  SettingsReading reading = Reader(file, folder).read(*root);
  reading.errors.insert(reading.errors.begin(), refused.begin(), refused.end());
  return reading;
}

SettingsReading read_settings_file(const std::filesystem::path& path,
                                   const std::vector<std::string>& overrides) {
  const auto mapped = MappedFile::open(path);
  if (!mapped) return failed(mapped.error());
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return failed({Code::io, path.string() + ": " + error.message()});
  const auto bytes = mapped->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return read_settings_text(
      text, path.string(), absolute.lexically_normal().parent_path(), overrides);
}

Result<Settings> read_settings(const std::filesystem::path& path,
                               const std::vector<std::string>& overrides) {
  SettingsReading reading = read_settings_file(path, overrides);
  if (reading.errors.empty()) return std::move(reading.settings);
  return join_errors(reading.errors);
}

Result<WorkerSettings> read_worker_settings(const std::vector<std::string>& overrides) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::current_path(error);
  if (error) return Error{Code::io, "the current folder: " + error.message()};
  TomlNode root{kSaidByOverride, Table{}};
  std::vector<Error> refused = apply_overrides(root, overrides);
  SettingsReading reading = Reader("--set", folder).read_for_worker(root);
  reading.errors.insert(reading.errors.begin(), refused.begin(), refused.end());
  if (!reading.errors.empty()) return join_errors(reading.errors);
  Settings& read = reading.settings;
  return WorkerSettings{std::move(read.plugins), std::move(read.transport), read.log};
}

Error join_errors(const std::vector<Error>& errors) {
  std::string message;
  for (const Error& error : errors)
    message += (message.empty() ? "" : "\n") + error.message();
  return {errors.empty() ? Code::internal : errors.front().code(), std::move(message)};
}

}  // namespace luna::config
