#include "core/check/workload.hpp"

#include <algorithm>

namespace luna::check {

FleetOptions Workload::draw_fleet(bool policy_slices) {
  FleetOptions fleet;
  fleet.groups.assign(below(2) == 0 ? 1 : 1 + below(4), {});
  for (FleetGroup& group : fleet.groups) {
    group.n_devices = 1 + below(3);
    group.n_steps_max = below(2) == 0 ? 1 : group.n_devices;
    group.n_blocks = 24 + below(200);
    group.n_blocks_reserve = below(3) == 0 ? 1 + below(4) : 0;
    group.cost.fixed_ns = 1e5 * (1 + below(80));
    group.cost.row_ns = 1e4 * (1 + below(60));
    group.cost.kv_ns = 10.0 * below(30);
  }
  fleet.shows_cost = below(4) != 0;
  fleet.n_rows_max = 16U << below(6);
  fleet.n_seqs_max = 1 + below(32);
  fleet.block_tokens = 32U << below(2);
  fleet.bytes_per_ns = below(3) == 0 ? 1.0 : 0.0;
  fleet.can_slice = fleet.bytes_per_ns > 0.0 && fleet.groups.size() > 1 && below(3) != 0;
  fleet.can_move = !fleet.can_slice || below(2) == 0;
  fleet.lets_in_wide = fleet.can_slice && policy_slices;
  // Devices of groups that slice together hold the same layers in pairs.
  for (FleetGroup& group : fleet.groups)
    if (fleet.can_slice) group.n_devices = fleet.groups.front().n_devices;
  return fleet;
}

// Tokens of a prompt that no group holds alone, but all of them together, where there are such: the
// engine lets them in where the policy slices.
std::uint32_t Workload::draw_wide(const FleetOptions& fleet, std::uint32_t n_otherwise) {
  std::uint32_t n_most = 0;
  std::uint32_t n_all = 0;
  for (const FleetGroup& group : fleet.groups) {
    const std::uint32_t n_tokens = (group.n_blocks - group.n_blocks_reserve) * fleet.block_tokens;
    n_most = std::max(n_most, group.n_blocks * fleet.block_tokens);
    n_all += n_tokens / LUNA_PARTITION_TOKENS * LUNA_PARTITION_TOKENS;
  }
  // A partition at home is never whole, and what it generates comes on top.
  const std::uint32_t n_end = n_all - std::min(n_all, std::uint32_t{LUNA_PARTITION_TOKENS} + 64);
  return n_end > n_most ? n_most + 1 + below(n_end - n_most) : n_otherwise;
}

FleetJob Workload::draw_job(const FleetOptions& fleet, std::uint64_t now_ns) {
  // The engine lets in what some group could hold with all that it may generate; the smallest here,
  // so that each may be chosen.
  const auto smallest = std::ranges::min_element(fleet.groups, {}, &FleetGroup::n_blocks);
  const std::uint32_t n_tokens_max =
      (smallest->n_blocks - smallest->n_blocks_reserve - 1) * fleet.block_tokens;
  FleetJob job;
  // Parts leave where rows are long and memory is short.
  const std::uint32_t n_prompt_max = fleet.can_slice ? n_tokens_max / 4 * 3 : n_tokens_max / 2;
  job.n_prompt = 1 + below(below(fleet.can_slice ? 2 : 4) == 0 ? n_prompt_max : 120);
  job.n_prompt = std::min(job.n_prompt, n_prompt_max);
  job.n_generated_max = std::min(1 + below(60), n_tokens_max - job.n_prompt);
  if (fleet.lets_in_wide && below(10) == 0) job.n_prompt = draw_wide(fleet, job.n_prompt);
  job.priority = static_cast<std::int32_t>(below(3)) - 1;
  job.tenant = below(5);
  if (below(4) == 0) job.deadline_ns = now_ns + std::uint64_t{1'000'000} * (1 + below(5000));
  if (below(4) == 0) job.n_draft = 1 + below(6);
  job.forks = below(8) == 0;
  if (fleet.groups.size() > 1 && below(5) == 0) {
    job.n_found.resize(fleet.groups.size());
    const std::uint32_t n_found = job.n_prompt / fleet.block_tokens / 2 * fleet.block_tokens;
    job.n_found[below(static_cast<std::uint32_t>(job.n_found.size()))] = n_found;
  }
  return job;
}

// As one that came before and has no twin yet: whole blocks of both prompts, but for the last
// token.
void Workload::begin_as_another(Fleet& fleet, FleetJob& job) {
  if (fleet.jobs.empty()) return;
  FleetJob& other = fleet.jobs[below(static_cast<std::uint32_t>(fleet.jobs.size()))];
  const std::uint32_t n_alike = (std::min(job.n_prompt, other.n_prompt) - 1) /
                                fleet.options.block_tokens * fleet.options.block_tokens;
  if (other.twin != 0 || other.has_ended || other.forks || n_alike == 0 || !other.n_found.empty())
    return;
  job.n_found.clear();
  job.forks = false;
  job.twin = other.id;
  job.n_alike = other.n_alike = n_alike;
  other.twin = fleet.jobs.size() + 1;
}

bool Workload::run(Fleet& fleet, std::uint32_t n_jobs) {
  for (std::uint32_t n_left = n_jobs; n_left > 0;) {
    for (std::uint32_t n = std::min(n_left, 1 + below(12)); n > 0; --n, --n_left) {
      FleetJob job = draw_job(fleet.options, fleet.now_ns);
      if (below(4) == 0) begin_as_another(fleet, job);
      fleet.add(std::move(job));
    }
    for (std::uint32_t n = below(30); n > 0; --n)
      if (!fleet.turn()) break;
    if (!fleet.breaches.empty()) return false;
    if (below(4) == 0)
      fleet.cancel(fleet.jobs[below(static_cast<std::uint32_t>(fleet.jobs.size()))]);
  }
  return fleet.run();
}

}  // namespace luna::check
