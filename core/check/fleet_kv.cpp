// Who holds which blocks: rows that share, rows whose parts lie in other groups.
#include "core/check/fleet.hpp"

#include <algorithm>
#include <utility>

namespace luna::check {

std::uint32_t Fleet::n_blocks_used(std::size_t group) const {
  std::uint32_t n = 0;
  for (const FleetJob* job : live_) {
    n += blocks_in(*job, group);
    // Of two that share, one is charged.
    if (job->id < job->twin && job->group == group) n -= job->n_common;
  }
  return n;
}

std::uint32_t Fleet::blocks_in(const FleetJob& job, std::size_t group) const {
  std::uint32_t n = 0;
  if (job.group == group || job.moving_to == group) n += job.n_blocks;
  for (const FleetPart& part : job.parts) {
    const std::uint32_t n_part = blocks(part.n_tokens);
    if (part.group != *job.group && job.group == group) n -= n_part;
    if (part.group != *job.group && part.group == group) n += n_part;
    if (part.copying_to == group) n += n_part;
  }
  return n;
}

// Its own at home, but for what somebody else holds or copies.
std::uint32_t Fleet::n_blocks_freed(const FleetJob& job) const {
  if (job.state == LUNA_REQ_WAITING) return 0;
  std::uint32_t n = job.n_blocks - job.n_common;
  for (const FleetPart& part : job.parts)
    n -= blocks(part.n_tokens);
  return n;
}

bool Fleet::copies_its_last(const FleetJob& job) const {
  return job.n_common * options.block_tokens > job.n_computed;
}

FleetJob* Fleet::twin_of(const FleetJob& job) {
  // One that is to come finds what was there before; until then there is none.
  const bool is_there = job.twin != 0 && job.twin <= jobs.size();
  return is_there ? &jobs[job.twin - 1] : nullptr;
}

bool Fleet::finds_twin(const FleetJob& job, std::size_t group) {
  const FleetJob* const twin = twin_of(job);
  if (twin == nullptr || job.n_alike == 0 || twin->has_ended || twin->state == LUNA_REQ_WAITING ||
      twin->group != group || twin->moving_to || twin->n_finished < job.n_alike)
    return false;
  // What has left its group, and what lies behind that, is found by nobody.
  return std::ranges::none_of(
      twin->parts, [&](const FleetPart& part) { return part.first_token < job.n_alike; });
}

// What a waiting job finds, now that it is shown.
void Fleet::find_prefix(FleetJob& job) {
  if (job.state != LUNA_REQ_WAITING || job.twin == 0) return;
  job.n_found.assign(options.groups.size(), 0);
  for (std::size_t g = 0; g < job.n_found.size(); ++g)
    if (finds_twin(job, g)) job.n_found[g] = job.n_alike;
  if (job.group) job.n_computed = job.n_found[*job.group];
}

// It begins: with the twin's blocks, where it has them.
void Fleet::share_prefix(FleetJob& job) {
  if (job.n_alike > 0 && job.n_computed == job.n_alike && finds_twin(job, *job.group)) {
    job.n_common = twin_of(job)->n_common = blocks(job.n_alike);
    ++n_shared_starts;
  }
  job.state = LUNA_REQ_PREFILL;
}

void Fleet::part_from_twin(FleetJob& job) {
  if (job.n_common == 0) return;
  job.n_common = twin_of(job)->n_common = 0;
}

// A second answer to the same prompt: all blocks are common, the last until one of both writes.
void Fleet::fork(FleetJob& job) {
  if (job.twin != 0 || !job.parts.empty() || job.moving_to) return;
  FleetJob other = job;
  other.id = ++last_id_;
  other.arrival_ns = now_ns;
  other.forks = false;
  other.twin = job.id;
  job.twin = other.id;
  other.n_common = job.n_common = job.n_blocks;
  jobs.push_back(std::move(other));
  live_.push_back(&jobs.back());
}

// From the first that no other row holds, and is not on its way, to the last that is finished.
std::pair<std::uint32_t, std::uint32_t> Fleet::sliceable(const FleetJob& job) const {
  if (!options.can_slice || job.state == LUNA_REQ_WAITING || job.moving_to) return {0, 0};
  constexpr std::uint32_t kPartition = LUNA_PARTITION_TOKENS;
  const std::uint32_t end = job.n_finished / kPartition * kPartition;
  const std::uint32_t n_held = job.n_common * options.block_tokens;
  std::uint32_t first = (n_held + kPartition - 1) / kPartition * kPartition;
  for (bool is_copied = true; is_copied && first < end;) {
    is_copied = std::ranges::any_of(job.parts, [&](const FleetPart& part) {
      return part.copying_to && part.first_token <= first && first < part.end();
    });
    if (is_copied) first += kPartition;
  }
  if (first >= end) return {0, 0};
  return {first, end};
}

void Fleet::slice(FleetJob& job, const luna_action& action) {
  std::uint32_t n_under_way = 0;
  for (const FleetJob* other : live_)
    n_under_way += static_cast<std::uint32_t>(std::ranges::count_if(
        other->parts, [](const FleetPart& part) { return part.copying_to.has_value(); }));
  if (n_under_way >= LUNA_SLICES_COPYING_MAX) return;
  const std::uint32_t first = action.first_token;
  const std::uint32_t end = first + action.n_tokens;
  FleetPart moved{first, action.n_tokens, *job.group, group_of(action.device), 0};
  moved.copied_ns = now_ns + static_cast<std::uint64_t>(
                                 static_cast<double>(blocks(action.n_tokens)) *
                                 static_cast<double>(options.block_bytes) / options.bytes_per_ns);
  // Out of the middle of a part that lies elsewhere, two may be left.
  const auto whole = std::ranges::find_if(job.parts, [&](const FleetPart& part) {
    return part.first_token < end && first < part.end();
  });
  if (whole != job.parts.end()) {
    const FleetPart old = *whole;
    job.parts.erase(whole);
    moved.group = old.group;
    if (old.first_token < first)
      job.parts.push_back({old.first_token, first - old.first_token, old.group});
    if (end < old.end()) job.parts.push_back({end, old.end() - end, old.group});
  }
  job.parts.push_back(moved);
  ++n_slices;
  std::ranges::sort(job.parts, {}, &FleetPart::first_token);
}

// What lies elsewhere, then what is on its way.
void Fleet::fill_slices(std::uint32_t row, const FleetJob& job) {
  for (const FleetPart& part : job.parts)
    if (part.group != *job.group)
      slices_.push_back({row, first_device(part.group), part.first_token, part.n_tokens, 0, 0.0F});
  for (const FleetPart& part : job.parts)
    if (part.copying_to)
      slices_.push_back(
          {row, first_device(*part.copying_to), part.first_token, part.n_tokens, 1, 0.0F});
}

void Fleet::end_copies() {
  for (FleetJob* job : live_) {
    if (job->n_steps > 0) continue;
    if (job->moving_to && now_ns >= job->copied_ns) {
      part_from_twin(*job);
      job->group = std::exchange(job->moving_to, std::nullopt);
    }
    for (FleetPart& part : job->parts)
      if (part.copying_to && now_ns >= part.copied_ns)
        part.group = *std::exchange(part.copying_to, std::nullopt);
    std::erase_if(job->parts, [job](const FleetPart& part) {
      return part.group == *job->group && !part.copying_to;
    });
  }
}

std::optional<std::uint64_t> Fleet::next_copy_ns() const {
  std::optional<std::uint64_t> next;
  const auto take = [&](std::uint64_t ns) { next = std::min(ns, next.value_or(UINT64_MAX)); };
  for (const FleetJob* job : live_) {
    if (job->moving_to && job->copied_ns > now_ns) take(job->copied_ns);
    for (const FleetPart& part : job->parts)
      if (part.copying_to && part.copied_ns > now_ns) take(part.copied_ns);
  }
  return next;
}

}  // namespace luna::check
