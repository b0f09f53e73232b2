#include "core/app/pipeline_table.hpp"

#include "core/plugin/elf_note.hpp"
#include "core/plugin/trust.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <ostream>
#include <string_view>
#include <utility>

namespace luna::app {
namespace {

using plugin::Candidate;

std::string contract(std::uint32_t major, std::uint32_t minor) {
  return "ABI " + std::to_string(major) + "." + std::to_string(minor);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// The candidate that a name means, refused or not; null: there is none, or there are several.
const Candidate* find_candidate(const plugin::Catalog& catalog,
                                std::string_view kind,
                                const std::string& name) {
  const Candidate* found = nullptr;
  for (const Candidate& candidate : catalog.candidates()) {
    if (!candidate.note) continue;
    const bool is_called = name == candidate.note->name || name == candidate.note->id;
    if (!is_called || std::ranges::count(plugin::kinds_of(*candidate.note), kind) == 0) continue;
    if (found != nullptr) return nullptr;
    found = &candidate;
  }
  return found;
}

PipelineRow resolve(plugin::Catalog& catalog,
                    std::string stage,
                    const std::string& kind,
                    const std::string& name) {
  PipelineRow row{std::move(stage), name, "-", "-", kind, "-", "not found", ""};
  const auto library = catalog.load(kind, name);
  if (!library) row.reason = first_line(library.error().message());
  if (const Candidate* candidate = find_candidate(catalog, kind, name)) {
    const luna_note& note = *candidate->note;
    row.plugin = note.name;
    row.file = candidate->file.string();
    row.needed += ", " + contract(note.abi_major, note.abi_minor_needed);
    row.offered = std::string(note.kinds) + ", " + contract(LUNA_ABI_MAJOR, LUNA_ABI_MINOR);
    row.verdict = "refused";
    const std::string trust = plugin::describe_trust(note, catalog.trust());
    if (library) row.verdict = trust.empty() ? "ok" : "ok (" + trust + ")";
  } else if (!library && library.error().code() != Code::not_found) {
    row.verdict = "refused";  // several files
  }
  if (library) row.version = (*library)->descriptor().version;
  return row;
}

/// Whether data goes between devices of this process.
bool needs_transport(const config::Settings& settings) {
  return std::ranges::any_of(settings.models, [](const config::ModelSettings& model) {
    return model.has_joined_devices || model.devices.size() > 1;
  });
}

using Column = std::string PipelineRow::*;
struct Heading {
  const char* name;
  Column column;
};
constexpr std::array kColumns = {Heading{"stage", &PipelineRow::stage},
                                 Heading{"plugin", &PipelineRow::plugin},
                                 Heading{"file", &PipelineRow::file},
                                 Heading{"version", &PipelineRow::version},
                                 Heading{"needed", &PipelineRow::needed},
                                 Heading{"offered", &PipelineRow::offered},
                                 Heading{"verdict", &PipelineRow::verdict}};

}  // namespace

std::vector<PipelineRow> resolve_pipeline(const config::Settings& settings,
                                          plugin::Catalog& catalog) {
  std::vector<PipelineRow> rows;
  const auto add = [&](std::string stage, const char* kind, const std::string& name) {
    rows.push_back(resolve(catalog, std::move(stage), kind, name));
  };
  for (std::size_t i = 0; i < settings.devices.size(); ++i)
    add("device[" + std::to_string(i) + "] " + settings.devices[i].name,
        LUNA_KIND_BACKEND,
        settings.devices[i].backend);
  // Every format is made ready: which of them a file needs, its weights say.
  for (const std::string& name : catalog.names(LUNA_KIND_QUANT))
    add(std::string(kStageOfFormats), LUNA_KIND_QUANT, name);
  for (std::size_t i = 0; i < settings.stages.size(); ++i)
    add("stage[" + std::to_string(i) + "]", LUNA_KIND_ROLE, settings.stages[i].role);
  add("scheduler.policy", LUNA_KIND_SCHEDULER, settings.scheduler.policy);
  for (std::size_t i = 0; i < settings.scheduler.fallback.size(); ++i)
    add("scheduler.fallback[" + std::to_string(i) + "]",
        LUNA_KIND_SCHEDULER,
        settings.scheduler.fallback[i]);
  if (settings.transport.data != "auto") {
    add("transport.data", LUNA_KIND_TRANSPORT, settings.transport.data);
  } else if (needs_transport(settings)) {
    // The nearest of them is taken when devices are there.
    for (const std::string& name : catalog.names(LUNA_KIND_TRANSPORT))
      add("transport.data = auto", LUNA_KIND_TRANSPORT, name);
  }
  return rows;
}

void print_pipeline(const std::vector<PipelineRow>& rows, std::ostream& out) {
  std::array<std::size_t, kColumns.size()> widths{};
  for (std::size_t c = 0; c < kColumns.size(); ++c) {
    widths[c] = std::string_view(kColumns[c].name).size();
    for (const PipelineRow& row : rows)
      widths[c] = std::max(widths[c], (row.*kColumns[c].column).size());
  }
  const auto print = [&](const auto& text_of) {
    std::string line;
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      std::string cell = text_of(kColumns[c]);
      if (c + 1 < kColumns.size()) cell.resize(widths[c] + 2, ' ');
      line += cell;
    }
    out << line << '\n';
  };
  print([](const Heading& heading) { return std::string(heading.name); });
  for (const PipelineRow& row : rows)
    print([&row](const Heading& heading) { return row.*heading.column; });
}

boost::json::array pipeline_json(const std::vector<PipelineRow>& rows) {
  boost::json::array array;
  for (const PipelineRow& row : rows) {
    boost::json::object object;
    for (const Heading& heading : kColumns)
      object[heading.name] = row.*heading.column;
    object["reason"] = row.reason;
    array.push_back(std::move(object));
  }
  return array;
}

}  // namespace luna::app
