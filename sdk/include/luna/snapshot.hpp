// The tables that a policy plans by, as abi/scheduler.h hands them over. Header-only.
#pragma once

#include <luna/abi/scheduler.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace luna {

/// One row of a snapshot, read only. A value; valid during plan().
class Row {
 public:
  Row(const luna_req_row* row, const luna_snapshot* snapshot) : row_(row), snapshot_(snapshot) {}

  const luna_req_row* operator->() const { return row_; }
  [[nodiscard]] bool is_waiting() const { return row_->state == LUNA_REQ_WAITING; }
  [[nodiscard]] bool is_prefilling() const { return row_->state == LUNA_REQ_PREFILL; }
  [[nodiscard]] bool is_decoding() const { return row_->state == LUNA_REQ_DECODE; }
  /// It belongs to no group of devices yet.
  [[nodiscard]] bool is_unassigned() const { return row_->device == LUNA_NO_DEVICE; }
  /// A step in flight computes it: before that has ended it is neither pre-empted nor ended.
  [[nodiscard]] bool is_in_step() const { return row_->n_steps != 0; }
  /// Tokens that it could compute now: its next one and its draft when decoding, else what is left
  /// of its prompt. None when a step is about to draw its next one.
  [[nodiscard]] std::uint32_t n_wanted() const {
    if (is_decoding()) return is_in_step() ? 0 : 1 + row_->n_draft;
    return row_->n_prompt - row_->n_computed;
  }
  /// Whether a plan may name it.
  [[nodiscard]] bool is_plannable() const { return !is_in_step() || n_wanted() > 0; }
  /// Tokens of work to its end, at most. Drafts are not work: they may save some.
  [[nodiscard]] double n_remaining() const {
    const std::uint32_t n_next = is_decoding() ? 1 : n_wanted();
    return double{1} * n_next + (row_->n_generated_max - row_->n_generated);
  }
  /// Tokens of KV that it has at its end, at most.
  [[nodiscard]] std::uint32_t n_tokens_max() const {
    const std::uint32_t n_left = row_->n_generated_max - row_->n_generated;
    if (!is_decoding()) return row_->n_prompt + n_left;
    return row_->n_computed + n_left + (is_in_step() ? 0 : 1);
  }
  [[nodiscard]] double waited_ms() const {
    return static_cast<double>(snapshot_->now_ns - row_->arrival_ns) * 1e-6;
  }

 private:
  const luna_req_row* row_;
  const luna_snapshot* snapshot_;
};

/// The engine's tables, as luna_snapshot hands them over. Valid during plan().
class Snapshot {
 public:
  explicit Snapshot(const luna_snapshot* snapshot) : snapshot_(snapshot) {}

  [[nodiscard]] std::uint32_t n_rows() const { return snapshot_->n_reqs; }
  [[nodiscard]] std::uint32_t n_devices() const { return snapshot_->n_devices; }
  [[nodiscard]] Row operator[](std::uint32_t i) const {
    return {at<luna_req_row>(snapshot_->reqs, snapshot_->req_stride, i), snapshot_};
  }
  [[nodiscard]] const luna_device_row& device(std::uint32_t i) const {
    return *at<luna_device_row>(snapshot_->devices, snapshot_->device_stride, i);
  }
  /// Index behind the last device of the group whose first device has index i.
  [[nodiscard]] std::uint32_t group_end(std::uint32_t i) const {
    std::uint32_t end = i + 1;
    while (end < n_devices() && device(end).group == device(i).group)
      ++end;
    return end;
  }
  /// Steps that may be in flight, this one included.
  [[nodiscard]] std::uint32_t n_steps_in_flight_max() const {
    return std::max(snapshot_->n_steps_in_flight_max, 1U);
  }
  /// Of these, the ones that could be planned now, this one included.
  [[nodiscard]] std::uint32_t n_steps_free() const {
    return n_steps_in_flight_max() -
           std::min(snapshot_->n_steps_in_flight, n_steps_in_flight_max() - 1);
  }
  /// Whether core carries actions of this verb out.
  [[nodiscard]] bool takes(std::uint16_t verb) const {
    return LUNA_HAS(snapshot_, luna_snapshot, verbs) && (snapshot_->verbs >> verb & 1U) != 0;
  }
  [[nodiscard]] const luna_link_row& link(std::uint32_t i) const {
    return *at<luna_link_row>(snapshot_->links, snapshot_->link_stride, i);
  }
  /// What the prefix cache of a group would give row i, which belongs to none; none: nullptr.
  ///
  /// device  the first of the group
  [[nodiscard]] const luna_prefix_row* prefix(std::uint32_t i, std::uint32_t device) const {
    std::uint32_t first = 0;
    for (std::uint32_t n = snapshot_->n_prefixes; n > 0;) {
      const std::uint32_t half = n / 2;
      const bool is_before = prefix_at(first + half)->row < i;
      first = is_before ? first + half + 1 : first;
      n = is_before ? n - half - 1 : half;
    }
    for (; first < snapshot_->n_prefixes && prefix_at(first)->row == i; ++first)
      if (prefix_at(first)->device == device) return prefix_at(first);
    return nullptr;
  }
  /// The set of groups that hold partitions of each other's rows, of the device of index i; 0:
  /// none.
  [[nodiscard]] std::uint32_t slice_set(std::uint32_t i) const {
    constexpr std::size_t kEnd =
        offsetof(luna_device_row, slice_set) + sizeof(luna_device_row::slice_set);
    return snapshot_->device_stride >= kEnd ? device(i).slice_set : 0;
  }
  /// Whether any of row i's KV lies in another group than its own, or is on its way.
  [[nodiscard]] bool is_sliced(std::uint32_t i) const {
    for (std::uint32_t s = 0; s < snapshot_->n_slices; ++s)
      if (slice(s).row == i) return true;
    return false;
  }
  /// Part i of the rows' KV that lies in other groups than theirs, or is on its way.
  [[nodiscard]] const luna_slice_row& slice(std::uint32_t i) const {
    return *at<luna_slice_row>(snapshot_->slices, snapshot_->slice_stride, i);
  }
  const luna_snapshot* operator->() const { return snapshot_; }

 private:
  [[nodiscard]] const luna_prefix_row* prefix_at(std::uint32_t n) const {
    return at<luna_prefix_row>(snapshot_->prefixes, snapshot_->prefix_stride, n);
  }
  // Rows may have grown at their end since this plugin was built, hence the stride.
  template <typename T>
  static const T* at(const T* first, std::uint32_t stride, std::uint32_t i) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(first);
    return reinterpret_cast<const T*>(bytes + std::size_t{stride} * i);
  }
  const luna_snapshot* snapshot_;
};

}  // namespace luna
