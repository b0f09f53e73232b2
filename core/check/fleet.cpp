#include "core/check/fleet.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <span>
#include <tuple>

namespace luna::check {
namespace {

constexpr std::uint32_t kVerbs =
    1U << LUNA_VERB_RUN | 1U << LUNA_VERB_ASSIGN | 1U << LUNA_VERB_PREEMPT | 1U << LUNA_VERB_REJECT;

/// Tokens that its next step could compute, without drafts.
std::uint32_t n_wanted(const FleetJob& job) {
  if (job.state == LUNA_REQ_DECODE) return job.n_steps > 0 ? 0 : 1;
  return job.n_prefill - job.n_computed;
}

std::uint32_t n_draft_of(const FleetJob& job) {
  if (job.state != LUNA_REQ_DECODE || job.n_steps > 0) return 0;
  return std::min(job.n_draft, job.n_generated_max - job.n_generated - 1);
}

}  // namespace

Fleet::Fleet(FleetOptions with, PlanCall call)
    : options(std::move(with)), call_(std::move(call)), flights_(options.groups.size()) {}

FleetJob& Fleet::add(FleetJob job) {
  job.id = ++last_id_;
  job.arrival_ns = now_ns;
  job.n_prefill = job.n_prompt;
  if (options.groups.size() == 1) job.group = 0;
  jobs.push_back(std::move(job));
  live_.push_back(&jobs.back());
  return jobs.back();
}

bool Fleet::cancel(FleetJob& job) {
  if (job.has_ended || job.n_steps > 0) return false;
  end(job);
  erase_ended();
  return true;
}

bool Fleet::turn() {
  if (live_.empty() || !breaches.empty()) return false;
  bool begins = true;
  while (begins && has_room() && has_plannable())
    begins = ask();
  return breaches.empty() && go_on();
}

bool Fleet::run(std::size_t n_turns_max) {
  for (std::size_t n = 0; n < n_turns_max; ++n)
    if (!turn()) return live_.empty() && breaches.empty();
  return false;
}

std::uint32_t Fleet::n_running(std::size_t group) const {
  return static_cast<std::uint32_t>(
      std::count_if(live_.begin(), live_.end(), [group](const FleetJob* job) {
        return job->group == group && job->state != LUNA_REQ_WAITING;
      }));
}

std::string Fleet::describe_first() const {
  if (live_.empty()) return "none";
  const FleetJob& job = *live_.front();
  const std::string group = job.group ? std::to_string(*job.group) : "none";
  return "request " + std::to_string(job.id) + " state " + std::to_string(job.state) + " group " +
         group + " computed " + std::to_string(job.n_computed) + " of " +
         std::to_string(job.n_prefill) + " steps " + std::to_string(job.n_steps) + " blocks " +
         std::to_string(job.n_blocks);
}

std::uint32_t Fleet::first_device(std::size_t group) const {
  std::uint32_t device = 0;
  for (std::size_t g = 0; g < group; ++g)
    device += options.groups[g].n_devices;
  return device;
}

std::size_t Fleet::group_of(std::uint32_t device) const {
  std::size_t group = 0;
  while (group + 1 < options.groups.size() && first_device(group + 1) <= device)
    ++group;
  return group;
}

bool Fleet::has_room() const {
  for (std::size_t g = 0; g < flights_.size(); ++g)
    if (flights_[g].size() < options.groups[g].n_steps_max) return true;
  return false;
}

bool Fleet::has_plannable() const {
  return std::any_of(live_.begin(), live_.end(), [](const FleetJob* job) {
    return job->n_steps == 0 || n_wanted(*job) > 0;
  });
}

void Fleet::blame(std::string_view rule, std::string text) {
  breaches.push_back({n_plans, {rule, std::move(text)}});
}

luna_snapshot Fleet::snapshot() const {
  luna_snapshot s{};
  s.struct_size = sizeof(s);
  s.req_stride = sizeof(luna_req_row);
  s.device_stride = sizeof(luna_device_row);
  s.prefix_stride = sizeof(luna_prefix_row);
  s.link_stride = sizeof(luna_link_row);
  s.slice_stride = sizeof(luna_slice_row);
  s.n_links = static_cast<std::uint32_t>(links_.size());
  s.links = links_.data();
  s.n_slices = static_cast<std::uint32_t>(slices_.size());
  s.slices = slices_.data();
  s.n_reqs = static_cast<std::uint32_t>(rows_.size());
  s.n_devices = static_cast<std::uint32_t>(devices_.size());
  s.n_prefixes = static_cast<std::uint32_t>(prefixes_.size());
  s.n_rows_max = options.n_rows_max;
  s.n_seqs_max = options.n_seqs_max;
  s.kv_block_tokens = options.block_tokens;
  s.step = n_plans;
  s.now_ns = now_ns;
  s.verbs = kVerbs | (options.bytes_per_ns > 0.0 && options.can_move ? 1U << LUNA_VERB_MOVE : 0U) |
            (options.can_slice ? 1U << LUNA_VERB_SLICE : 0U);
  s.reqs = rows_.data();
  s.devices = devices_.data();
  s.prefixes = prefixes_.data();
  for (std::size_t g = 0; g < flights_.size(); ++g) {
    s.n_steps_in_flight += static_cast<std::uint32_t>(flights_[g].size());
    s.n_steps_in_flight_max += options.groups[g].n_steps_max;
  }
  return s;
}

/// Whether a step began.
bool Fleet::ask() {
  fill();
  const luna_snapshot s = snapshot();
  actions_.assign(options.n_actions_max, luna_action{});
  plan_ = {};
  plan_.struct_size = sizeof(plan_);
  plan_.n_actions_max = options.n_actions_max;
  plan_.actions = actions_.data();
  luna_err err = make_err();
  const luna_status status = call_(s, plan_, err);
  if (status < 0) {
    const bool says_why = err.text[0] != '\0';
    blame(says_why ? "S5" : "E2",
          "plan() failed with status " + std::to_string(status) + ": " +
              (says_why ? std::string(text_of(err)) : "no reason given"));
    return false;
  }
  for (PlanBreach& breach : PlanLegality(s, plan_).faults())
    breaches.push_back({n_plans, std::move(breach)});
  if (!breaches.empty()) return false;
  ++n_plans;
  return apply();
}

void Fleet::fill() {
  rows_.clear();
  prefixes_.clear();
  devices_.clear();
  slices_.clear();
  for (FleetJob* job : live_) {
    const auto row = static_cast<std::uint32_t>(rows_.size());
    find_prefix(*job);
    rows_.push_back(row_of(*job));
    fill_slices(row, *job);
    if (job->group) continue;
    for (std::size_t g = 0; g < job->n_found.size(); ++g)
      if (job->n_found[g] > 0)
        prefixes_.push_back({row,
                             first_device(g),
                             job->n_found[g],
                             finds_twin(*job, g) ? blocks(job->n_alike) : 0});
  }
  for (std::size_t g = 0; g < options.groups.size(); ++g)
    for (std::uint32_t d = 0; d < options.groups[g].n_devices; ++d)
      devices_.push_back(device_of(g, first_device(g) + d));
  links_.clear();
  if (options.bytes_per_ns <= 0.0) return;
  for (std::uint32_t from = 0; from < devices_.size(); ++from)
    for (std::uint32_t to = 0; to < devices_.size(); ++to)
      if (from != to) links_.push_back({from, to, 1000, options.bytes_per_ns});
}

luna_req_row Fleet::row_of(const FleetJob& job) {
  luna_req_row row{};
  row.id = job.id;
  row.arrival_ns = job.arrival_ns;
  row.deadline_ns = job.deadline_ns;
  row.state = job.state;
  row.priority = job.priority;
  row.tenant = job.tenant;
  row.device = job.group ? first_device(*job.group) : LUNA_NO_DEVICE;
  row.moving_to = job.moving_to ? first_device(*job.moving_to) : LUNA_NO_DEVICE;
  row.n_prompt = job.n_prefill;
  row.n_computed = job.n_computed;
  row.n_generated = job.n_generated;
  row.n_generated_max = job.n_generated_max;
  row.n_kv_blocks = job.n_blocks;
  row.n_kv_blocks_freed = n_blocks_freed(job);
  row.n_kv_blocks_copied = copies_its_last(job) ? 1 : 0;
  if (job.state == LUNA_REQ_WAITING && job.group && finds_twin(job, *job.group))
    row.n_kv_blocks_shared = blocks(job.n_alike);
  std::tie(row.slice_first_token, row.slice_end_token) = sliceable(job);
  row.n_preempted = job.n_preempted;
  row.n_steps = job.n_steps;
  row.n_draft = n_draft_of(job);
  return row;
}

luna_device_row Fleet::device_of(std::size_t g, std::uint32_t number) const {
  const FleetGroup& group = options.groups[g];
  luna_device_row device{};
  device.device = number;
  device.group = static_cast<std::uint32_t>(g);
  device.n_kv_blocks_total = group.n_blocks;
  device.n_kv_blocks_free = group.n_blocks - n_blocks_used(g);
  device.kv_bytes_total = device.n_kv_blocks_total * options.block_bytes;
  device.kv_bytes_free = device.n_kv_blocks_free * options.block_bytes;
  device.n_kv_blocks_reserve = group.n_blocks_reserve;
  device.n_steps_in_flight = static_cast<std::uint32_t>(flights_[g].size());
  device.n_steps_in_flight_max = group.n_steps_max;
  device.n_running = n_running(g);
  device.slice_set = options.can_slice ? 1 : 0;
  if (options.shows_cost) {
    device.step_ns_fixed = static_cast<float>(group.cost.fixed_ns);
    device.step_ns_per_row = static_cast<float>(group.cost.row_ns);
    device.step_ns_per_kv_token = static_cast<float>(group.cost.kv_ns);
  }
  return device;
}

bool Fleet::apply() {
  bool begins = false;
  std::vector<Flight> begun(options.groups.size());
  std::vector<double> ns(options.groups.size());
  const std::span actions(plan_.actions, plan_.n_actions);
  const auto gives_up = [](const luna_action& action) {
    return action.verb == LUNA_VERB_PREEMPT || action.verb == LUNA_VERB_REJECT;
  };
  for (const luna_action& action : actions) {
    hash(action);
    if (gives_up(action)) give_up(*live_[action.row], action);
  }
  for (const luna_action& action : actions) {
    FleetJob& job = *live_[action.row];
    switch (action.verb) {
      case LUNA_VERB_PREEMPT:
      case LUNA_VERB_REJECT:
        break;  // done
      case LUNA_VERB_ASSIGN:
        job.group = group_of(action.device);
        job.assigned_for = action.reason;
        job.n_computed = *job.group < job.n_found.size() ? job.n_found[*job.group] : 0;
        break;
      case LUNA_VERB_RUN:
        // What it was to share has been given up in the same plan: it waits for the next.
        if (job.state == LUNA_REQ_WAITING && job.n_alike > 0 && job.n_computed == job.n_alike &&
            !finds_twin(job, *job.group))
          break;
        ns[*job.group] += options.groups[*job.group].cost.chunk_ns(job.n_computed, action.n_tokens);
        begun[*job.group].rows.push_back({&job, action.n_tokens, job.state == LUNA_REQ_DECODE});
        break;
      case LUNA_VERB_MOVE:
        job.moving_to = group_of(action.device);
        job.copied_ns = now_ns + static_cast<std::uint64_t>(
                                     static_cast<double>(job.n_blocks * options.block_bytes) /
                                     options.bytes_per_ns);
        ++job.n_moves;
        break;
      case LUNA_VERB_SLICE:
        slice(job, action);
        break;
      default:
        blame("S1", "a verb that no policy needs");
    }
  }
  for (std::size_t g = 0; g < begun.size(); ++g) {
    if (begun[g].rows.empty()) continue;
    begins = true;
    start(g, std::move(begun[g]), ns[g]);
  }
  erase_ended();
  return begins;
}

void Fleet::give_up(FleetJob& job, const luna_action& action) {
  part_from_twin(job);
  job.parts.clear();
  job.n_blocks = 0;
  job.n_computed = job.n_finished = 0;
  job.moving_to.reset();
  if (action.verb == LUNA_VERB_REJECT) {
    job.rejected_for = action.reason;
    return end(job);
  }
  job.state = LUNA_REQ_WAITING;
  job.n_prefill = job.n_prompt + job.n_generated;
  if (options.groups.size() > 1) job.group.reset();
  ++job.n_preempted;
}

void Fleet::start(std::size_t g, Flight flight, double ns) {
  for (const Ran& ran : flight.rows) {
    FleetJob& job = *ran.job;
    ++job.n_steps;
    if (job.state == LUNA_REQ_WAITING) share_prefix(job);
    if (copies_its_last(job)) --job.n_common, --twin_of(job)->n_common;
    job.n_computed += ran.n_tokens;
    job.n_blocks = std::max(job.n_blocks, blocks(job.n_computed));
  }
  if (n_blocks_used(g) > options.groups[g].n_blocks)
    blame("S2", "more KV blocks taken than group " + std::to_string(g) + " has");
  flight.end_ns = now_ns + static_cast<std::uint64_t>(options.groups[g].cost.fixed_ns + ns) + 1;
  if (!flights_[g].empty()) flight.end_ns = std::max(flight.end_ns, flights_[g].back().end_ns + 1);
  flights_[g].push_back(std::move(flight));
}

// To the next end of a step, or to when the policy wished to be woken.
bool Fleet::go_on() {
  std::optional<std::size_t> next;
  for (std::size_t g = 0; g < flights_.size(); ++g)
    if (!flights_[g].empty() &&
        (!next || flights_[g].front().end_ns < flights_[*next].front().end_ns))
      next = g;
  const bool wakes = plan_.wake_at_ns > now_ns && has_room();
  if (!next || (wakes && plan_.wake_at_ns < flights_[*next].front().end_ns)) {
    const std::optional<std::uint64_t> copy_ns = next_copy_ns();
    if (!wakes && !copy_ns) return !live_.empty() && has_room() && has_plannable();
    now_ns = !wakes ? *copy_ns : std::min(plan_.wake_at_ns, copy_ns.value_or(UINT64_MAX));
    end_copies();
    return true;
  }
  now_ns = flights_[*next].front().end_ns;
  const Flight flight = std::move(flights_[*next].front());
  flights_[*next].pop_front();
  for (const Ran& ran : flight.rows)
    finish(ran);
  erase_ended();
  end_copies();
  return !live_.empty();
}

void Fleet::finish(const Ran& ran) {
  FleetJob& job = *ran.job;
  --job.n_steps;
  if (ran.decodes) job.n_computed -= ran.n_tokens - 1;  // its drafts were wrong
  if (job.started_ns == 0) job.started_ns = now_ns;
  if (job.n_steps == 0) job.n_finished = job.n_computed;
  if (job.n_steps > 0 || job.n_computed < job.n_prefill) return;
  job.state = LUNA_REQ_DECODE;
  if (++job.n_generated == job.n_generated_max) return end(job);
  if (job.forks && job.n_generated == 1) fork(job);
}

void Fleet::end(FleetJob& job) {
  part_from_twin(job);
  job.parts.clear();
  job.has_ended = true;
  job.ended_ns = now_ns;
  job.n_blocks = 0;
  job.moving_to.reset();
}

void Fleet::erase_ended() {
  std::erase_if(live_, [](const FleetJob* job) { return job->has_ended; });
}

std::uint32_t Fleet::blocks(std::uint32_t n_tokens) const {
  return (n_tokens + options.block_tokens - 1) / options.block_tokens;
}

void Fleet::hash(const luna_action& action) {
  for (const std::uint64_t part : {rows_[action.row].id,
                                   std::uint64_t{action.verb},
                                   std::uint64_t{action.reason},
                                   std::uint64_t{action.device},
                                   std::uint64_t{action.n_tokens}})
    plan_hash = (plan_hash ^ part) * 0x100000001B3U;
}

}  // namespace luna::check
