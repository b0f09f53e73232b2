#include "core/app/command_replay.hpp"

#include "core/app/plan_text.hpp"
#include "core/base/clock.hpp"
#include "core/base/mapped_file.hpp"
#include "core/engine/plan_file.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/host_services.hpp"

#include <luna/abi/scheduler.h>
#include <luna/plugin.hpp>

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <ostream>
#include <string_view>

namespace luna::app {
namespace {

namespace json = boost::json;
using engine::PlanFileReader;
using engine::RecordedPlan;

std::string_view verb_name(std::uint16_t verb) {
  constexpr std::array<std::string_view, 8> kNames = {
      "nothing", "RUN", "ASSIGN", "SLICE", "MOVE", "PREEMPT", "REJECT", "ROLE"};
  return verb < kNames.size() ? kNames[verb] : "an unknown verb";
}

/// For people: "RUN row 3 (request 17) device 0 n_tokens 32 ...". Rows of ROLE are no requests.
std::string describe(const luna_action& action, const luna_snapshot& snapshot) {
  std::string text(verb_name(action.verb));
  text += " row " + std::to_string(action.row);
  if (action.verb != LUNA_VERB_ROLE && action.row < snapshot.n_reqs)
    text += " (request " + std::to_string(snapshot.reqs[action.row].id) + ")";
  return text + " device " + std::to_string(action.device) + " first_token " +
         std::to_string(action.first_token) + " n_tokens " + std::to_string(action.n_tokens) +
         " arg " + std::to_string(action.arg) + " reason " + std::to_string(action.reason);
}

bool is_equal(const luna_action& a, const luna_action& b) {
  return a.row == b.row && a.verb == b.verb && a.reason == b.reason && a.device == b.device &&
         a.first_token == b.first_token && a.n_tokens == b.n_tokens && a.arg == b.arg;
}

/// A policy that answers recorded snapshots.
class Replay {
 public:
  explicit Replay(const plugin::Instance<luna_scheduler_if>& policy) : policy_(policy) {}

  /// Asks again. Empty: the answer is the recorded one.
  std::string compare(const RecordedPlan& recorded) {
    actions_.assign(recorded.plan.n_actions_max, luna_action{});
    luna_plan answer{};
    answer.struct_size = sizeof(answer);
    answer.n_actions_max = recorded.plan.n_actions_max;
    answer.actions = actions_.data();
    luna_err err = make_err();
    const luna_status status = policy_->plan(policy_.self(), &recorded.snapshot, &answer, &err);
    if (status != recorded.status)
      return "status " + std::to_string(recorded.status) + ", now " + std::to_string(status) +
             (status < 0 ? " (" + std::string(text_of(err)) + ")" : "");
    const std::size_t n_now = std::min<std::size_t>(answer.n_actions, actions_.size());
    for (std::size_t a = 0; a < std::max(n_now, recorded.actions.size()); ++a) {
      const bool was = a < recorded.actions.size();
      const bool is = a < n_now;
      if (was && is && is_equal(recorded.actions[a], actions_[a])) continue;
      const auto text = [&](bool there, const luna_action& action) {
        return there ? describe(action, recorded.snapshot) : std::string("none");
      };
      return "action " + std::to_string(a) + ": " +
             text(was, was ? recorded.actions[a] : luna_action{}) + ", now " +
             text(is, is ? actions_[a] : luna_action{});
    }
    if (answer.wake_at_ns == recorded.plan.wake_at_ns) return {};
    return "wake_at_ns " + std::to_string(recorded.plan.wake_at_ns) + ", now " +
           std::to_string(answer.wake_at_ns);
  }

 private:
  const plugin::Instance<luna_scheduler_if>& policy_;
  std::vector<luna_action> actions_;
};

/// What came of it.
struct Outcome {
  PlanText origin;
  std::string policy;
  std::string plugin_version;
  std::uint64_t n_plans = 0;
  std::optional<std::uint64_t> different_step;
  std::string difference;
  std::optional<engine::RecordEnd> end;
  std::string chain;
};

/// The policy with its own clock and seed, as a server starts it.
struct Host {
  RealClock clock;
  plugin::HostServices services{{&clock, 0, {}}};
  std::unique_ptr<plugin::Catalog> catalog;

  explicit Host(const std::vector<std::filesystem::path>& folders) {
    plugin::Catalog::Options search;
    search.folders = plugin::search_folders(folders, {});
    search.services = &services;
    catalog = plugin::Catalog::scan(std::move(search));
  }
};

Result<Outcome> replay(const ReplayOptions& options) {
  LUNA_TRY(const MappedFile file, MappedFile::open(options.file));
  const std::string name = options.file.string();
  auto reader = PlanFileReader::open(file.bytes());
  if (!reader) return reader.error().in(name);
  Outcome outcome;
  LUNA_TRY(outcome.origin, parse_plan_text(reader->text(), name));
  outcome.policy = options.policy.value_or(outcome.origin.policy);
  // Another policy would not know the recorded settings.
  config::RawGroup settings;
  if (outcome.policy == outcome.origin.policy) settings = outcome.origin.settings;
  const Host host(options.plugin_folders);
  LUNA_TRY(const plugin::Library* library, host.catalog->load(LUNA_KIND_SCHEDULER, outcome.policy));
  outcome.plugin_version = library->descriptor().version;
  LUNA_TRY(const auto policy, host.catalog->create<luna_scheduler_if>(outcome.policy, settings));
  Replay again(policy);
  for (;;) {
    const auto more = reader->next();
    if (!more) return more.error().in(name);
    if (!*more) break;
    outcome.difference = again.compare(reader->plan());
    if (outcome.difference.empty()) continue;
    outcome.different_step = reader->plan().snapshot.step;
    break;
  }
  outcome.n_plans = reader->n_plans();
  outcome.end = reader->end();
  outcome.chain = hex_of(reader->chain());
  return outcome;
}

std::string_view end_text(const Outcome& outcome) {
  return outcome.end ? engine::record_end_name(*outcome.end) : "cut_off";
}

void print(const Outcome& outcome, std::ostream& out) {
  const PlanText& origin = outcome.origin;
  out << "recorded  model " << origin.model << ", policy " << origin.policy << ' '
      << origin.plugin_version << '\n';
  out << "replayed  policy " << outcome.policy << ' ' << outcome.plugin_version << '\n';
  if (outcome.different_step) {
    out << "plan " << outcome.n_plans - 1 << " (step " << *outcome.different_step
        << ") differs: " << outcome.difference << '\n';
    return;
  }
  out << outcome.n_plans << " plans, all equal\n";
  out << "recording ended: " << end_text(outcome) << "; chain " << outcome.chain << '\n';
}

json::object to_json(const Outcome& outcome) {
  json::object object = {{"model", outcome.origin.model},
                         {"recorded_policy", outcome.origin.policy},
                         {"recorded_version", outcome.origin.plugin_version},
                         {"policy", outcome.policy},
                         {"version", outcome.plugin_version},
                         {"plans", outcome.n_plans},
                         {"equal", !outcome.different_step.has_value()}};
  if (outcome.different_step) {
    object["different_plan"] = outcome.n_plans - 1;
    object["different_step"] = *outcome.different_step;
    object["difference"] = outcome.difference;
  } else {
    object["end"] = end_text(outcome);
    object["chain"] = outcome.chain;
  }
  return object;
}

}  // namespace

int run_replay(const ReplayOptions& options, const CommandStreams& streams) {
  const auto outcome = replay(options);
  if (!outcome) return fail(streams, outcome.error());
  if (options.json) {
    streams.out << json::serialize(to_json(*outcome)) << '\n';
  } else {
    print(*outcome, streams.out);
  }
  return outcome->different_step ? kExitFailed : kExitFine;
}

}  // namespace luna::app
