// Which plugin serves which place of a configuration: the table of `luna check`.
#pragma once

#include "core/config/settings.hpp"
#include "core/plugin/catalog.hpp"

#include <boost/json/array.hpp>

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace luna::app {

/// PipelineRow::stage of weight formats: all that are there are made ready at the start.
inline constexpr std::string_view kStageOfFormats = "weights";

/// One place and what was found for it. "-": there is nothing to say.
struct PipelineRow {
  std::string stage;   ///< as the TOML calls it: "device[0] a0", "stage[1]", "scheduler.policy"
  std::string plugin;  ///< short name; as it was written, where nothing was found
  std::string file;
  std::string version;
  std::string needed;   ///< the kind that the place takes, and the contract the plugin is made for
  std::string offered;  ///< the kinds that the file has, and the contract of this program
  std::string verdict;  ///< "ok", "ok (pinned, checked)", "refused", "not found"
  std::string reason;   ///< of another verdict than ok, in a line; empty

  [[nodiscard]] bool is_ok() const { return verdict.starts_with("ok"); }
};

/// Loads and queries each plugin that the program would load for these settings; starts and creates
/// none, and opens no device. [start-up]
std::vector<PipelineRow> resolve_pipeline(const config::Settings& settings,
                                          plugin::Catalog& catalog);

/// Columns of equal width.
void print_pipeline(const std::vector<PipelineRow>& rows, std::ostream& out);

/// An object a row, with the names of PipelineRow's members.
boost::json::array pipeline_json(const std::vector<PipelineRow>& rows);

}  // namespace luna::app
