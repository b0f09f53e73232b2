#include "core/app/command_split.hpp"

#include "core/app/percent_line.hpp"
#include "core/app/shard_table.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/shard_check.hpp"
#include "core/model/shard_writer.hpp"

#include <boost/json.hpp>

#include <charconv>
#include <limits>
#include <ostream>
#include <vector>

namespace luna::app {
namespace {

/// The next number at the front of `text`, which loses it.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number == std::numeric_limits<std::uint32_t>::max())
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

/// "0..9,10..29": first and last layers. Whether they fit the model is not asked here.
Result<std::vector<model::LayerRange>> parse_layers(const std::string& layers) {
  const Error wrong(Code::invalid_argument,
                    "--layers " + layers + ": must be ranges such as 0..9,10..29");
  std::vector<model::LayerRange> ranges;
  std::string_view text = layers;
  do {
    const auto first = take_number(text);
    if (!first || !take(text, "..")) return wrong;
    const auto last = take_number(text);
    if (!last || *last < *first) return wrong;
    ranges.push_back({*first, *last - *first + 1});
  } while (take(text, ","));
  if (!text.empty()) return wrong;
  return ranges;
}

Result<model::SplitOptions> split_options(const SplitCommand& command) {
  model::SplitOptions options;
  options.source = command.model;
  options.force = command.force;
  if (!command.layers.empty()) {
    LUNA_TRY(options.layers, parse_layers(command.layers));
    options.n_shards = static_cast<std::uint32_t>(options.layers->size());
    if (command.n_shards.value_or(options.n_shards) != options.n_shards) {
      return Error{Code::invalid_argument,
                   "--num-shards " + std::to_string(*command.n_shards) + ": --layers has " +
                       std::to_string(options.n_shards) + " ranges"};
    }
  } else if (command.n_shards) {
    options.n_shards = *command.n_shards;
  } else {
    return Error{Code::invalid_argument, "either --num-shards or --layers must be given"};
  }
  options.folder = command.out;
  if (command.out.empty()) {
    // "models/shards/" is named by its folder.
    const auto named = (command.model / "").parent_path();
    options.folder = named.stem().string() + "-shards-" + std::to_string(options.n_shards);
  }
  return options;
}

model::ShardProgress progress_on(PercentLine& line, const std::function<bool()>& is_stopped) {
  return [&line, &is_stopped](double share) {
    line.show(share);
    return !(is_stopped && is_stopped());
  };
}

boost::json::object fault_json(const model::ShardFault& fault) {
  boost::json::object object{{"kind", std::string(fault_name(fault.kind))},
                             {"file", fault.file},
                             {"message", fault.message}};
  if (fault.shard_idx) object["shard"] = *fault.shard_idx;
  if (!fault.tensor.empty()) object["tensor"] = fault.tensor;
  if (!fault.expected.empty()) object["expected"] = fault.expected;
  if (!fault.found.empty()) object["found"] = fault.found;
  return object;
}

void print_check(const model::ShardCheck& check,
                 const VerifyCommand& command,
                 const CommandStreams& streams) {
  const std::size_t n_shards = command.shard ? 1 : check.manifest.shards.size();
  if (command.json) {
    boost::json::array faults;
    for (const model::ShardFault& fault : check.faults)
      faults.push_back(fault_json(fault));
    streams.out << boost::json::serialize(boost::json::object{{"ok", check.faults.empty()},
                                                              {"folder", command.folder.string()},
                                                              {"n_shards", n_shards},
                                                              {"bytes", check.n_bytes},
                                                              {"faults", std::move(faults)}})
                << '\n';
    return;
  }
  for (const model::ShardFault& fault : check.faults)
    streams.err << fault_name(fault.kind) << ": " << fault.message << '\n';
  if (!check.faults.empty()) return;
  streams.out << (command.shard ? "shard " + std::to_string(*command.shard) + " is right: "
                                : "all " + std::to_string(n_shards) + " shards are right: ")
              << model::bytes_text(check.n_bytes) << " compared\n";
}

}  // namespace

int run_split(const SplitCommand& command, const CommandStreams& streams) {
  auto options = split_options(command);
  if (!options) return fail(streams, options.error());
  const auto manifest = [&] {
    PercentLine line(streams.err, "split");
    options->progress = progress_on(line, command.is_stopped);
    return model::split_model(*options);
  }();
  if (!manifest) return fail(streams, manifest.error());
  if (command.json) {
    streams.out << boost::json::serialize(shards_json(*manifest, options->folder)) << '\n';
  } else {
    print_shards(*manifest, options->folder, streams.out);
    streams.out << "\nin " << options->folder.string() << '\n';
  }
  return kExitFine;
}

int run_verify(const VerifyCommand& command, const CommandStreams& streams) {
  const auto check = [&] {
    PercentLine line(streams.err, "verify");
    model::ShardCheckOptions options;
    options.folder = command.folder;
    if (command.shard) options.shard_idx = *command.shard;
    options.progress = progress_on(line, command.is_stopped);
    return model::check_shards(options);
  }();
  if (check) {
    print_check(*check, command, streams);
    return check->faults.empty() ? kExitFine : kExitFailed;
  }
  if (command.json) {
    const boost::json::object fault{{"kind", "manifest"}, {"message", check.error().message()}};
    streams.out << boost::json::serialize(
                       boost::json::object{{"ok", false},
                                           {"folder", command.folder.string()},
                                           {"faults", boost::json::array{fault}}})
                << '\n';
  }
  return fail(streams, check.error());
}

}  // namespace luna::app
