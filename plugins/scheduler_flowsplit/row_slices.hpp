// What of each row's KV lies in other groups than its own, or is on its way.
#pragma once

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace luna::scheduler_flowsplit {

/// The snapshot's table of slices by row. Costs nothing while there are none. [step], owned by the
/// policy.
class RowSlices {
 public:
  struct Parts {
    std::uint32_t end = 0;   ///< behind the last token that is away
    std::uint32_t last = 0;  ///< the slice that ends there
    std::uint32_t n_tokens = 0;
    std::uint32_t n_leaving_tokens = 0;  ///< on their way from home: their room there comes free
    bool is_moving = false;
  };

  void read(const Snapshot& rows) {
    n_moving_ = 0;
    is_empty_ = rows->n_slices == 0;
    if (is_empty_) return;
    parts_.assign(rows.n_rows(), {});
    for (std::uint32_t s = 0; s < rows->n_slices; ++s) {
      const luna_slice_row& slice = rows.slice(s);
      Parts& parts = parts_[slice.row];
      const std::uint32_t end = slice.first_token + slice.n_tokens;
      if (end > parts.end) parts.last = s;
      parts.end = std::max(parts.end, end);
      parts.n_tokens += slice.n_tokens;
      if (slice.is_copying == 0) continue;
      ++n_moving_;
      parts.is_moving = true;
      if (slice.device != rows[slice.row]->device) parts.n_leaving_tokens += slice.n_tokens;
    }
  }
  [[nodiscard]] const Parts& of(std::uint32_t row) const {
    static constexpr Parts kNone{};
    return is_empty_ ? kNone : parts_[row];
  }
  [[nodiscard]] bool is_sliced(std::uint32_t row) const { return of(row).n_tokens > 0; }
  /// Copies under way.
  [[nodiscard]] std::uint32_t n_moving() const { return n_moving_; }

 private:
  bool is_empty_ = true;
  std::uint32_t n_moving_ = 0;
  std::vector<Parts> parts_;  // by row
};

}  // namespace luna::scheduler_flowsplit
