#include "results.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace luna::sol_against_luna {
namespace {

namespace json = boost::json;

template <typename Figure>
double median_of(const SideResult& side, Figure&& figure) {
  std::vector<double> values;
  for (const RunFigures& round : side.rounds)
    values.push_back(figure(round));
  return median(std::move(values));
}

json::value number(double value) {
  return std::isfinite(value) ? json::value(value) : json::value();
}

std::size_t n_requests(const RunFigures& round) {
  return round.e2e_ms.size() + round.n_failed;
}

json::value number(std::optional<double> value) {
  return value ? number(*value) : json::value();
}

json::array memory_array(const std::vector<model::ShardMemory>& shards) {
  json::array devices;
  for (const model::ShardMemory& memory : shards)
    devices.push_back(json::object{{"weights_bytes", memory.weights},
                                   {"scratch_bytes", memory.scratch},
                                   {"outputs_bytes", memory.logits + memory.candidates},
                                   {"messages_bytes", memory.messages},
                                   {"kv_bytes", memory.kv}});
  return devices;
}

json::object predicted_object(const PredictedSide& side) {
  return {{"rate_per_s", side.rps},
          {"hit_ratio", side.hit_ratio},
          {"sequences_a_step", side.step_seqs},
          {"recomputed_tokens_a_request", side.recomputed_tokens}};
}

json::object side_object(const SideResult& side, const PointResult& point) {
  json::array p95s, busy;
  for (const RunFigures& round : side.rounds)
    p95s.push_back(number(round.p95_ms()));
  const RunFigures& first = side.rounds.front();
  for (std::size_t device = 0; device < first.busy_s.size(); ++device)
    busy.push_back(number(median_of(
        side, [&](const RunFigures& round) { return round.busy_s[device] / round.window_s; })));
  std::size_t n_failed = 0;
  for (const RunFigures& round : side.rounds)
    n_failed += round.n_failed;
  return {
      {"rate_per_s", side.rate_per_s},
      {"routing", routing_name(side.routing)},
      {"requests_a_round", n_requests(first)},
      {"failed", n_failed},
      {"p95_ms", p95s},
      {"tokens_per_s",
       number(median_of(side, [](const RunFigures& r) { return r.output_tokens_per_s(); }))},
      {"hit_ratio", number(median_of(side, [](const RunFigures& r) { return r.hit_ratio(); }))},
      {"sequences_a_step",
       number(median_of(side, [](const RunFigures& r) { return r.seqs_per_step(); }))},
      {"busy_share",
       number(
           median_of(side, [&](const RunFigures& r) { return r.busy_ratio(point.n_parallel); }))},
      {"device_busy", busy},
      {"recomputed_tokens",
       number(median_of(
           side, [](const RunFigures& r) { return static_cast<double>(r.n_recomputed_tokens); }))},
      {"other_processes", number(median_of(side, [&](const RunFigures& r) {
         return r.others_ratio(point.n_cores);
       }))}};
}

void side_text(std::ostream& out, const char* name, const SideResult& side, const PointResult& p) {
  const auto percent = [&](double ratio) { return std::lround(100 * ratio); };
  out << "  " << name << ' ' << std::setprecision(3) << side.rate_per_s << "/s, P95 "
      << std::lround(median_of(side, [](const RunFigures& r) { return r.p95_ms(); })) << " ms, "
      << std::lround(median_of(side, [](const RunFigures& r) { return r.output_tokens_per_s(); }))
      << " tokens/s, hits "
      << percent(median_of(side, [](const RunFigures& r) { return r.hit_ratio(); })) << " %, "
      << median_of(side, [](const RunFigures& r) { return r.seqs_per_step(); })
      << " sequences a step, busy "
      << percent(median_of(side, [&](const RunFigures& r) { return r.busy_ratio(p.n_parallel); }))
      << " %, others took "
      << percent(median_of(side, [&](const RunFigures& r) { return r.others_ratio(p.n_cores); }))
      << " %, " << side.rounds.size() << " x " << n_requests(side.rounds.front()) << " requests";
  if (side.rounds.front().busy_s.size() > 1 || p.sol) out << ", " << routing_name(side.routing);
  out << '\n';
}

void predicted_text(std::ostream& out, const char* name, const PredictedSide& side) {
  out << "  model says: " << name << ' ' << side.rps << "/s, hits "
      << std::lround(100 * side.hit_ratio) << " %, " << side.step_seqs << " sequences a step, "
      << std::lround(side.recomputed_tokens) << " tokens recomputed a request\n";
}

}  // namespace

std::optional<double> PointResult::ratio() const {
  if (!sol || !luna) return std::nullopt;
  return luna->rate_per_s / sol->rate_per_s;
}

std::optional<double> PointResult::tensor_ratio() const {
  if (!sol || !tensor) return std::nullopt;
  return tensor->rate_per_s / sol->rate_per_s;
}

std::optional<double> PointResult::predicted_ratio() const {
  if (predicted.sol.rps <= 0 || predicted.luna.rps <= 0) return std::nullopt;
  return predicted.luna.rps / predicted.sol.rps;
}

std::optional<double> PointResult::auto_ratio() const {
  const double sol_rps = sol ? sol->rate_per_s : 0.0;
  const double luna_rps = luna ? luna->rate_per_s : 0.0;
  const double best = std::max(sol_rps, luna_rps);
  if (best <= 0) return std::nullopt;
  if (predicted.choice == model::Layout::replicas) return sol_rps / best;
  if (predicted.choice == model::Layout::pipeline) return luna_rps / best;
  if (predicted.choice == model::Layout::tensor && tensor) return tensor->rate_per_s / best;
  return std::nullopt;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

json::object to_json(const PointResult& point) {
  json::object row = {
      {"load", point.load},
      {"devices", point.n_devices},
      {"weight_share", point.weight_share},
      {"limit_factor", point.limit_factor},
      {"p95_limit_ms", point.p95_limit_ms()},
      {"alone_ms", point.alone_ms},
      {"sol_rps", point.sol ? point.sol->rate_per_s : 0.0},
      {"luna_rps", point.luna ? point.luna->rate_per_s : 0.0},
      {"tensor_rps", point.tensor ? json::value(point.tensor->rate_per_s) : json::value()},
      {"ratio", number(point.ratio())},
      {"tensor_ratio", number(point.tensor_ratio())},
      {"predicted_sol_rps", point.predicted.sol.rps},
      {"predicted_luna_rps", point.predicted.luna.rps},
      {"predicted_ratio", number(point.predicted_ratio())},
      {"predicted_alone_ms", point.predicted.alone_ms},
      {"predicted_sol", predicted_object(point.predicted.sol)},
      {"predicted_luna", predicted_object(point.predicted.luna)},
      {"predicted_tensor", predicted_object(point.predicted.tensor)},
      {"auto_layout",
       point.predicted.choice ? json::value(model::layout_name(*point.predicted.choice))
                              : json::value()},
      {"auto_ratio", number(point.auto_ratio())},
      {"of_search", point.is_of_search},
      {"device_bytes", point.device_bytes},
      {"sol_memory", memory_array(point.sol_memory)},
      {"luna_memory", memory_array(point.luna_memory)},
      {"sol_kv_tokens_a_copy", point.sol_kv_tokens},
      {"luna_kv_tokens", point.luna_kv_tokens},
      {"sessions", point.n_sessions},
      {"shortened_ratio", point.shortened_ratio}};
  for (std::size_t s = 0; s < kSides; ++s) {
    const std::string name(kSideNames[s]);
    if (*point.sides()[s]) row[name] = side_object(**point.sides()[s], point);
    if (!point.refusals[s].empty()) row[name + "_refusal"] = point.refusals[s];
  }
  return row;
}

std::string to_text(const PointResult& point) {
  std::ostringstream out;
  out << std::setprecision(3) << point.load << ", " << point.n_devices << " devices of "
      << model::bytes_text(point.device_bytes) << ", share " << point.weight_share << ", limit "
      << std::lround(point.p95_limit_ms()) << " ms (" << point.limit_factor << " x alone)";
  if (point.n_sessions > 0) out << ", " << point.n_sessions << " sessions";
  out << ", KV " << point.sol_kv_tokens << " tokens a copy and " << point.luna_kv_tokens
      << " together";
  if (point.shortened_ratio > 0)
    out << ", " << std::lround(100 * point.shortened_ratio) << " % of the requests shortened";
  if (point.ratio()) out << ": " << *point.ratio() << " x";
  if (point.predicted_ratio()) out << ", predicted " << *point.predicted_ratio() << " x";
  if (point.tensor_ratio()) out << ", as a tensor split " << *point.tensor_ratio() << " x";
  if (point.predicted.choice) out << ", auto takes " << model::layout_name(*point.predicted.choice);
  if (point.auto_ratio()) out << " (" << *point.auto_ratio() << " of the better)";
  out << (point.is_of_search ? " (search only)\n" : "\n");
  constexpr std::array<const char*, kSides> kNames = {"Sol   ", "Luna  ", "tensor"};
  for (std::size_t s = 0; s < kSides; ++s) {
    if (*point.sides()[s]) side_text(out, kNames[s], **point.sides()[s], point);
    if (!point.refusals[s].empty())
      out << "  " << kNames[s] << " none: " << point.refusals[s] << '\n';
  }
  if (point.predicted.choice)
    for (std::size_t s = 0; s < kSides; ++s)
      predicted_text(out, kNames[s], *point.predicted.sides()[s]);
  return out.str();
}

}  // namespace luna::sol_against_luna
