#include "open_loop.hpp"

#include "core/app/stop_signal.hpp"
#include "core/bench/load_run.hpp"
#include "core/bench/pipeline_target.hpp"
#include "core/bench/quiet_wait.hpp"
#include "core/bench/report.hpp"
#include "routed_target.hpp"

#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>

namespace luna::sol_against_luna {
namespace {

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// CPU time of the whole machine that was not idle, and none where the system does not say.
///
/// Source  proc(5), /proc/stat: user nice system idle iowait irq softirq steal, in ticks
Nanoseconds machine_cpu_time() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line);
  std::string name;
  fields >> name;
  constexpr int kIdle = 3, kIowait = 4, kFields = 8;
  double ticks = 0;
  for (int i = 0; i < kFields; ++i) {
    double value = 0;
    fields >> value;
    if (i != kIdle && i != kIowait) ticks += value;
  }
  const double per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(ticks / per_s));
}

/// What was counted when the measured requests began and when the last of them was sent.
class SteadyWindow {
 public:
  SteadyWindow(const Deployment& side, std::size_t first, std::size_t last)
      : side_(side), first_(first), last_(last) {}

  void on_sent(std::size_t request_idx) {
    if (request_idx == first_) begin_ = sample();
    if (request_idx == last_) {
      end_ = sample();
      n_step_seqs_ = side_.step_seqs_since(begin_.counters);
    }
  }
  /// Nothing of a run that was ended before its last request.
  void fill(RunFigures& figures) const {
    if (end_.counters.busy.empty()) return;
    figures.window_s = seconds(end_.at - begin_.at);
    for (std::size_t device = 0; device < begin_.counters.busy.size(); ++device)
      figures.busy_s.push_back(seconds(end_.counters.busy[device] - begin_.counters.busy[device]));
    const auto n_steps = [](const Sample& sample) {
      const auto& by_copy = sample.counters.n_steps;
      return std::accumulate(by_copy.begin(), by_copy.end(), std::uint64_t{0});
    };
    figures.n_steps = n_steps(end_) - n_steps(begin_);
    figures.n_step_seqs = n_step_seqs_;
    figures.n_recomputed_tokens =
        end_.counters.n_recomputed_tokens - begin_.counters.n_recomputed_tokens;
    const Nanoseconds own = end_.own_cpu - begin_.own_cpu;
    figures.others_s = std::max(0.0, seconds(end_.machine_cpu - begin_.machine_cpu - own));
  }

 private:
  struct Sample {
    Nanoseconds at{0}, own_cpu{0}, machine_cpu{0};
    SideCounters counters;
  };
  Sample sample() const {
    return {clock_.now(), bench::process_cpu_time(), machine_cpu_time(), side_.counters()};
  }

  const Deployment& side_;
  const std::size_t first_, last_;
  const RealClock clock_;
  Sample begin_, end_;
  double n_step_seqs_ = 0;
};

RunFigures figures_of(const std::vector<bench::RequestRecord>& records) {
  const bench::Report report = bench::make_report(records, {});
  RunFigures figures;
  figures.e2e_ms = report.e2e.values;
  figures.n_failed = report.n_failed;
  if (!report.n_by_error.empty()) figures.first_error = report.n_by_error.begin()->first;
  figures.seconds = report.seconds;
  figures.n_prompt_tokens = report.n_prompt_tokens;
  figures.n_cached_tokens = report.n_cached_tokens;
  figures.n_output_tokens = report.n_output_tokens;
  return figures;
}

Error stopped() {
  return {Code::cancelled, "stopped by the user"};
}

}  // namespace

Result<RunFigures> run_open_loop(Deployment& side,
                                 const bench::PromptSource& prompts,
                                 const OpenLoopOptions& options) {
  side.wait_until_idle();
  bench::LoadOptions load;
  load.rate_per_s = options.rate_per_s;
  load.n_warm_up = options.n_warm_up;
  load.n_requests = options.n_requests;
  load.seed = options.arrival_seed;
  SteadyWindow window(side, options.n_warm_up, options.n_warm_up + options.n_requests - 1);
  const RealClock clock;
  std::optional<LateWatch> watch;
  if (options.give_up)
    watch.emplace(std::chrono::duration_cast<Nanoseconds>(
                      std::chrono::duration<double, std::milli>(options.give_up->limit_ms)),
                  options.give_up->n_late_allowed);
  RoutedTargetParts parts{.copies = {},
                          .router = Router(options.routing),
                          .session_of = [&](std::size_t idx) { return prompts.prefix_of(idx); },
                          .on_sent = [&](std::size_t idx) { window.on_sent(idx); },
                          .watch = watch ? &*watch : nullptr,
                          .now = [&] { return clock.now(); }};
  for (std::size_t copy = 0; copy < side.n_copies(); ++copy)
    parts.copies.push_back(&side.pipeline(copy));
  bool is_lost = false;
  const auto keep_going = [&] {
    is_lost = is_lost || (watch && watch->is_lost(clock.now()));
    return !is_lost && !app::StopSignal::is_set();
  };
  const auto records = bench::run_load(load, prompts, routed_target(std::move(parts)), keep_going);
  if (app::StopSignal::is_set()) return stopped();
  RunFigures figures = figures_of(records);
  figures.rate_per_s = options.rate_per_s;
  window.fill(figures);
  figures.is_given_up = is_lost;
  if (options.give_up) figures.limit_ms = options.give_up->limit_ms;
  return figures;
}

Result<double> mean_alone_ms(Deployment& side,
                             const bench::PromptSource& prompts,
                             std::size_t n_requests) {
  side.wait_until_idle();
  bench::LoadOptions load;
  load.n_warm_up = 2;
  load.n_requests = n_requests;
  const auto records = bench::run_load(load, prompts, bench::pipeline_target(side.pipeline(0)), [] {
    return !app::StopSignal::is_set();
  });
  if (app::StopSignal::is_set()) return stopped();
  const RunFigures figures = figures_of(records);
  if (figures.e2e_ms.empty())
    return Error{Code::unavailable, "no request alone was answered: " + figures.first_error};
  return std::accumulate(figures.e2e_ms.begin(), figures.e2e_ms.end(), 0.0) /
         static_cast<double>(figures.e2e_ms.size());
}

}  // namespace luna::sol_against_luna
