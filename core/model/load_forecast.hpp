// A load in virtual time: how long requests take on copies of a model whose steps cost what was
// measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::model {

/// Time by row count: measured points, straight lines between them, the last line beyond.
class RowTimes {
 public:
  struct Point {
    double n_rows = 0.0;
    double ns = 0.0;
  };
  RowTimes() = default;
  /// points   by rows, ascending, from the fewest
  explicit RowTimes(std::vector<Point> points) : points_(std::move(points)) {}

  /// Of no rows nothing; of fewer than were measured, as of the fewest measured.
  [[nodiscard]] double at(double n_rows) const;
  [[nodiscard]] std::span<const Point> points() const { return points_; }

 private:
  std::vector<Point> points_;
};

/// What a device takes for the parts of a step.
struct DeviceSpeed {
  RowTimes layer;            ///< one layer, rows that attend to next to nothing
  RowTimes head;             ///< last norm, head, candidates; by rows with logits
  double kv_token_ns = 0.0;  ///< attention: one layer, a row that decodes, a token it attends to
  double prompt_kv_token_ns = 0.0;  ///< of a row of a prompt's chunk
  double embedding_row_ns = 0.0;
  double step_ns = 0.0;  ///< from submit to the first op and from the last to its end
};

/// What clients are expected to send. Lengths are means in tokens; each is drawn uniformly between
/// half and one and a half of its mean. Arrivals are Poisson's. A value.
struct ExpectedLoad {
  std::uint32_t prompt = 128;  ///< new in a request
  std::uint32_t reused = 512;  ///< before it: the history of its session; 0: requests share nothing
  std::uint32_t output = 128;
  /// Sessions. The next request is any one's.
  std::uint32_t users = 32;
  /// Each waits for one answer at a time; false: requests come at their rate whatever is open.
  bool users_wait = true;
  /// Sessions' histories differ as other lengths do; false: each has the mean.
  bool histories_differ = true;
  /// What is longer with all its tokens loses some of prompt and answer; none: nothing does.
  std::optional<std::uint32_t> request_tokens_max{};
};

/// A step as its cost sees it. A value.
struct StepWork {
  double n_decoding = 0.0;  ///< sequences with one row each, whose logits are wanted
  double n_prompt_rows = 0.0;
  double n_prompt_ends = 0.0;       ///< prompts that end in it: their last rows want logits
  double n_kv_tokens = 0.0;         ///< by decoding row the tokens it attends to, summed
  double n_prompt_kv_tokens = 0.0;  ///< by row of the prompts
};

/// One device's part of every step.
struct StageCost {
  DeviceSpeed speed;
  double n_layers = 0.0;  ///< a tensor split's share of each counts as a part of one
  double head_share = 0.0;
  double embedding_share = 0.0;
  std::uint32_t first_core = 0;  ///< that its threads are bound to; beyond the last comes the first
  std::uint32_t n_cores = 0;     ///< 0: it takes none of the machine's
};

/// What the devices of one copy cost: one device; several in a row with as many steps in flight; or
/// several side by side that wait for each other in every layer.
struct CopyCost {
  std::vector<StageCost> stages;
  bool side_by_side = false;
  double message_ns = 0.0;  ///< fixed part of all waiting for messages of a step
  double message_row_ns = 0.0;
  double n_devices_at_once = 1e9;  ///< fewer than stages: they share cores
  double host_step_ns = 0.0;
  double host_row_ns = 0.0;

  /// Steps that may be in flight.
  [[nodiscard]] std::size_t n_lanes() const { return side_by_side ? 1 : stages.size(); }
  /// Places that a step passes, each with one step at a time: devices in a row, before them the
  /// engine, which works on a step while they work on others; else one for all.
  [[nodiscard]] std::size_t n_stations() const { return n_lanes() > 1 ? n_lanes() + 1 : 1; }
  /// station_ns  [n_stations]
  void fill_station_ns(const StepWork& work, std::span<double> station_ns) const;
  /// Inside ops, all devices together.
  [[nodiscard]] double ops_ns(const StepWork& work) const;
  /// From the plan of a token to the plan of the next, when all steps in flight are such.
  [[nodiscard]] double round_ns(const StepWork& work) const;

 private:
  [[nodiscard]] double outside_ns(const StepWork& work) const;
  [[nodiscard]] double host_ns(const StepWork& work) const;
};

/// A copy of the model with its engine.
struct CopyForecast {
  CopyCost cost;
  std::uint64_t kv_tokens = 0;
  std::uint32_t kv_block_tokens = 32;
  std::uint32_t n_sequences_max = 0;
  std::uint32_t step_tokens_max = 0;
  /// A step with prompts beside sequences that decode ends within it, as far as it can. What the
  /// shipped policy keeps to by default.
  double step_target_ns = 100e6;
};

struct ForecastOptions {
  std::uint32_t n_requests = 1'000;
  std::uint64_t seed = 1;
  std::uint32_t n_cores = 0;  ///< of the machine, for devices and engines; 0: nothing shares any
  /// A run ends as soon as its P95 is certain to be beyond; none: it goes to its end.
  std::optional<double> p95_limit_ns{};
};

struct LoadForecast {
  double requests_per_s = 0.0;  ///< answered
  double tokens_per_s = 0.0;    ///< of answers
  double p95_ns = 0.0;          ///< infinite: a request in twenty was refused, or the run was ended
  double mean_ns = 0.0;         ///< of those that were answered
  double found_ratio = 0.0;     ///< of the reused tokens, those whose KV was there
  double hit_ratio = 0.0;       ///< of all tokens of prompts, the same
  double batch_mean = 0.0;      ///< sequences that decode, in a copy, as a step begins
  double step_seqs_mean = 0.0;  ///< sequences in a step
  /// Tokens computed again after pre-emption, a request.
  double recomputed_mean = 0.0;
  double busy_ratio = 0.0;     ///< inside ops, of the time of min(devices, cores)
  double refused_ratio = 0.0;  ///< of the requests, those that no copy has room for
};

/// Runs a load at a rate. Requests of a session go to one copy; where there are no histories, to
/// the copy with the least to do. A function of its arguments: the same numbers always.
LoadForecast run_load(std::span<const CopyForecast> copies,
                      const ExpectedLoad& load,
                      double rate_per_s,
                      const ForecastOptions& options);

/// The highest rate whose P95 stays within the limit, to 1 %. Who is refused is late.
///
/// Returns  what the load looks like at it; at a rate of 0, where none is, what it looks like at
/// the
///          lowest that was tried
LoadForecast highest_rate(std::span<const CopyForecast> copies,
                          const ExpectedLoad& load,
                          double p95_limit_ns,
                          const ForecastOptions& options);

/// A request of mean lengths, shortened where the load's are, whose history is there, alone on a
/// copy.
/// n_cores  as in ForecastOptions
double time_alone_ns(const CopyForecast& copy, const ExpectedLoad& load, std::uint32_t n_cores = 0);

}  // namespace luna::model
