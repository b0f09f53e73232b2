// Sol against Luna: N whole copies of a model, each on a device of its own, against one copy over
// all of them. README.md beside this file says how it is measured and read.
#include "campaign.hpp"
#include "core/app/known_models.hpp"
#include "core/app/stop_signal.hpp"
#include "core/base/log.hpp"
#include "core/config/settings_reader.hpp"
#include "prediction_table.hpp"
#include "tests/support/program_options.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

namespace luna::sol_against_luna {
namespace {

constexpr int kExitFine = 0, kExitFailed = 1, kExitUnfinished = 3;

std::vector<std::string> split(const std::string& list, char at) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, at);)
    parts.push_back(part);
  return parts;
}

/// A number within bounds.
Result<double> number(const std::string& option, const std::string& text, double min, double max) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max)) {
    std::ostringstream message;
    message << option << ' ' << text << ": must be a number of " << min << " to " << max;
    return Error{Code::invalid_argument, message.str()};
  }
  return value;
}

Result<std::vector<double>> numbers(const std::string& option,
                                    const std::string& list,
                                    double min,
                                    double max) {
  std::vector<double> values;
  for (const std::string& part : split(list, ',')) {
    LUNA_TRY(const double value, number(option, part, min, max));
    values.push_back(value);
  }
  if (values.empty()) return Error{Code::invalid_argument, option + ": needs a value"};
  return values;
}

/// "0.4..0.9" in steps of 0.1, or a list.
Result<std::vector<double>> read_shares(const std::string& text) {
  constexpr double kStep = 0.1, kMin = 0.05, kMax = 1.0;
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return numbers("--shares", text, kMin, kMax);
  LUNA_TRY(const double first, number("--shares", text.substr(0, dots), kMin, kMax));
  LUNA_TRY(const double last, number("--shares", text.substr(dots + 2), kMin, kMax));
  std::vector<double> shares;
  for (int i = 0; first + i * kStep <= last + kStep / 4; ++i)
    shares.push_back(first + i * kStep);
  return shares;
}

Result<void> read_loads(const std::string& text, CampaignOptions& options) {
  for (const std::string& name : split(text, ',')) {
    if (name == "largest") {
      options.with_largest = true;
    } else if (name == "all") {
      for (const Load& load : all_loads())
        options.loads.push_back(&load);
    } else if (const Load* load = find_load(name); load != nullptr) {
      options.loads.push_back(load);
    } else {
      return Error{Code::invalid_argument,
                   "--load " + name + ": must be turns, long, decode, chat, all or largest"};
    }
  }
  return {};
}

/// "sol=4.1,luna=5.2": requests a second by side.
Result<std::map<Side, double>> read_rates(const std::string& text) {
  constexpr double kMin = 0.01, kMax = 1e6;
  std::map<Side, double> rates;
  for (const std::string& part : split(text, ',')) {
    const std::size_t at = part.find('=');
    const auto* const name = std::find(kSideNames.begin(), kSideNames.end(), part.substr(0, at));
    if (at == std::string::npos || name == kSideNames.end())
      return Error{Code::invalid_argument,
                   "--rates " + part + ": must be sol=RATE, luna=RATE or tensor=RATE"};
    LUNA_TRY(rates[static_cast<Side>(name - kSideNames.begin())],
             number("--rates", part.substr(at + 1), kMin, kMax));
  }
  return rates;
}

Result<void> read_measure(const ProgramOptions& given, MeasureOptions& measure) {
  LUNA_TRY(measure.limit_factors, numbers("--limit-factor", given.text("--limit-factor"), 1, 1000));
  LUNA_TRY(measure.n_requests, given.number("--requests"));
  LUNA_TRY(measure.n_search_requests, given.number("--search-requests"));
  LUNA_TRY(const double n_rounds, number("--rounds", given.text("--rounds"), 0, 99));
  measure.n_rounds = static_cast<std::size_t>(n_rounds);
  if (!given.text("--round-seconds").empty()) {
    LUNA_TRY(measure.round_s_max,
             number("--round-seconds", given.text("--round-seconds"), 1, 86400));
  }
  LUNA_TRY(measure.slice_s, number("--slice", given.text("--slice"), 1, 86400));
  LUNA_TRY(measure.seed, given.number("--seed"));
  LUNA_TRY(measure.given_rates, read_rates(given.text("--rates")));
  if (!measure.given_rates.empty() && (n_rounds == 0 || measure.limit_factors.size() > 1))
    return Error{Code::invalid_argument, "--rates: needs rounds, and one limit to hold them to"};
  return {};
}

Result<DeploymentPlan> read_plan(const ProgramOptions& given) {
  DeploymentPlan plan;
  LUNA_TRY(plan.base, config::read_settings(given.text("--config")));
  if (plan.base.devices.size() != 1 || plan.base.models.size() != 1)
    return Error{Code::invalid_argument,
                 given.text("--config") + ": must have one [[device]] and one [[model]]"};
  if (plan.base.devices.front().n_threads == 0)
    return Error{Code::invalid_argument,
                 given.text("--config") + ": the device must say how many threads it has"};
  if (!given.text("--model").empty()) plan.base.models.front().path = given.text("--model");
  plan.luna_policy = given.text("--policy");
  if (!given.text("--layers").empty()) {
    LUNA_TRY(const auto layers, numbers("--layers", given.text("--layers"), 1, 1000));
    plan.luna_layers.emplace(layers.begin(), layers.end());
  }
  plan.plugin_folder = given.text("--plugins");
  const std::string& weights = given.text("--weights");
  if (weights != "shared" && weights != "private")
    return Error{Code::invalid_argument, "--weights " + weights + ": must be shared or private"};
  plan.shares_weights = weights == "shared";
  return plan;
}

Result<CampaignOptions> read_options(std::span<char*> arguments) {
  LUNA_TRY(
      const ProgramOptions given,
      ProgramOptions::read(arguments,
                           {{"--load", "all"},
                            {"--devices", "2,4"},
                            {"--shares", "0.4..0.9"},
                            {"--limit-factor", "10"},
                            {"--requests", "1000"},
                            {"--rounds", "3"},
                            {"--round-seconds", ""},
                            {"--rates", ""},
                            {"--search-requests", "200"},
                            {"--slice", "60"},
                            {"--seconds", ""},
                            {"--seed", "1"},
                            {"--weights", "shared"},
                            {"--policy", "flowsplit"},
                            {"--predict", "beside"},
                            {"--layers", ""},
                            {"--config", LUNA_SOURCE_DIR "/bench/sol-against-luna/deployment.toml"},
                            {"--model", ""},
                            {"--plugins", LUNA_PLUGIN_DIR},
                            {"--json", ""},
                            {"--resume", ""},
                            {"--plot", ""}},
                           {}));
  CampaignOptions options;
  LUNA_TRY(read_loads(given.text("--load"), options));
  LUNA_TRY(const auto devices, numbers("--devices", given.text("--devices"), 2, 8));
  options.n_devices.assign(devices.begin(), devices.end());
  LUNA_TRY(options.weight_shares, read_shares(given.text("--shares")));
  LUNA_TRY(read_measure(given, options.measure));
  if (!given.text("--seconds").empty()) {
    LUNA_TRY(const std::uint32_t seconds, given.number("--seconds"));
    options.time_max = std::chrono::seconds(seconds);
  }
  LUNA_TRY(options.plan, read_plan(given));
  options.json_file = given.text("--json");
  options.journal_file = given.text("--resume");
  options.plot_folder = given.text("--plot");
  const std::string& predict = given.text("--predict");
  if (predict != "beside" && predict != "only")
    return Error{Code::invalid_argument, "--predict " + predict + ": must be beside or only"};
  options.predicts_only = predict == "only";
  return options;
}

Result<bool> run(std::span<char*> arguments) {
  init_logging(spdlog::level::warn);
  LUNA_TRY(const CampaignOptions options, read_options(arguments));
  if (!options.predicts_only) return run_campaign(options);
  LUNA_TRY(print_predictions(options));
  return true;
}

}  // namespace
}  // namespace luna::sol_against_luna

int main(int argc, char** argv) {
  using namespace luna::sol_against_luna;
  luna::app::StopSignal::install();
  const luna::Result<bool> done = run({argv, static_cast<std::size_t>(argc)});
  if (!done) {
    std::cerr << "bench_sol_against_luna: " << done.error().message() << "\n";
    return kExitFailed;
  }
  return *done ? kExitFine : kExitUnfinished;
}
