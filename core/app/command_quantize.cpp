#include "core/app/command_quantize.hpp"

#include "core/app/percent_line.hpp"
#include "core/base/clock.hpp"
#include "core/base/mapped_file.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/model_quantizer.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/host_services.hpp"
#include "core/text/tokenizer.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <ostream>

namespace luna::app {
namespace {

constexpr std::size_t kCalibrationTokensMax = 512;  // AWQ's own length of a sample

/// The first tokens of a text.
Result<std::vector<std::uint32_t>> read_calibration(const QuantizeCommand& command) {
  LUNA_TRY(const MappedFile file, MappedFile::open(command.calibration));
  LUNA_TRY(text::Vocabulary vocabulary, model::load_vocabulary(command.model));
  LUNA_TRY(const auto tokenizer, text::Tokenizer::create(std::move(vocabulary)));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  LUNA_TRY(
      auto ids,
      tokenizer.encode(text.substr(0, kCalibrationTokensMax * 64), text::SpecialTokens::plain));
  ids.resize(std::min(ids.size(), kCalibrationTokensMax));
  return ids;
}

Result<model::QuantizeReport> quantize(const QuantizeCommand& command,
                                       const CommandStreams& streams) {
  RealClock clock;
  plugin::HostServices services({&clock, 0, {}});
  plugin::Catalog::Options search;
  search.folders = plugin::search_folders(command.plugin_folders, {});
  search.services = &services;
  const auto catalog = plugin::Catalog::scan(std::move(search));
  std::vector<plugin::Instance<luna_quant_if>> quants;
  for (const std::string& name : catalog->names(LUNA_KIND_QUANT)) {
    LUNA_TRY(auto quant, catalog->create<luna_quant_if>(name, config::RawGroup{}));
    quants.push_back(std::move(quant));
  }
  PercentLine line(streams.err, "quantize");
  model::QuantizeOptions options;
  options.source = command.model;
  options.out = command.out;
  options.type = command.type;
  options.group = command.group;
  if (!command.calibration.empty()) {
    LUNA_TRY(options.calibration, read_calibration(command));
  }
  options.force = command.force;
  options.progress = [&](double share) {
    line.show(share);
    return !(command.is_stopped && command.is_stopped());
  };
  return model::quantize_model(options, quants);
}

}  // namespace

int run_quantize(const QuantizeCommand& command, const CommandStreams& streams) {
  const auto report = quantize(command, streams);
  if (!report) return fail(streams, report.error());
  if (command.json) {
    streams.out << boost::json::serialize(
                       boost::json::object{{"out", command.out.string()},
                                           {"type", command.type},
                                           {"n_weights", report->n_weights},
                                           {"source_bytes", report->source_bytes},
                                           {"bytes", report->n_bytes}})
                << '\n';
  } else {
    streams.out << command.out.string() << ": " << report->n_weights << " weights as "
                << command.type << ", " << model::bytes_text(report->n_bytes) << " of "
                << model::bytes_text(report->source_bytes) << '\n';
  }
  return kExitFine;
}

}  // namespace luna::app
