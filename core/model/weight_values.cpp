#include "core/model/weight_values.hpp"

#include "core/base/parallel_for.hpp"

#include <luna/quant.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <vector>

namespace luna::model {
namespace {

constexpr std::uint64_t kRowQuantum = 64;         // ranges begin at multiples of 64 rows
constexpr std::uint64_t kRangeValues = 1U << 18;  // a megabyte of FP32

Result<std::vector<float>> decode_range(const WeightSource& source,
                                        const ShardWeight& weight,
                                        std::uint64_t first_row,
                                        std::uint64_t n_rows) {
  luna_weight_rows rows{};
  rows.struct_size = sizeof(rows);
  rows.first_row = first_row;
  rows.n_rows = n_rows;
  std::array<std::vector<std::byte>, LUNA_N_PLANES> planes;
  for (std::uint32_t i = 0; i < LUNA_N_PLANES; ++i) {
    planes[i].resize(weight.desc.row_bytes[i] * n_rows);
    if (!planes[i].empty()) rows.planes[i] = planes[i].data();
  }
  LUNA_TRY(source.decode(weight, rows));
  const CanonicalRows canonical(weight.desc, rows);
  std::vector<float> values(n_rows * weight.desc.n_cols);
  for (std::uint64_t row = 0; row < n_rows; ++row)
    for (std::uint64_t col = 0; col < weight.desc.n_cols; ++col)
      values[row * weight.desc.n_cols + col] = canonical.value(row, col);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    return Error{Code::corrupt,
                 "tensor " + weight.name + ": rows from " + std::to_string(first_row) +
                     " have a value that is not a finite number"};
  }
  return values;
}

}  // namespace

Result<void> for_each_rows(const WeightSource& source,
                           const ShardWeight& weight,
                           std::uint32_t n_threads,
                           const ValueSink& sink) {
  const std::uint64_t step =
      kRowQuantum * std::max<std::uint64_t>(1, kRangeValues / kRowQuantum / weight.desc.n_cols);
  const std::uint64_t n_ranges = (weight.desc.n_rows + step - 1) / step;
  std::mutex mutex;
  std::optional<Error> error;  // under the mutex
  std::atomic<bool> is_stopped{false};
  parallel_for(n_threads, n_ranges, [&](std::uint32_t /*thread_idx*/, std::uint64_t i) {
    if (is_stopped.load(std::memory_order_relaxed)) return;
    const std::uint64_t first = i * step;
    const auto work = [&]() -> Result<void> {
      LUNA_TRY(const std::vector<float> values,
               decode_range(source, weight, first, std::min(step, weight.desc.n_rows - first)));
      return sink(first, values);
    };
    if (Result<void> done = work(); !done) {
      const std::lock_guard lock(mutex);
      if (!error) error = done.error();
      is_stopped.store(true, std::memory_order_relaxed);
    }
  });
  if (error) return *error;
  return {};
}

}  // namespace luna::model
