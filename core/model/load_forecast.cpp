#include "core/model/load_forecast.hpp"

#include "core/base/assert.hpp"
#include "core/base/counter_rng.hpp"
#include "core/model/virtual_copy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace luna::model {
namespace {

// Streams of random numbers, one for each thing that is drawn.
constexpr std::uint32_t kArrivals = 0;
constexpr std::uint32_t kLengths = 1;
constexpr std::uint32_t kHistories = 2;

constexpr double kNsPerS = 1e9;
// Requests at the start of a run, as the queue fills, that no percentile counts.
constexpr std::uint32_t kWarmUpShare = 10;
// Arrivals of users who all wait for an answer already are no requests; so many of them, and the
// rate says nothing any more.
constexpr std::uint32_t kArrivalsPerRequestMax = 64;

/// Uniform between half and one and a half of the mean, 1 at least.
std::uint32_t draw_length(std::uint32_t mean, double uniform) {
  if (mean == 0) return 0;
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(mean * (0.5 + uniform) + 0.5));
}

std::uint32_t draw_history(const ExpectedLoad& load, std::uint64_t seed, std::uint32_t session) {
  return draw_length(load.reused, uniform01(seed, kHistories, session).first);
}

double stage_ns(const StageCost& stage, const StepWork& work) {
  const double n_rows = work.n_decoding + work.n_prompt_rows;
  const double n_out = work.n_decoding + work.n_prompt_ends;
  const DeviceSpeed& speed = stage.speed;
  return speed.step_ns + stage.n_layers * speed.layer.at(n_rows) +
         stage.n_layers * speed.kv_token_ns * work.n_kv_tokens +
         stage.n_layers * speed.prompt_kv_token_ns * work.n_prompt_kv_tokens +
         stage.head_share * speed.head.at(n_out) +
         stage.embedding_share * speed.embedding_row_ns * n_rows;
}

/// A run in progress.
class LoadRun {
 public:
  LoadRun(std::span<const CopyForecast> copies,
          const ExpectedLoad& load,
          double rate_per_s,
          const ForecastOptions& options)
      : load_(load), options_(options), gap_ns_(kNsPerS / rate_per_s), is_busy_(load.users) {
    for (const CopyForecast& copy : copies) {
      copies_.emplace_back(copy, requests_);
      works_.emplace_back();
    }
    requests_.reserve(options.n_requests);
    for (std::uint32_t session = 0; session < load.users; ++session)
      copies_[session % copies_.size()].warm(session, draw_history(load, options.seed, session));
  }

  LoadForecast run() {
    arrive_next();
    while (n_open_ > 0 || has_arrival_) {
      const double end = next_end();
      if (has_arrival_ && arrival_ns_ <= end) {
        advance(arrival_ns_);
        take_arrival();
      } else {
        advance(end);
        end_steps();
      }
    }
    return summary();
  }

 private:
  /// A copy's step under way; at full speed it would take so much longer.
  struct Work {
    std::optional<double> left_ns;
  };

  [[nodiscard]] std::size_t n_computing() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(works_, [](const Work& work) { return work.left_ns.has_value(); }));
  }
  [[nodiscard]] double speed() const {
    const auto n = static_cast<double>(n_computing());
    return n <= options_.n_copies_at_once ? 1.0 : options_.n_copies_at_once / n;
  }
  [[nodiscard]] double next_end() const {
    double least = std::numeric_limits<double>::infinity();
    for (const Work& work : works_)
      if (work.left_ns) least = std::min(least, *work.left_ns);
    return now_ns_ + least / speed();
  }
  void advance(double to_ns) {
    const double done_ns = (to_ns - now_ns_) * speed();
    busy_ns_ += (to_ns - now_ns_) * static_cast<double>(n_computing());
    for (Work& work : works_)
      if (work.left_ns) *work.left_ns -= done_ns;
    now_ns_ = to_ns;
  }

  void arrive_next() {
    has_arrival_ = requests_.size() + n_refused_ < options_.n_requests &&
                   n_arrivals_ < std::uint64_t{options_.n_requests} * kArrivalsPerRequestMax;
    if (!has_arrival_) return;
    const double uniform = uniform01(options_.seed, kArrivals, n_arrivals_).first;
    arrival_ns_ = now_ns_ - std::log1p(-uniform) * gap_ns_;
  }

  void take_arrival() {
    const double who = uniform01(options_.seed, kArrivals, n_arrivals_++).second;
    last_arrival_ns_ = now_ns_;
    if (!load_.users_wait) {
      submit(std::min(load_.users - 1, static_cast<std::uint32_t>(who * load_.users)));
    } else if (n_open_ < load_.users) {
      submit(idle_user(who));
    }
    arrive_next();
  }
  [[nodiscard]] std::uint32_t idle_user(double uniform) const {
    auto user = static_cast<std::uint32_t>(uniform * load_.users);
    while (is_busy_[user])
      user = (user + 1) % load_.users;
    return user;
  }

  void submit(std::uint32_t user) {
    VirtualRequest request;
    request.arrived_ns = now_ns_;
    request.session = user;
    request.n_history = draw_history(load_, options_.seed, user);
    const auto lengths = uniform01(options_.seed, kLengths, requests_.size() + n_refused_);
    request.n_prompt = draw_length(load_.prompt, lengths.first);
    request.n_output = draw_length(load_.output, lengths.second);
    const std::size_t copy = route(user);
    if (!copies_[copy].has_room_ever(request)) {
      ++n_refused_;
      return;
    }
    is_busy_[user] = true;
    ++n_open_;
    requests_.push_back(request);
    copies_[copy].add(static_cast<std::uint32_t>(requests_.size() - 1));
    if (!works_[copy].left_ns) works_[copy].left_ns = copies_[copy].begin_step();
  }
  [[nodiscard]] std::size_t route(std::uint32_t user) const {
    if (load_.reused > 0) return user % copies_.size();
    const auto least = std::ranges::min_element(
        copies_, {}, [](const VirtualCopy& copy) { return copy.n_tokens_outstanding(); });
    return static_cast<std::size_t>(least - copies_.begin());
  }

  void end_steps() {
    for (std::size_t c = 0; c < copies_.size(); ++c) {
      if (!works_[c].left_ns || *works_[c].left_ns > 1e-3) continue;  // ns: what rounding leaves
      finished_.clear();
      copies_[c].end_step(finished_);
      for (const std::uint32_t idx : finished_)
        finish(requests_[idx], idx);
      works_[c].left_ns.reset();
      if (copies_[c].has_work()) works_[c].left_ns = copies_[c].begin_step();
    }
  }
  void finish(const VirtualRequest& request, std::uint32_t idx) {
    --n_open_;
    is_busy_[request.session] = false;
    if (now_ns_ <= last_arrival_ns_ || has_arrival_) {
      ++n_answered_;
      n_answer_tokens_ += request.n_output;
    }
    if (idx >= options_.n_requests / kWarmUpShare)
      times_ns_.push_back(now_ns_ - request.arrived_ns);
  }

  [[nodiscard]] LoadForecast summary() {
    LoadForecast f;
    const double span_s = last_arrival_ns_ / kNsPerS;
    f.requests_per_s = static_cast<double>(n_answered_) / span_s;
    f.tokens_per_s = static_cast<double>(n_answer_tokens_) / span_s;
    f.refused_ratio = static_cast<double>(n_refused_) / options_.n_requests;
    f.busy_ratio = busy_ns_ / (now_ns_ * static_cast<double>(copies_.size()));
    VirtualCopy::Totals all;
    for (const VirtualCopy& copy : copies_) {
      all.n_reused += copy.totals().n_reused;
      all.n_found += copy.totals().n_found;
      all.n_decoded += copy.totals().n_decoded;
      all.n_steps += copy.totals().n_steps;
    }
    if (all.n_reused > 0) f.found_ratio = all.n_found / all.n_reused;
    if (all.n_steps > 0) f.batch_mean = all.n_decoded / all.n_steps;
    if (times_ns_.empty()) return f;
    for (const double ns : times_ns_)
      f.mean_ns += ns / static_cast<double>(times_ns_.size());
    const auto rank = static_cast<std::ptrdiff_t>(times_ns_.size() * 95 / 100);
    std::ranges::nth_element(times_ns_, times_ns_.begin() + rank);
    f.p95_ns = times_ns_[static_cast<std::size_t>(rank)];
    return f;
  }

  const ExpectedLoad& load_;
  const ForecastOptions& options_;
  const double gap_ns_;
  std::vector<VirtualRequest> requests_;
  std::vector<VirtualCopy> copies_;
  std::vector<Work> works_;    // by copy
  std::vector<bool> is_busy_;  // by user
  std::vector<std::uint32_t> finished_;
  std::vector<double> times_ns_;
  double now_ns_ = 0.0;
  double arrival_ns_ = 0.0;
  double last_arrival_ns_ = 0.0;
  double busy_ns_ = 0.0;
  bool has_arrival_ = false;
  std::uint64_t n_arrivals_ = 0;
  std::uint32_t n_open_ = 0;
  std::uint32_t n_refused_ = 0;
  std::uint64_t n_answered_ = 0;
  std::uint64_t n_answer_tokens_ = 0;
};

}  // namespace

double RowTimes::at(double n_rows) const {
  if (n_rows <= 0.0 || points_.empty()) return 0.0;
  if (n_rows <= points_.front().n_rows || points_.size() == 1) return points_.front().ns;
  std::size_t upper = 1;
  while (upper + 1 < points_.size() && points_[upper].n_rows < n_rows)
    ++upper;
  const Point& a = points_[upper - 1];
  const Point& b = points_[upper];
  return a.ns + (b.ns - a.ns) * (n_rows - a.n_rows) / (b.n_rows - a.n_rows);
}

double CopyCost::round_ns(const StepWork& work) const {
  const double n_rows = work.n_decoding + work.n_prompt_rows;
  const auto n_stages = static_cast<double>(stages.size());
  const double n_lanes = side_by_side ? 1.0 : std::max(1.0, std::min(n_stages, n_rows));
  const StepWork lane = {work.n_decoding / n_lanes,
                         work.n_prompt_rows / n_lanes,
                         work.n_prompt_ends / n_lanes,
                         work.n_kv_tokens / n_lanes,
                         work.n_prompt_kv_tokens / n_lanes};
  double slowest_ns = 0.0;
  double sum_ns = 0.0;
  for (const StageCost& stage : stages) {
    const double ns = stage_ns(stage, lane);
    slowest_ns = std::max(slowest_ns, ns);
    sum_ns += ns;
  }
  const double outside_ns = message_ns + message_row_ns * n_rows / n_lanes + host_step_ns +
                            host_row_ns * (lane.n_decoding + lane.n_prompt_ends);
  if (side_by_side) return std::max(slowest_ns, sum_ns / n_devices_at_once) + outside_ns;
  return std::max({n_lanes * slowest_ns,
                   sum_ns + outside_ns,
                   n_lanes * (sum_ns + outside_ns) / n_devices_at_once});
}

LoadForecast run_load(std::span<const CopyForecast> copies,
                      const ExpectedLoad& load,
                      double rate_per_s,
                      const ForecastOptions& options) {
  LUNA_ASSERT(!copies.empty() && load.users > 0 && rate_per_s > 0.0);
  return LoadRun(copies, load, rate_per_s, options).run();
}

double time_alone_ns(const CopyForecast& copy, const ExpectedLoad& load) {
  VirtualRequest request;
  request.n_history = load.reused;
  request.n_prompt = std::max(1U, load.prompt);
  request.n_output = std::max(1U, load.output);
  std::vector<VirtualRequest> requests = {request};
  CopyForecast roomy = copy;  // alone with enough: what room does is another question
  roomy.kv_tokens = std::max(copy.kv_tokens, 2 * request.n_tokens() + 2 * copy.kv_block_tokens);
  VirtualCopy alone(roomy, requests);
  alone.warm(0, load.reused);
  alone.add(0);
  double ns = 0.0;
  std::vector<std::uint32_t> finished;
  while (finished.empty()) {
    ns += alone.begin_step();
    alone.end_step(finished);
  }
  return ns;
}

LoadForecast highest_rate(std::span<const CopyForecast> copies,
                          const ExpectedLoad& load,
                          double p95_limit_ns,
                          const ForecastOptions& options) {
  constexpr int kDoublingsMax = 24;
  constexpr double kPrecision = 1.01;
  double low = 0.25 * kNsPerS / time_alone_ns(copies.front(), load);
  LoadForecast best = run_load(copies, load, low, options);
  if (best.p95_ns > p95_limit_ns) return {};
  double high = low;
  for (int i = 0; i < kDoublingsMax; ++i) {
    high = 2.0 * low;
    const LoadForecast more = run_load(copies, load, high, options);
    if (more.p95_ns > p95_limit_ns) break;
    const bool grows = more.requests_per_s > kPrecision * best.requests_per_s;
    low = high;
    best = more;
    if (!grows) return best;  // every user waits for an answer all the time
  }
  while (high > kPrecision * low) {
    const double middle = std::sqrt(low * high);
    const LoadForecast tried = run_load(copies, load, middle, options);
    if (tried.p95_ns > p95_limit_ns) {
      high = middle;
    } else {
      low = middle;
      best = tried;
    }
  }
  return best;
}

}  // namespace luna::model
