#include "campaign.hpp"

#include "curve_plot.hpp"
#include "journal.hpp"
#include "largest_request.hpp"
#include "results.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <system_error>
#include <utility>

namespace luna::sol_against_luna {
namespace {

namespace json = boost::json;

std::string formatted(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

/// P95 by offered rate, of the journal's runs whose keys begin so; runs of a rate count together.
Curve p95_curve(const Journal& journal, const std::string& key, std::string name) {
  std::map<double, RunFigures> by_rate;
  for (auto at = journal.runs().lower_bound(key);
       at != journal.runs().end() && at->first.starts_with(key);
       ++at)
    if (!at->second.is_given_up) by_rate[at->second.rate_per_s].add(at->second);
  Curve curve{.name = std::move(name), .points = {}};
  for (const auto& [rate, figures] : by_rate)
    curve.points.emplace_back(rate, figures.p95_ms());
  return curve;
}

class Campaign {
 public:
  Campaign(const CampaignOptions& options, Journal journal)
      : options_(options), journal_(std::move(journal)), time_(options.time_max) {}

  Result<void> run() {
    for (const std::uint32_t n_devices : options_.n_devices) {
      DeploymentPlan plan = options_.plan;
      plan.n_devices = n_devices;
      for (const double share : options_.weight_shares) {
        if (options_.with_largest) {
          LUNA_TRY(add_largest(plan, share));
        }
        for (const Load* load : options_.loads)
          LUNA_TRY(add_point({load, share}, plan));
      }
    }
    return {};
  }

 private:
  Result<void> add_largest(const DeploymentPlan& plan, double share) {
    LUNA_TRY(time_.begin(30));
    LUNA_TRY(const LargestRow row, measure_largest(plan, share));
    std::cout << to_text(row) << std::flush;
    rows_.push_back(to_json(row));
    return write_rows();
  }

  Result<void> add_point(const PointPlace& place, const DeploymentPlan& plan) {
    LoadPoint point(place, plan, {options_.measure, journal_, time_});
    LUNA_TRY(const std::vector<PointResult> results, point.measure());
    for (const PointResult& result : results) {
      std::cout << to_text(result) << std::flush;
      rows_.push_back(to_json(result));
      if (const auto ratio = result.ratio())
        ratios_[{result.load, result.limit_factor}][result.n_devices].emplace_back(
            result.weight_share, *ratio);
    }
    LUNA_TRY(write_rows());
    if (options_.plot_folder.empty()) return {};
    LUNA_TRY(plot_point(point.runs(), results));
    return plot_ratios();
  }

  Result<void> write_rows() {
    if (options_.json_file.empty()) return {};
    const json::object root = {{"rows", rows_}};
    return write_file(options_.json_file, json::serialize(root) + '\n');
  }

  Result<void> plot_point(const PointRuns& runs, const std::vector<PointResult>& results) {
    const PointResult& first = results.front();
    Picture picture;
    picture.title = runs.key();
    picture.x_name = "requests a second, offered";
    picture.y_name = "P95 of the whole request, ms";
    constexpr std::array<const char*, kSides> kNames = {"Sol", "Luna", "Luna, tensor split"};
    for (std::size_t s = 0; s < kSides; ++s) {
      const std::optional<SideResult>& side = *first.sides()[s];
      if (!side) continue;
      const std::string of_side = runs.run_key(static_cast<Side>(s), side->routing);
      picture.curves.push_back(p95_curve(journal_, of_side, kNames[s]));
    }
    for (const PointResult& result : results) {
      picture.levels.emplace_back(result.p95_limit_ms(),
                                  formatted(result.limit_factor) + " x alone");
      picture.y_max = std::max(picture.y_max.value_or(0), 1.5 * result.p95_limit_ms());
    }
    return write_file(
        options_.plot_folder / (first.load + "-" + std::to_string(first.n_devices) +
                                "-devices-share-" + formatted(100 * first.weight_share) + ".svg"),
        draw(picture));
  }

  Result<void> plot_ratios() {
    for (const auto& [of, by_devices] : ratios_) {
      Picture picture;
      picture.title = of.first + ": rate of Luna over that of Sol, P95 within " +
                      formatted(of.second) + " x a request alone";
      picture.x_name = "weights' share of a device";
      picture.y_name = "ratio";
      picture.levels.emplace_back(1.0, "as many");
      for (const auto& [n_devices, points] : by_devices) {
        auto sorted = points;
        std::sort(sorted.begin(), sorted.end());
        picture.curves.push_back({std::to_string(n_devices) + " devices", std::move(sorted)});
      }
      LUNA_TRY(write_file(
          options_.plot_folder / ("ratio-" + of.first + "-" + formatted(of.second) + "x.svg"),
          draw(picture)));
    }
    return {};
  }

  const CampaignOptions& options_;
  Journal journal_;
  TimeBox time_;
  json::array rows_;
  /// By load and limit: by devices: share and ratio.
  std::map<std::pair<std::string, double>,
           std::map<std::uint32_t, std::vector<std::pair<double, double>>>>
      ratios_;
};

}  // namespace

Result<bool> run_campaign(const CampaignOptions& options) {
  if (!options.plot_folder.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(options.plot_folder, failed);
    if (failed) return Error{Code::io, options.plot_folder.string() + ": " + failed.message()};
  }
  LUNA_TRY(Journal journal, Journal::open(options.journal_file));
  Campaign campaign(options, std::move(journal));
  const Result<void> done = campaign.run();
  if (done) return true;
  if (done.error().code() != Code::timeout) return done.error();
  std::cout << done.error().message() << std::endl;
  return false;
}

}  // namespace luna::sol_against_luna
