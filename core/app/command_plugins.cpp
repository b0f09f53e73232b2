#include "core/app/command_plugins.hpp"

#include "core/plugin/catalog.hpp"
#include "core/plugin/elf_note.hpp"
#include "core/plugin/settings_rows.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <iomanip>
#include <ostream>
#include <set>
#include <string_view>
#include <vector>

namespace luna::app {
namespace {

namespace json = boost::json;
using plugin::Candidate;
using plugin::Catalog;
using plugin::Library;

std::unique_ptr<Catalog> scan(const PluginsOptions& options) {
  return Catalog::scan({plugin::search_folders(options.plugin_folders, {}), nullptr});
}

/// "luna.backend/1" as people call it: "backend".
std::string kind_word(std::string_view kind) {
  if (kind.starts_with("luna.")) kind.remove_prefix(5);
  return std::string(kind.substr(0, kind.find('/')));
}

/// A text that a plugin may have left out.
std::string_view or_empty(const char* text) {
  return text != nullptr ? text : "";
}

/// A kind and the library that offers it under the name that was asked for.
struct Match {
  std::string kind;
  const Library* library;
};

/// Every kind that has a candidate of this name or id.
std::set<std::string> kinds_with(const Catalog& catalog, const std::string& name) {
  std::set<std::string> kinds;
  for (const Candidate& candidate : catalog.candidates())
    if (candidate.note && (name == candidate.note->name || name == candidate.note->id))
      for (const std::string_view kind : plugin::kinds_of(*candidate.note))
        kinds.emplace(kind);
  return kinds;
}

Result<std::vector<Match>> load_matches(Catalog& catalog, const std::string& name) {
  std::vector<Match> matches;
  for (const std::string& kind : kinds_with(catalog, name)) {
    LUNA_TRY(const Library* library, catalog.load(kind, name));
    matches.push_back({kind, library});
  }
  if (matches.empty())
    return Error{Code::not_found,
                 "no plugin has the name or id '" + name + "'\n" + catalog.explain("", name)};
  return matches;
}

std::vector<const luna_param*> params_of(const Match& match) {
  const auto head = match.library->table(match.kind, sizeof(luna_if));
  return head ? plugin::params_of(**head) : std::vector<const luna_param*>{};
}

/// What a policy says that its reason codes mean.
std::vector<luna_reason> reasons_of(const Match& match) {
  const auto head = match.library->table(match.kind, sizeof(luna_if));
  if (match.kind != LUNA_KIND_SCHEDULER || !head) return {};
  if (((*head)->flags & LUNA_SCHEDULER_REASONS) == 0) return {};
  const auto* const found =
      static_cast<const luna_reasons*>((*head)->ext(nullptr, LUNA_EXT_REASONS));
  if (!LUNA_HAS(found, luna_reasons, reasons) || found->reasons == nullptr) return {};
  return {found->reasons, found->reasons + found->n_reasons};
}

std::string_view verb_word(std::uint32_t verb) {
  constexpr std::array<std::string_view, 8> kWords = {
      "", "RUN", "ASSIGN", "SLICE", "MOVE", "PREEMPT", "REJECT", "ROLE"};
  return verb < kWords.size() ? kWords[verb] : "";
}

json::array reasons_json(const Match& match) {
  json::array rows;
  for (const luna_reason& reason : reasons_of(match))
    rows.push_back(json::object{{"code", reason.code},
                                {"name", or_empty(reason.name)},
                                {"verb", verb_word(reason.verb)},
                                {"meaning", or_empty(reason.meaning)}});
  return rows;
}

json::object to_json(const Match& match) {
  const luna_plugin& p = match.library->descriptor();
  json::array params;
  for (const luna_param* param : params_of(match)) {
    json::object row = {{"key", param->key},
                        {"takes", plugin::describe_param(*param)},
                        {"help", or_empty(param->help)}};
    row["default"] = param->dflt == nullptr ? json::value(nullptr) : json::value(param->dflt);
    params.push_back(std::move(row));
  }
  return {{"kind", match.kind},
          {"name", p.name},
          {"id", p.id},
          {"version", or_empty(p.version)},
          {"vendor", or_empty(p.vendor)},
          {"licence", or_empty(p.licence)},
          {"summary", or_empty(p.summary)},
          {"file", match.library->file().string()},
          {"deterministic", (p.flags & LUNA_PLUGIN_DETERMINISTIC) != 0},
          {"settings", std::move(params)},
          {"reasons", reasons_json(match)}};
}

void print_info(const Match& match, std::ostream& out) {
  const luna_plugin& p = match.library->descriptor();
  out << kind_word(match.kind) << " '" << p.name << "' " << or_empty(p.version) << ": "
      << or_empty(p.summary) << "\n"
      << "  id       " << p.id << "\n"
      << "  kind     " << match.kind << "\n"
      << "  vendor   " << or_empty(p.vendor) << ", licence " << or_empty(p.licence) << "\n"
      << "  ABI      " << p.abi_major << "." << p.abi_minor_built << ", needs " << p.abi_major
      << "." << p.abi_minor_needed << "\n"
      << "  file     " << match.library->file().string() << "\n";
  const auto params = params_of(match);
  out << (params.empty() ? "  settings none\n" : "  settings\n");
  for (const luna_param* param : params) {
    out << "    " << std::left << std::setw(20) << param->key << " "
        << plugin::describe_param(*param) << "; "
        << (param->dflt == nullptr ? std::string("required")
                                   : "default \"" + std::string(param->dflt) + "\"")
        << "\n      " << or_empty(param->help) << "\n";
  }
  const auto reasons = reasons_of(match);
  if (!reasons.empty()) out << "  reasons of its actions\n";
  for (const luna_reason& reason : reasons)
    out << "    " << std::right << std::setw(3) << reason.code << " " << std::left << std::setw(14)
        << or_empty(reason.name) << " " << std::setw(8) << verb_word(reason.verb) << " "
        << or_empty(reason.meaning) << "\n";
}

int why_file(const std::string& file, Catalog& catalog, const CommandStreams& streams) {
  const auto library = catalog.load_file(file);
  if (!library) return fail(streams, library.error());
  const luna_plugin& p = (*library)->descriptor();
  streams.out << file << ": can be used: '" << p.name << "' (" << p.id << ")\n";
  return kExitFine;
}

}  // namespace

int run_plugins_list(const PluginsOptions& options, const CommandStreams& streams) {
  const auto catalog = scan(options);
  if (options.json) {
    json::array rows;
    for (const Candidate& candidate : catalog->candidates()) {
      json::object row = {{"file", candidate.file.string()}, {"usable", candidate.reason.empty()}};
      if (candidate.note) {
        row["name"] = candidate.note->name;
        row["id"] = candidate.note->id;
        row["kinds"] = json::array();
        for (const std::string_view kind : plugin::kinds_of(*candidate.note))
          row["kinds"].as_array().emplace_back(kind);
      }
      if (!candidate.reason.empty()) row["reason"] = candidate.reason;
      rows.push_back(std::move(row));
    }
    streams.out << json::serialize(rows) << "\n";
    return kExitFine;
  }
  for (const Candidate& candidate : catalog->candidates()) {
    if (!candidate.reason.empty()) continue;
    std::string kinds;
    for (const std::string_view kind : plugin::kinds_of(*candidate.note))
      kinds += (kinds.empty() ? "" : ",") + kind_word(kind);
    streams.out << std::left << std::setw(10) << kinds << " " << std::setw(14)
                << candidate.note->name << " " << std::setw(32) << candidate.note->id << " "
                << candidate.file.string() << "\n";
  }
  for (const Candidate& candidate : catalog->candidates())
    if (!candidate.reason.empty())
      streams.out << "refused    " << candidate.file.string() << ": " << candidate.reason << "\n";
  if (catalog->candidates().empty()) streams.err << catalog->explain("", "") << "\n";
  return kExitFine;
}

int run_plugins_info(const std::string& name,
                     const PluginsOptions& options,
                     const CommandStreams& streams) {
  const auto catalog = scan(options);
  const auto matches = load_matches(*catalog, name);
  if (!matches) return fail(streams, matches.error());
  if (options.json) {
    json::array rows;
    for (const Match& match : *matches)
      rows.push_back(to_json(match));
    streams.out << json::serialize(rows) << "\n";
  } else {
    for (const Match& match : *matches)
      print_info(match, streams.out);
  }
  return kExitFine;
}

int run_plugins_why(const std::string& name_or_file,
                    const PluginsOptions& options,
                    const CommandStreams& streams) {
  const auto catalog = scan(options);
  if (name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".so"))
    return why_file(name_or_file, *catalog, streams);
  const auto matches = load_matches(*catalog, name_or_file);
  if (!matches) return fail(streams, matches.error());
  for (const Match& match : *matches)
    streams.out << "'" << name_or_file << "' of kind " << match.kind
                << " is used from: " << match.library->file().string() << "\n"
                << catalog->explain(match.kind, name_or_file) << "\n";
  return kExitFine;
}

}  // namespace luna::app
