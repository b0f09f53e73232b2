#include "core/model/weight_loader.hpp"

#include "core/base/parallel_for.hpp"
#include "core/base/units.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

namespace luna::model {
namespace {

constexpr std::uint64_t kRowQuantum = 64;      // the contract: ranges begin at multiples of 64 rows
constexpr std::uint64_t kRangeBytes = kMiB;    // decoded planes that stay in a core's L2 cache
constexpr std::uint64_t kPlaneAlignment = 64;  // a cache line, and a vector of any kind

/// A range of rows of one weight: one piece of work.
struct Range {
  const ShardDraft* shard = nullptr;
  const ShardWeight* weight = nullptr;
  std::uint64_t handle = 0;
  std::uint64_t first_row = 0;
  std::uint64_t n_rows = 0;
};

std::uint64_t row_bytes(const luna_weight_desc& desc) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t plane : desc.row_bytes)
    bytes += plane;
  return bytes;
}

/// A loading thread's memory for decoded planes. Grows to the largest range and is then reused.
class PlaneBuffer {
 public:
  /// Planes for n rows, each aligned.
  void fit(const luna_weight_desc& desc, std::uint64_t n_rows, luna_weight_rows& rows) {
    std::uint64_t n_bytes = kPlaneAlignment;
    for (const std::uint64_t row_bytes : desc.row_bytes)
      n_bytes += round_up(row_bytes * n_rows, kPlaneAlignment);
    if (memory_.size() < n_bytes) memory_.resize(n_bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    std::byte* plane = memory_.data() + (round_up<std::uintptr_t>(begin, kPlaneAlignment) - begin);
    for (std::uint32_t i = 0; i < LUNA_N_PLANES; ++i) {
      if (desc.row_bytes[i] == 0) continue;
      rows.planes[i] = plane;
      plane += round_up(desc.row_bytes[i] * n_rows, kPlaneAlignment);
    }
  }

 private:
  std::vector<std::byte> memory_;
};

/// The state that loading threads share.
class Loading {
 public:
  Loading(const WeightSource& source, std::uint64_t bytes_total, const LoadProgress& progress)
      : source_(source), bytes_total_(bytes_total), progress_(progress) {}

  void load(const Range& range, PlaneBuffer& buffer) {
    if (stopped_.load(std::memory_order_relaxed)) return;
    Result<void> result = hand_over(range, buffer);
    const std::lock_guard lock(mutex_);
    if (!result) {
      if (!error_) error_ = result.error().in("device " + range.shard->device->name());
      stopped_.store(true, std::memory_order_relaxed);
      return;
    }
    bytes_done_ += row_bytes(range.weight->desc) * range.n_rows;
    const auto percent = bytes_done_ * 100 / bytes_total_;
    if (percent != percent_told_ && progress_) progress_(static_cast<double>(percent) / 100.0);
    percent_told_ = percent;
  }

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  Result<void> hand_over(const Range& range, PlaneBuffer& buffer) {
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.first_row = range.first_row;
    rows.n_rows = range.n_rows;
    buffer.fit(range.weight->desc, range.n_rows, rows);
    LUNA_TRY(source_.decode(*range.weight, rows));
    const Device& device = *range.shard->device;
    luna_err err = make_err();
    const luna_status status =
        device.backend().weight_rows(device.handle(), range.handle, &rows, &err);
    return to_result(status, err, "weight " + range.weight->name);
  }

  const WeightSource& source_;
  const std::uint64_t bytes_total_;
  const LoadProgress& progress_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  // these three under the mutex
  std::uint64_t bytes_done_ = 0;
  std::uint64_t percent_told_ = 0;
};

Result<void> begin_weights(const ShardDraft& shard,
                           std::uint32_t numerics,
                           std::vector<std::uint64_t>& handles,
                           std::vector<Range>& ranges) {
  const Device& device = *shard.device;
  for (const ShardWeight& weight : shard.weights) {
    std::uint64_t handle = 0;
    luna_err err = make_err();
    const luna_status status =
        device.backend().weight_begin(device.handle(), &weight.desc, numerics, &handle, &err);
    LUNA_TRY(to_result(status, err, "device " + device.name() + ": weight " + weight.name));
    handles.push_back(handle);
    const std::uint64_t quanta = kRangeBytes / (kRowQuantum * row_bytes(weight.desc));
    const std::uint64_t step = kRowQuantum * std::max<std::uint64_t>(1, quanta);
    for (std::uint64_t first = 0; first < weight.desc.n_rows; first += step) {
      const std::uint64_t n = std::min(step, weight.desc.n_rows - first);
      ranges.push_back({&shard, &weight, handle, first, n});
    }
  }
  return {};
}

}  // namespace

Result<void> load_weights(std::span<const ShardDraft> shards,
                          const WeightSource& source,
                          const WeightLoadOptions& options,
                          std::vector<std::vector<std::uint64_t>>& handles) {
  std::vector<Range> ranges;
  handles.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i)
    LUNA_TRY(begin_weights(shards[i], options.numerics, handles[i], ranges));

  std::uint64_t bytes_total = 1;
  for (const Range& range : ranges)
    bytes_total += row_bytes(range.weight->desc) * range.n_rows;
  std::vector<PlaneBuffer> buffers(std::max<std::uint32_t>(1, options.n_threads));
  Loading loading(source, bytes_total, options.progress);
  parallel_for(options.n_threads, ranges.size(), [&](std::uint32_t thread_idx, std::uint64_t i) {
    loading.load(ranges[i], buffers[thread_idx]);
  });
  if (loading.error()) return *loading.error();

  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Device& device = *shards[i].device;
    for (std::size_t w = 0; w < handles[i].size(); ++w) {
      luna_err err = make_err();
      const luna_status status = device.backend().weight_end(device.handle(), handles[i][w], &err);
      LUNA_TRY(to_result(
          status, err, "device " + device.name() + ": weight " + shards[i].weights[w].name));
    }
  }
  return {};
}

}  // namespace luna::model
