// Who comes before whom, whatever the load.
#pragma once

#include <luna/scheduler.hpp>
#include <luna/step_cost.hpp>

#include <cstdint>

namespace luna::scheduling {

/// By arrival, where each level of priority counts as `ageing_ms` of waiting. It does not change
/// while rows wait, so whoever waits long enough is senior to all that come later. With ageing_ms 0
/// a higher priority always goes first. A value.
class Seniority {
 public:
  explicit Seniority(std::int64_t ageing_ns) : ageing_ns_(ageing_ns) {}

  /// The least is the most senior; of equals the lower id.
  [[nodiscard]] std::int64_t rank(Row row) const {
    if (ageing_ns_ == 0) return -std::int64_t{row->priority};
    return static_cast<std::int64_t>(row->arrival_ns) - row->priority * ageing_ns_;
  }
  [[nodiscard]] bool is_senior(Row a, Row b) const {
    const std::int64_t rank_a = rank(a);
    const std::int64_t rank_b = rank(b);
    return rank_a != rank_b ? rank_a < rank_b : a->id < b->id;
  }

 private:
  std::int64_t ageing_ns_;
};

/// Whether half of the slack that a row's deadline left at its arrival has gone.
inline bool is_pressing(Row row, std::uint64_t now_ns, const StepCost& cost) {
  if (row->deadline_ns == 0) return false;
  const double waited = static_cast<double>(now_ns) - static_cast<double>(row->arrival_ns);
  const double left = static_cast<double>(row->deadline_ns) - static_cast<double>(now_ns) -
                      cost.chunk_ns(row, row.n_wanted());
  return waited >= left;
}

}  // namespace luna::scheduling
