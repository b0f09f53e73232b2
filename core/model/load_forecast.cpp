#include "core/model/load_forecast.hpp"

#include "core/base/assert.hpp"
#include "core/base/counter_rng.hpp"
#include "core/model/virtual_copy.hpp"
#include "core/model/virtual_devices.hpp"

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
  if (!load.histories_differ) return load.reused;
  return draw_length(load.reused, uniform01(seed, kHistories, session).first);
}

/// Prompt and answer lose in proportion; each keeps a token.
void shorten(VirtualRequest& request, std::uint32_t n_tokens_max) {
  const std::uint32_t n_room = std::max(n_tokens_max, request.n_history + 2) - request.n_history;
  const std::uint32_t n = request.n_prompt + request.n_output;
  if (n <= n_room) return;
  const auto n_prompt = static_cast<std::uint32_t>(std::uint64_t{request.n_prompt} * n_room / n);
  request.n_prompt = std::clamp(n_prompt, 1U, n_room - 1);
  request.n_output = n_room - request.n_prompt;
}

/// Of so many requests, those that may be late while the 95th percentile is not.
std::size_t n_late_max(std::size_t n_requests) {
  return n_requests / 20;
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

std::vector<VirtualCopy> make_copies(std::span<const CopyForecast> copies,
                                     std::vector<VirtualRequest>& requests) {
  std::vector<VirtualCopy> made;
  for (const CopyForecast& copy : copies)
    made.emplace_back(copy, requests);
  return made;
}

/// A run in progress.
class LoadRun {
 public:
  LoadRun(std::span<const CopyForecast> copies,
          const ExpectedLoad& load,
          double rate_per_s,
          const ForecastOptions& options)
      : load_(load),
        options_(options),
        gap_ns_(kNsPerS / rate_per_s),
        n_warm_up_(options.n_requests / kWarmUpShare),
        copies_(make_copies(copies, requests_)),
        devices_(copies_, options.n_cores),
        is_busy_(load.users) {
    requests_.reserve(options.n_requests);
    double n_bound = 0.0;  // cores that devices would take if there were enough
    double n_bound_devices = 0.0;
    for (const CopyForecast& copy : copies) {
      n_devices_at_once_ += static_cast<double>(copy.cost.stages.size());
      for (const StageCost& stage : copy.cost.stages) {
        n_bound += stage.n_cores;
        n_bound_devices += stage.n_cores > 0 ? 1.0 : 0.0;
      }
    }
    if (options.n_cores > 0 && n_bound > options.n_cores)
      n_devices_at_once_ -= n_bound_devices * (1.0 - options.n_cores / n_bound);
    for (std::uint32_t session = 0; load.reused > 0 && session < load.users; ++session)
      copies_[session % copies_.size()].warm(session, draw_history(load, options.seed, session));
  }

  LoadForecast run() {
    arrive_next();
    while ((n_open_ > 0 || has_arrival_) && !is_lost()) {
      const double end_ns = devices_.next_end_ns();
      if (has_arrival_ && arrival_ns_ <= end_ns) {
        devices_.advance(arrival_ns_);
        take_arrival();
        continue;
      }
      LUNA_VERIFY(end_ns < std::numeric_limits<double>::infinity());
      devices_.advance(end_ns);
      finished_.clear();
      devices_.end_next(finished_);
      for (const std::uint32_t idx : finished_)
        finish(requests_[idx], idx);
    }
    return summary();
  }

 private:
  void arrive_next() {
    has_arrival_ = requests_.size() + n_refused_ < options_.n_requests &&
                   n_arrivals_ < std::uint64_t{options_.n_requests} * kArrivalsPerRequestMax;
    if (!has_arrival_) return;
    const double uniform = uniform01(options_.seed, kArrivals, n_arrivals_).first;
    arrival_ns_ = devices_.now_ns() - std::log1p(-uniform) * gap_ns_;
  }

  void take_arrival() {
    const double who = uniform01(options_.seed, kArrivals, n_arrivals_++).second;
    last_arrival_ns_ = devices_.now_ns();
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
    request.arrived_ns = devices_.now_ns();
    request.session = user;
    request.n_history = draw_history(load_, options_.seed, user);
    const auto lengths = uniform01(options_.seed, kLengths, requests_.size() + n_refused_);
    request.n_prompt = draw_length(load_.prompt, lengths.first);
    request.n_output = draw_length(load_.output, lengths.second);
    if (load_.request_tokens_max) shorten(request, *load_.request_tokens_max);
    const std::size_t copy = route(user);
    if (!copies_[copy].has_room_ever(request)) {
      ++n_refused_;
      if (requests_.size() + n_refused_ > n_warm_up_)
        times_ns_.push_back(std::numeric_limits<double>::infinity());
      return;
    }
    is_busy_[user] = true;
    ++n_open_;
    requests_.push_back(request);
    if (!steady_since_ns_ && requests_.size() > n_warm_up_) steady_since_ns_ = devices_.now_ns();
    copies_[copy].add(static_cast<std::uint32_t>(requests_.size() - 1));
    devices_.wake(copy);
  }
  [[nodiscard]] std::size_t route(std::uint32_t user) const {
    if (load_.reused > 0) return user % copies_.size();
    const auto least = std::ranges::min_element(
        copies_, {}, [](const VirtualCopy& copy) { return copy.n_tokens_outstanding(); });
    return static_cast<std::size_t>(least - copies_.begin());
  }

  void finish(const VirtualRequest& request, std::uint32_t idx) {
    --n_open_;
    is_busy_[request.session] = false;
    if (steady_since_ns_ && has_arrival_) {
      ++n_answered_;
      n_answer_tokens_ += request.n_output;
    }
    if (idx < n_warm_up_) return;
    const double ns = devices_.now_ns() - request.arrived_ns;
    times_ns_.push_back(ns);
    answered_ns_ += ns;
    ++n_timed_;
    if (options_.p95_limit_ns && ns > *options_.p95_limit_ns) ++n_late_;
  }
  /// Whether more are late already than may be of all.
  [[nodiscard]] bool is_lost() const {
    return options_.p95_limit_ns && n_late_ > n_late_max(options_.n_requests - n_warm_up_);
  }

  [[nodiscard]] LoadForecast summary() {
    LoadForecast f;
    const double span_s = (last_arrival_ns_ - steady_since_ns_.value_or(0.0)) / kNsPerS;
    if (span_s > 0.0) {
      f.requests_per_s = static_cast<double>(n_answered_) / span_s;
      f.tokens_per_s = static_cast<double>(n_answer_tokens_) / span_s;
    }
    f.refused_ratio = static_cast<double>(n_refused_) /
                      static_cast<double>(std::max<std::size_t>(1, requests_.size() + n_refused_));
    f.busy_ratio = devices_.ops_ns() / (devices_.now_ns() * n_devices_at_once_);
    fill_totals(f);
    if (n_timed_ > 0) f.mean_ns = answered_ns_ / static_cast<double>(n_timed_);
    f.p95_ns = std::numeric_limits<double>::infinity();
    if (times_ns_.empty() || is_lost()) return f;
    const std::size_t rank = times_ns_.size() - n_late_max(times_ns_.size()) - 1;
    std::ranges::nth_element(times_ns_, times_ns_.begin() + static_cast<std::ptrdiff_t>(rank));
    f.p95_ns = times_ns_[rank];
    return f;
  }
  void fill_totals(LoadForecast& f) const {
    VirtualCopy::Totals all;
    for (const VirtualCopy& copy : copies_) {
      const VirtualCopy::Totals& one = copy.totals();
      all.n_prompt += one.n_prompt;
      all.n_reused += one.n_reused;
      all.n_found += one.n_found;
      all.n_recomputed += one.n_recomputed;
      all.n_steps += one.n_steps;
      all.n_step_seqs += one.n_step_seqs;
      all.n_decoding += one.n_decoding;
    }
    const auto ratio = [](double part, double whole) { return whole > 0.0 ? part / whole : 0.0; };
    f.found_ratio = ratio(all.n_found, all.n_reused);
    f.hit_ratio = ratio(all.n_found, all.n_prompt);
    f.batch_mean = ratio(all.n_decoding, all.n_steps);
    f.step_seqs_mean = ratio(all.n_step_seqs, all.n_steps);
    f.recomputed_mean = ratio(all.n_recomputed, static_cast<double>(requests_.size()));
  }

  const ExpectedLoad& load_;
  const ForecastOptions& options_;
  const double gap_ns_;
  const std::size_t n_warm_up_;
  std::vector<VirtualRequest> requests_;
  std::vector<VirtualCopy> copies_;
  VirtualDevices devices_;
  double n_devices_at_once_ = 0.0;
  std::vector<bool> is_busy_;  // by user
  std::vector<std::uint32_t> finished_;
  std::vector<double> times_ns_;  // of those after the warm-up; infinite: refused
  double answered_ns_ = 0.0;      // of these, those that were answered, summed
  std::size_t n_timed_ = 0;
  std::size_t n_late_ = 0;
  double arrival_ns_ = 0.0;
  double last_arrival_ns_ = 0.0;
  bool has_arrival_ = false;
  std::uint64_t n_arrivals_ = 0;
  std::uint32_t n_open_ = 0;
  std::uint32_t n_refused_ = 0;
  std::optional<double> steady_since_ns_;  // until the last arrival, answers are counted
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

double CopyCost::host_ns(const StepWork& work) const {
  return host_step_ns + host_row_ns * (work.n_decoding + work.n_prompt_ends);
}

/// What a step takes beside ops.
double CopyCost::outside_ns(const StepWork& work) const {
  const double n_rows = work.n_decoding + work.n_prompt_rows;
  return host_ns(work) + message_ns + message_row_ns * n_rows;
}

double CopyCost::ops_ns(const StepWork& work) const {
  double sum_ns = 0.0;
  for (const StageCost& stage : stages)
    sum_ns += stage_ns(stage, work);
  return sum_ns;
}

void CopyCost::fill_station_ns(const StepWork& work, std::span<double> station_ns) const {
  LUNA_ASSERT(station_ns.size() == n_stations());
  if (n_lanes() == 1) {
    station_ns[0] = round_ns(work);
    return;
  }
  const double messages_ns =
      (outside_ns(work) - host_ns(work)) / static_cast<double>(n_lanes() - 1);
  station_ns[0] = host_ns(work);
  for (std::size_t d = 0; d < stages.size(); ++d)
    station_ns[d + 1] = stage_ns(stages[d], work) + (d > 0 ? messages_ns : 0.0);
}

double CopyCost::round_ns(const StepWork& work) const {
  double slowest_ns = 0.0;
  double sum_ns = 0.0;
  for (const StageCost& stage : stages) {
    const double ns = stage_ns(stage, work);
    slowest_ns = std::max(slowest_ns, ns);
    sum_ns += ns;
  }
  const double beside_ns = outside_ns(work);
  if (side_by_side) return std::max(slowest_ns, sum_ns / n_devices_at_once) + beside_ns;
  const auto n_steps = static_cast<double>(n_lanes());
  return std::max({n_steps * slowest_ns,
                   sum_ns + beside_ns,
                   n_steps * (sum_ns + beside_ns) / n_devices_at_once});
}

LoadForecast run_load(std::span<const CopyForecast> copies,
                      const ExpectedLoad& load,
                      double rate_per_s,
                      const ForecastOptions& options) {
  LUNA_ASSERT(!copies.empty() && load.users > 0 && rate_per_s > 0.0);
  return LoadRun(copies, load, rate_per_s, options).run();
}

double time_alone_ns(const CopyForecast& copy, const ExpectedLoad& load, std::uint32_t n_cores) {
  VirtualRequest request;
  request.n_history = load.reused;
  request.n_prompt = std::max(1U, load.prompt);
  request.n_output = std::max(1U, load.output);
  if (load.request_tokens_max) shorten(request, *load.request_tokens_max);
  std::vector<VirtualRequest> requests = {request};
  CopyForecast roomy = copy;  // alone with enough: what room does is another question
  roomy.kv_tokens =
      std::max<std::uint64_t>(copy.kv_tokens, 2 * (request.n_tokens() + copy.kv_block_tokens));
  std::vector<VirtualCopy> alone = make_copies({&roomy, 1}, requests);
  VirtualDevices devices(alone, n_cores);
  alone.front().warm(0, load.reused);
  alone.front().add(0);
  devices.wake(0);
  std::vector<std::uint32_t> finished;
  while (finished.empty()) {
    devices.advance(devices.next_end_ns());
    devices.end_next(finished);
  }
  return devices.now_ns();
}

LoadForecast highest_rate(std::span<const CopyForecast> copies,
                          const ExpectedLoad& load,
                          double p95_limit_ns,
                          const ForecastOptions& options) {
  constexpr int kDoublingsMax = 24;
  constexpr int kHalvingsMax = 16;
  constexpr double kStart = 4.0;  // requests at a time on each device
  constexpr double kPrecision = 1.01;
  ForecastOptions limited = options;
  limited.p95_limit_ns = p95_limit_ns;
  const auto try_rate = [&](double rate_per_s) {
    return run_load(copies, load, rate_per_s, limited);
  };
  // From above: a run beyond the limit ends early, one far below has many small steps.
  double n_devices = 0.0;
  for (const CopyForecast& copy : copies)
    n_devices += static_cast<double>(copy.cost.stages.size());
  double low = kStart * n_devices * kNsPerS / time_alone_ns(copies.front(), load, options.n_cores);
  LoadForecast best = try_rate(low);
  double high = 0.0;  // beyond the limit; 0: not found yet
  for (int i = 0; i < kHalvingsMax && best.p95_ns > p95_limit_ns; ++i) {
    high = low;
    low /= 2.0;
    best = try_rate(low);
  }
  if (best.p95_ns > p95_limit_ns) {
    best.requests_per_s = 0.0;
    best.tokens_per_s = 0.0;
    return best;
  }
  for (int i = 0; i < kDoublingsMax && high == 0.0; ++i) {
    const LoadForecast more = try_rate(2.0 * low);
    if (more.p95_ns > p95_limit_ns) {
      high = 2.0 * low;
      break;
    }
    const bool grows = more.requests_per_s > kPrecision * best.requests_per_s;
    low *= 2.0;
    best = more;
    if (!grows) return best;  // every user waits for an answer all the time
  }
  while (high > kPrecision * low) {
    const double middle = std::sqrt(low * high);
    const LoadForecast tried = try_rate(middle);
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
