#include "core/app/command_check.hpp"

#include "core/app/pipeline_table.hpp"
#include "core/config/nearest_key.hpp"
#include "core/config/settings_reader.hpp"
#include "core/config/settings_schema.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/settings_check.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <ostream>
#include <system_error>

namespace luna::app {
namespace {

struct Findings {
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;
  std::vector<PipelineRow> pipeline;  ///< empty: the file could not be read
};

/// A model's file or folder must be there; a known name may still have to be pulled.
void check_model(const config::Settings& settings,
                 const config::ModelSettings& model,
                 const NamedModels& models,
                 Findings& findings) {
  const std::string where = " (" + config::locate(settings.file, model.source_at) + ")";
  const std::string what = "model '" + model.name + "': path = \"" + model.source + "\": ";
  std::error_code error;
  if (model.path) {
    if (!std::filesystem::exists(*model.path, error))
      findings.errors.push_back(what + model.path->string() + " does not exist" + where);
  } else if (models.is_here && models.is_here(model.source)) {
    return;
  } else if (std::ranges::count(models.known, model.source) != 0) {
    findings.warnings.push_back(what + "not here yet; `luna pull " + model.source + "` brings it" +
                                where);
  } else {
    findings.errors.push_back(what +
                              "not a known model, and not a path (with a '/' or ending in "
                              ".gguf)" +
                              config::nearest_key_hint(model.source, models.known) + where);
  }
}

Findings check(const CheckOptions& options) {
  Findings findings;
  const config::SettingsReading reading =
      config::read_settings_file(options.config, options.overrides);
  for (const Error& error : reading.errors)
    findings.errors.push_back(error.message());
  if (!reading.errors.empty()) return findings;  // half-read settings would be checked twice

  const config::Settings& settings = reading.settings;
  for (const config::ModelSettings& model : settings.models)
    check_model(settings, model, options.models, findings);
  const auto folders = plugin::search_folders(options.plugin_folders, settings.plugins.paths);
  plugin::Catalog::Options search;
  search.folders = folders;
  search.trust = plugin::trust_of(settings.plugins);
  const auto catalog = plugin::Catalog::scan(std::move(search));
  findings.pipeline = resolve_pipeline(settings, *catalog);
  for (const PipelineRow& row : findings.pipeline)
    if (row.stage == kStageOfFormats && !row.is_ok()) findings.errors.push_back(row.reason);
  for (const Error& error : plugin::check_settings(settings, *catalog))
    findings.errors.push_back(error.message());
  // A model that is not here cannot be timed.
  if (findings.errors.empty() && findings.warnings.empty() && options.explain_layouts) {
    auto sentences = options.explain_layouts(settings, options.plugin_folders);
    if (sentences)
      findings.notes = std::move(*sentences);
    else
      findings.errors.push_back(sentences.error().message());
  }
  return findings;
}

void print_json(const Findings& findings, std::ostream& out) {
  const auto list = [](const std::vector<std::string>& texts) {
    boost::json::array rows;
    for (const std::string& text : texts)
      rows.emplace_back(text);
    return rows;
  };
  const boost::json::object object = {{"ok", findings.errors.empty()},
                                      {"errors", list(findings.errors)},
                                      {"pipeline", pipeline_json(findings.pipeline)},
                                      {"warnings", list(findings.warnings)},
                                      {"notes", list(findings.notes)}};
  out << boost::json::serialize(object) << "\n";
}

}  // namespace

int run_check(const CheckOptions& options, const CommandStreams& streams) {
  const Findings findings = check(options);
  if (options.json) {
    print_json(findings, streams.out);
  } else {
    if (!findings.pipeline.empty()) print_pipeline(findings.pipeline, streams.out);
    for (const std::string& error : findings.errors)
      streams.err << "error: " << error << "\n";
    for (const std::string& warning : findings.warnings)
      streams.err << "warning: " << warning << "\n";
    for (const std::string& note : findings.notes)
      streams.out << note << "\n";
    if (findings.errors.empty()) streams.out << "the configuration is right\n";
  }
  return findings.errors.empty() ? kExitFine : kExitFailed;
}

int run_check_keys(const CommandStreams& streams) {
  for (const config::TableRow& table : config::schema_tables()) {
    const bool repeats = table.form == config::TableForm::repeated;
    streams.out << (repeats ? "[[" : "[") << table.table << (repeats ? "]]" : "]") << "  # "
                << table.help << '\n';
    for (const config::KeyRow& key : config::schema_keys()) {
      if (key.table != table.table) continue;
      streams.out << "  " << key.key << ": " << config::describe_key(key);
      if (!key.default_text)
        streams.out << "; required";
      else if (!key.default_text->empty())
        streams.out << "; default " << *key.default_text;
      streams.out << "\n      " << key.help << '\n';
    }
  }
  return kExitFine;
}

}  // namespace luna::app
