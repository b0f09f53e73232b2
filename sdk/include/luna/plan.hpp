// The plan that a policy makes, and its books: what it takes is legal. Header-only.
#pragma once

#include <luna/group_books.hpp>
#include <luna/slice_choice.hpp>
#include <luna/snapshot.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna {

/// The plan being made. It keeps the books of the step of each group (tokens, rows, KV blocks), so
/// that what it takes is legal. One per instance; its buffers are reused, so later plans allocate
/// nothing.
class Plan {
 public:
  /// Indices of the rows that a plan may name, in order of arrival, for the policy to sort. Filled
  /// anew for each plan.
  [[nodiscard]] std::vector<std::uint32_t>& order() { return order_; }

  /// Runs row i in the step of its group: as many of the tokens it wants as the step still has room
  /// for. A waiting row is let in when its whole prompt and one block more fit, beside the reserve
  /// for the rows that hold KV, if any does. A decoding row that finds no block for its draft runs
  /// without it. Returns false when it cannot run: the step is full, KV blocks are short, it is in
  /// the plan, it waits for the step that it is in, it belongs to no group, or to one that has as
  /// many steps in flight as it can. A row that is spread() runs as far as its group has room.
  bool take(std::uint32_t i, std::uint32_t n_tokens_max = UINT32_MAX) {
    const Row row = snapshot()[i];
    GroupBooks* const books = books_of(i);
    if (books == nullptr || books->n_steps_free == 0) return false;
    std::uint32_t n_tokens = std::min({n_tokens_max, n_wanted(i), books->n_tokens_left});
    if (n_tokens == 0 || books->n_rows_left == 0 || is_planned(i) || full()) return false;
    if (is_spread(i)) return take_spread(i, *books, n_tokens);
    std::int64_t n_blocks = n_blocks_to_take(i, n_tokens);
    if (row.is_decoding() && n_blocks > books->n_blocks_free) {
      n_tokens = 1;
      n_blocks = n_blocks_to_take(i, n_tokens);
    }
    const std::int64_t n_spared = row.is_waiting() ? books->n_blocks_reserve : 0;
    if (n_blocks + n_spared > books->n_blocks_free) {
      books->is_short_of_blocks = true;
      return false;
    }
    books->n_blocks_free -= n_blocks;
    books->n_tokens_left -= n_tokens;
    --books->n_rows_left;
    books->n_shared_taken += n_shared(i);
    add(i, LUNA_VERB_RUN, LUNA_REASON_ORDER, n_tokens);
    return true;
  }

  /// Gives waiting row i to the group of a device: it may be taken in this plan. False if it is not
  /// waiting, was assigned or planned, or the group takes no rows or could never hold it, alone or
  /// with others.
  bool assign(std::uint32_t i, std::uint32_t device, std::uint16_t reason = LUNA_REASON_ORDER) {
    const std::optional<std::uint32_t> group = group_of_device(device);
    if (!group || is_planned(i) || is_assigned(i) || full()) return false;
    if (!can_assign(i, groups_[*group]) && !can_spread(i, groups_[*group])) return false;
    found_.resize(snapshot_->n_reqs);
    const GroupBooks& books = groups_[*group];
    Found& found = found_[i];
    found = {.is_assigned = true};
    if (const luna_prefix_row* prefix = snapshot().prefix(i, books.device); prefix != nullptr) {
      found.n_tokens = prefix->n_tokens;
      found.n_kv_blocks_shared = prefix->n_kv_blocks_shared;
    }
    group_of_row_[i] = *group;
    append(i, LUNA_VERB_ASSIGN, reason, 0);
    return true;
  }
  /// Whether the group takes the waiting row and holds all of it, if it is not planned yet.
  [[nodiscard]] bool can_assign(std::uint32_t i, const GroupBooks& books) const {
    const Row row = snapshot()[i];
    return row.is_waiting() && !books.is_leaving &&
           n_blocks(row.n_tokens_max()) <= books.n_blocks_total;
  }

  // ---- rows that no group holds alone, for policies that SLICE

  /// Whether partitions of rows of one group may lie in the other.
  [[nodiscard]] bool may_share(const GroupBooks& home, const GroupBooks& guest) const {
    return snapshot().takes(LUNA_VERB_SLICE) && home.slice_set != 0 &&
           home.slice_set == guest.slice_set && attends_alike(home, guest);
  }
  /// Whether the group takes the waiting row and could hold it with what others may hold of it, in
  /// whole partitions.
  [[nodiscard]] bool can_spread(std::uint32_t i, const GroupBooks& home) const {
    const Row row = snapshot()[i];
    const std::int64_t n_partition = LUNA_PARTITION_TOKENS / snapshot_->kv_block_tokens;
    if (!row.is_waiting() || home.is_leaving || !may_share(home, home)) return false;
    if (n_partition == 0 || home.n_blocks_total < n_partition) return false;
    std::int64_t n_around = 0;
    for (const GroupBooks& group : groups_)
      if (&group == &home || (!group.is_leaving && may_share(home, group)))
        n_around += group.n_blocks_total / n_partition * n_partition;
    return n_blocks(row.n_tokens_max()) <= n_around;
  }
  /// Row i lies, or will lie, in several groups: of what it may still need it is promised what
  /// promise() says and nothing else, and take() runs as much of it as has room at home. It does
  /// not move().
  void spread(std::uint32_t i) {
    if (is_spread(i)) return;
    if (GroupBooks* const books = books_of(i); books != nullptr)
      books->n_blocks_free += n_blocks_promised(i);
    planned_[i] = static_cast<unsigned char>(planned_[i] | kSpread);
  }
  [[nodiscard]] bool is_spread(std::uint32_t i) const { return (planned_[i] & kSpread) != 0; }
  /// Keeps so many free blocks of the group of a device for row i, which is spread(): take() uses
  /// those at home first, slice() those elsewhere. Fewer are kept where fewer are free.
  void promise(std::uint32_t i, std::uint32_t device, std::int64_t n_blocks) {
    const std::optional<std::uint32_t> group = group_of_device(device);
    if (!group || !is_spread(i)) return;
    std::int64_t& n_free = groups_[*group].n_blocks_free;
    const std::int64_t n = std::min(n_blocks, std::max<std::int64_t>(n_free, 0));
    n_free -= n;
    promises_.add(i, *group, n);
  }

  /// Moves row i with its KV to the group of a device, whose books it takes its blocks from; it may
  /// run on meanwhile. False if it holds none, moves already, lies in several groups, was planned
  /// to end, or there is no such group of devices with the same attention, or no room there.
  bool move(std::uint32_t i, std::uint32_t device, std::uint16_t reason = LUNA_REASON_ORDER) {
    const Row row = snapshot()[i];
    const std::optional<std::uint32_t> to = group_of_device(device);
    const bool may_move = planned_[i] == 0 || planned_[i] == LUNA_VERB_RUN;  // and once
    if (!to || row.is_waiting() || row->moving_to != LUNA_NO_DEVICE || !may_move || full())
      return false;
    GroupBooks& there = groups_[*to];
    if (group_of_row_[i] == *to || there.is_leaving || snapshot().is_sliced(i)) return false;
    if (!attends_alike(groups_[group_of_row_[i]], there)) return false;
    if (n_blocks(row->n_prompt + row->n_generated_max) > there.n_blocks_total) return false;
    const std::int64_t n_taken = row->n_kv_blocks;
    if (n_taken + there.n_blocks_reserve > there.n_blocks_free) return false;
    there.n_blocks_free -= n_taken;
    append(i, LUNA_VERB_MOVE, reason, 0);
    planned_[i] = static_cast<unsigned char>(planned_[i] | kMoves);
    raw_->actions[raw_->n_actions - 1].device = there.device;
    return true;
  }

  /// Frees the KV of row i; it waits and is recomputed. False if it holds none, or is in the plan
  /// or in a step.
  bool preempt(std::uint32_t i, std::uint16_t reason = LUNA_REASON_MEMORY_HIGH) {
    const Row row = snapshot()[i];
    if (row.is_waiting() || is_named(i) || row.is_in_step() || full()) return false;
    give_back(i);
    add(i, LUNA_VERB_PREEMPT, reason, 0);
    return true;
  }

  /// Ends row i with an error. False if it is in the plan or in a step.
  bool reject(std::uint32_t i, std::uint16_t reason) {
    const Row row = snapshot()[i];
    if (is_named(i) || row.is_in_step() || full()) return false;
    if (!row.is_waiting()) give_back(i);
    add(i, LUNA_VERB_REJECT, reason, 0);
    return true;
  }

  /// Ends row i because it would wait too long; its client is told both numbers.
  bool reject_for_queue(std::uint32_t i, std::uint32_t wait_ms, std::uint32_t wait_ms_max) {
    if (!reject(i, LUNA_REASON_QUEUE_LONG)) return false;
    luna_action& action = raw_->actions[raw_->n_actions - 1];
    action.wait_ms = wait_ms;
    action.wait_ms_max = wait_ms_max;
    return true;
  }

  /// Puts partitions of row i, which holds KV, into another group or back into its own; it may run
  /// in this plan. False if the plan has no place for it or the group no blocks. What the row may
  /// lose is the snapshot's to say: slice_choice.hpp chooses.
  bool slice(std::uint32_t i,
             const SliceShare& share,
             std::uint16_t reason = LUNA_REASON_MEMORY_HIGH) {
    const std::optional<std::uint32_t> group = group_of_device(share.device);
    if (!group || full() || snapshot()[i].is_waiting() || is_planned(i)) return false;
    GroupBooks& books = groups_[*group];
    const std::int64_t n = n_blocks(share.n_tokens);
    if (n > std::max<std::int64_t>(books.n_blocks_free, 0) + promises_.n_of(i, *group))
      return false;
    books.n_blocks_free -= n - promises_.draw(i, *group, n);
    append(i, LUNA_VERB_SLICE, reason, share.n_tokens);
    planned_[i] = static_cast<unsigned char>(planned_[i] | kMoves);
    luna_action& action = raw_->actions[raw_->n_actions - 1];
    action.device = share.device;
    action.first_token = share.first_token;
    return true;
  }

  /// Plan again then, even if nothing happens.
  void wake_at(std::uint64_t now_ns) { raw_->wake_at_ns = now_ns; }

  [[nodiscard]] bool is_planned(std::uint32_t i) const {
    return (planned_[i] & ~(kMoves | kSpread)) != 0;
  }
  /// By this plan.
  [[nodiscard]] bool is_assigned(std::uint32_t i) const {
    return i < found_.size() && found_[i].is_assigned;
  }
  /// Where it belongs, as the plan leaves it; none: nullptr.
  [[nodiscard]] const GroupBooks* group_of(std::uint32_t i) const {
    return group_of_row_[i] == kNone ? nullptr : &groups_[group_of_row_[i]];
  }
  /// In the order of their devices.
  [[nodiscard]] std::span<const GroupBooks> groups() const { return groups_; }
  /// Of the step of the only group; of several groups the most that one of them has.
  [[nodiscard]] std::uint32_t n_tokens_left() const {
    return most_left(&GroupBooks::n_tokens_left);
  }
  [[nodiscard]] std::uint32_t n_rows_left() const { return most_left(&GroupBooks::n_rows_left); }
  /// Rows that no snapshot exceeds: what a policy's own tables need room for.
  [[nodiscard]] std::uint32_t n_reqs_max() const { return n_reqs_max_; }
  /// What a waiting row need not compute, where it belongs: found in the prefix cache there.
  [[nodiscard]] std::uint32_t n_found_tokens(std::uint32_t i) const {
    return is_assigned(i) ? found_[i].n_tokens : snapshot()[i]->n_computed;
  }
  /// Of these, blocks that other rows hold.
  [[nodiscard]] std::uint32_t n_found_blocks_shared(std::uint32_t i) const {
    return is_assigned(i) ? found_[i].n_kv_blocks_shared : snapshot()[i]->n_kv_blocks_shared;
  }

  /// The books of a new plan. Called by the base class.
  ///
  /// n_reqs_max  rows that no snapshot exceeds
  void begin(const luna_snapshot* raw_snapshot, luna_plan* raw, std::uint32_t n_reqs_max) {
    snapshot_ = raw_snapshot;
    raw_ = raw;
    raw_->n_actions = 0;
    raw_->wake_at_ns = 0;
    n_reqs_max_ = n_reqs_max;
    order_.reserve(n_reqs_max);
    planned_.reserve(n_reqs_max);
    group_of_row_.reserve(n_reqs_max);
    planned_.assign(raw_snapshot->n_reqs, 0);
    found_.clear();
    promises_.clear();
    open_books();
    const Snapshot rows = snapshot();
    if (groups_.size() > 1) found_.reserve(n_reqs_max);
    order_.clear();
    group_of_row_.clear();
    for (std::uint32_t i = 0; i < rows.n_rows(); ++i) {
      if (rows[i].is_plannable()) order_.push_back(i);
      group_of_row_.push_back(find_group(rows[i]->device));
      if (group_of_row_[i] == kNone || rows[i].is_waiting()) continue;
      GroupBooks& books = groups_[group_of_row_[i]];
      books.n_blocks_free -= n_blocks_promised(i);
      books.n_blocks_reserve = rows.device(books.first_row).n_kv_blocks_reserve;
    }
  }
  void begin(const luna_snapshot* raw_snapshot, luna_plan* raw) {
    begin(raw_snapshot, raw, raw->n_actions_max);
  }

  /// A policy that never pre-empts must not stand still: when no row of a group could run for want
  /// of blocks, and no step of it is in flight whose end may bring some, its newest row that holds
  /// some gives them up; one that is spread() only where there is no other. Called by the base
  /// class.
  void end() {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      const GroupBooks& books = groups_[g];
      if (books.n_actions > 0 || !books.is_short_of_blocks || books.n_steps_in_flight > 0) continue;
      if (!preempt_newest(g, false)) preempt_newest(g, true);
    }
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  // Beside the verb.
  static constexpr unsigned kMoves = 0x80;
  static constexpr unsigned kSpread = 0x40;

  /// What a row finds where it was assigned.
  struct Found {
    bool is_assigned = false;
    std::uint32_t n_tokens = 0;
    std::uint32_t n_kv_blocks_shared = 0;
  };

  [[nodiscard]] Snapshot snapshot() const { return Snapshot(snapshot_); }
  [[nodiscard]] bool full() const { return raw_->n_actions >= raw_->n_actions_max; }
  [[nodiscard]] std::int64_t n_blocks(std::uint32_t n_tokens) const {
    const std::uint32_t block = snapshot_->kv_block_tokens;
    return n_tokens / block + (n_tokens % block != 0 ? 1 : 0);
  }

  void open_books() {
    const Snapshot rows = snapshot();
    groups_.clear();
    groups_.reserve(rows.n_devices());
    for (std::uint32_t d = 0; d < rows.n_devices(); d = rows.group_end(d)) {
      const luna_device_row& device = rows.device(d);
      const std::uint32_t n_steps_max = std::max(device.n_steps_in_flight_max, 1U);
      GroupBooks& books = groups_.emplace_back();
      books.device = device.device;
      books.n_devices = rows.group_end(d) - d;
      books.first_row = d;
      books.n_tokens_left = snapshot_->n_rows_max;
      books.n_rows_left = snapshot_->n_seqs_max;
      books.n_steps_in_flight = device.n_steps_in_flight;
      books.n_steps_free = n_steps_max - std::min(device.n_steps_in_flight, n_steps_max);
      books.slice_set = rows.slice_set(d);
      books.is_leaving = device.is_leaving != 0;
      books.n_blocks_total = device.n_kv_blocks_total;
      books.n_blocks_free = device.n_kv_blocks_free;
    }
  }
  // By the number of its first device. Most are found where one was found before.
  [[nodiscard]] std::uint32_t find_group(std::uint32_t device) {
    if (device == LUNA_NO_DEVICE) return kNone;
    std::uint32_t& known = known_groups_[device % known_groups_.size()];
    if (known < groups_.size() && groups_[known].device == device) return known;
    for (std::uint32_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].device == device) return known = g;
    return kNone;
  }
  [[nodiscard]] std::optional<std::uint32_t> group_of_device(std::uint32_t device) const {
    for (std::uint32_t g = 0; g < groups_.size(); ++g)
      if (device >= groups_[g].device && device - groups_[g].device < groups_[g].n_devices)
        return g;
    return std::nullopt;
  }
  // Device by device.
  [[nodiscard]] bool attends_alike(const GroupBooks& here, const GroupBooks& there) const {
    const Snapshot rows = snapshot();
    if (here.n_devices != there.n_devices) return false;
    for (std::uint32_t d = 0; d < here.n_devices; ++d)
      if (rows.device(here.first_row + d).attention != rows.device(there.first_row + d).attention)
        return false;
    return true;
  }
  [[nodiscard]] GroupBooks* books_of(std::uint32_t i) {
    return group_of_row_[i] == kNone ? nullptr : &groups_[group_of_row_[i]];
  }
  [[nodiscard]] std::uint32_t most_left(std::uint32_t GroupBooks::*field) const {
    std::uint32_t most = 0;
    for (const GroupBooks& books : groups_)
      most = std::max(most, books.*field);
    return most;
  }

  [[nodiscard]] std::uint32_t n_wanted(std::uint32_t i) const {
    const Row row = snapshot()[i];
    return row.is_waiting() ? row->n_prompt - n_found_tokens(i) : row.n_wanted();
  }
  // Whether the plan does anything with it.
  [[nodiscard]] bool is_named(std::uint32_t i) const { return (planned_[i] & ~kSpread) != 0; }
  // What a prefilling row was let in for and has not taken yet: nobody else may have it.
  [[nodiscard]] std::int64_t n_blocks_promised(std::uint32_t i) const {
    const Row row = snapshot()[i];
    if (!row.is_prefilling() || is_spread(i)) return 0;
    return std::max<std::int64_t>(n_blocks(row->n_prompt) - row->n_kv_blocks, 0);
  }
  [[nodiscard]] std::int64_t n_blocks_to_take(std::uint32_t i, std::uint32_t n_tokens) const {
    const Row row = snapshot()[i];
    if (row.is_prefilling()) return 0;
    if (row.is_decoding()) {
      // A draft that was rejected may have left more blocks than the tokens need.
      const std::int64_t grown = n_blocks(row->n_computed + n_tokens) - row->n_kv_blocks;
      return std::max<std::int64_t>(grown, 0) + row->n_kv_blocks_copied;
    }
    const std::uint32_t n_left = row->n_generated_max - row->n_generated;
    return n_blocks(row->n_prompt + std::min(n_left, snapshot_->kv_block_tokens)) - n_shared(i);
  }
  // Blocks that a waiting row would share with rows that hold them. Which ones they are the books
  // do not know: any that this plan gives back may be among them.
  [[nodiscard]] std::int64_t n_shared(std::uint32_t i) const {
    if (!snapshot()[i].is_waiting()) return 0;
    const std::int64_t n_given_back = groups_[group_of_row_[i]].n_given_back;
    return std::max<std::int64_t>(n_found_blocks_shared(i) - n_given_back, 0);
  }
  // Likewise, what a row gives back may be shared with a row that this plan lets in.
  void give_back(std::uint32_t i) {
    const Row row = snapshot()[i];
    GroupBooks* const books = books_of(i);
    if (books == nullptr) return;
    const std::int64_t kept = std::min<std::int64_t>(row->n_kv_blocks_freed, books->n_shared_taken);
    books->n_shared_taken -= kept;
    books->n_given_back += row->n_kv_blocks_freed;
    books->n_blocks_free += row->n_kv_blocks_freed - kept + n_blocks_promised(i);
    promises_.give_back(i, groups_);
  }

  // As many tokens as its own group has room for.
  bool take_spread(std::uint32_t i, GroupBooks& books, std::uint32_t n_tokens_max) {
    const Row row = snapshot()[i];
    const std::uint32_t group = group_of_row_[i];
    const bool starts = row.is_waiting();
    const std::int64_t n_first = starts ? n_found_tokens(i) : row->n_computed;
    const std::int64_t n_held = starts ? n_shared(i) : row->n_kv_blocks;
    const std::int64_t n_copied = starts ? 0 : row->n_kv_blocks_copied;
    const std::int64_t n_spared = starts ? books.n_blocks_reserve : n_copied;
    const auto n_room_of = [&](std::int64_t n_free) {
      return (n_held + n_free - n_spared) * snapshot_->kv_block_tokens - n_first;
    };
    const std::int64_t n_own = promises_.n_of(i, group);
    std::int64_t n_room = n_room_of(n_own);
    if (n_room <= 0) n_room = n_room_of(n_own + std::max<std::int64_t>(books.n_blocks_free, 0));
    const auto n_tokens =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(n_room, 0, n_tokens_max));
    if (n_tokens == 0) {
      books.is_short_of_blocks = true;
      return false;
    }
    const std::int64_t n_end = n_blocks(static_cast<std::uint32_t>(n_first) + n_tokens);
    const std::int64_t n_taken = std::max<std::int64_t>(n_end - n_held, 0) + n_copied;
    books.n_blocks_free -= n_taken - promises_.draw(i, group, n_taken);
    books.n_tokens_left -= n_tokens;
    --books.n_rows_left;
    books.n_shared_taken += n_shared(i);
    add(i, LUNA_VERB_RUN, LUNA_REASON_ORDER, n_tokens);
    return true;
  }
  bool preempt_newest(std::uint32_t group, bool spread) {
    for (std::uint32_t i = snapshot_->n_reqs; i-- > 0;)
      if (group_of_row_[i] == group && is_spread(i) == spread && preempt(i)) return true;
    return false;
  }

  void add(std::uint32_t i, std::uint16_t verb, std::uint16_t reason, std::uint32_t n_tokens) {
    append(i, verb, reason, n_tokens);
    planned_[i] = static_cast<unsigned char>(planned_[i] | verb);
    if (GroupBooks* const books = books_of(i); books != nullptr) ++books->n_actions;
  }
  void append(std::uint32_t i, std::uint16_t verb, std::uint16_t reason, std::uint32_t n_tokens) {
    const GroupBooks* const books = books_of(i);
    raw_->actions[raw_->n_actions++] = {.row = i,
                                        .verb = verb,
                                        .reason = reason,
                                        .device = books != nullptr ? books->device : LUNA_NO_DEVICE,
                                        .first_token = 0,
                                        .n_tokens = n_tokens,
                                        .arg = 0};
  }

  const luna_snapshot* snapshot_ = nullptr;
  luna_plan* raw_ = nullptr;
  std::uint32_t n_reqs_max_ = 0;
  std::array<std::uint32_t, 256> known_groups_{};  // by the last digits of a first device
  std::vector<GroupBooks> groups_;
  std::vector<std::uint32_t> order_;
  BlockPromises promises_;
  std::vector<unsigned char> planned_;       // by row: its verb but ASSIGN and MOVE; the two bits
  std::vector<std::uint32_t> group_of_row_;  // by row: among groups_; kNone
  std::vector<Found> found_;                 // by row; empty while none is assigned
};

}  // namespace luna
