#include "core/telemetry/metrics.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

namespace luna::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::array<const char*, kEndCodes> kCodeNames = {
    "ok", "length", "cancelled", "rejected", "client_error", "server_error"};

double load(const std::atomic<std::uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

/// Collects families; a family is opened once and then filled, one series a call.
class Families {
 public:
  void open(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void value(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  template <std::size_t N>
  void histogram(Labels labels, const Histogram<N>& source) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i <= N; ++i) {
      cumulative += source.count(i);
      const double bound = i < N ? source.bounds()[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = source.sum();
    families_.back().metric.push_back(std::move(metric));
  }
  [[nodiscard]] const std::vector<MetricFamily>& all() const { return families_; }

 private:
  std::vector<MetricFamily> families_;
};

struct ScalarFamily {
  const char* name;
  const char* help;
  MetricType type;
  std::atomic<std::uint64_t> EngineStats::*field;
};

constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;

constexpr ScalarFamily kScalars[] = {
    {"luna_requests_running", "Sequences that hold KV.", kGauge, &EngineStats::n_running},
    {"luna_requests_waiting",
     "Sequences not started, or pre-empted.",
     kGauge,
     &EngineStats::n_waiting},
    {"luna_requests_held",
     "Sequences waiting because no group of devices could hold them now.",
     kGauge,
     &EngineStats::n_held},
    {"luna_prompt_tokens_total",
     "Prompt tokens of started requests, computed or cached.",
     kCounter,
     &EngineStats::n_prompt_tokens},
    {"luna_generation_tokens_total", "Tokens made.", kCounter, &EngineStats::n_generated_tokens},
    {"luna_cached_tokens_total",
     "Prompt tokens found in the prefix cache.",
     kCounter,
     &EngineStats::n_cached_tokens},
    {"luna_recomputed_tokens_total",
     "Tokens computed again after a pre-emption.",
     kCounter,
     &EngineStats::n_recomputed_tokens},
    {"luna_draft_tokens_total",
     "Tokens that were drafted and verified.",
     kCounter,
     &EngineStats::n_draft_tokens},
    {"luna_draft_tokens_accepted_total",
     "Drafted tokens that became part of an answer.",
     kCounter,
     &EngineStats::n_draft_tokens_accepted},
    {"luna_draft_steps_total", "Steps of the draft model.", kCounter, &EngineStats::n_draft_steps},
    {"luna_draft_failures_total",
     "Steps of the draft model that failed; sequences go on without drafts.",
     kCounter,
     &EngineStats::n_draft_failures},
    {"luna_draft_kv_blocks_used",
     "KV blocks of the draft model held by sequences.",
     kGauge,
     &EngineStats::n_draft_kv_blocks_used},
    {"luna_preemptions_total",
     "Sequences whose KV was taken back.",
     kCounter,
     &EngineStats::n_preempted},
    {"luna_moves_total",
     "Sequences that went to another group of devices with their KV.",
     kCounter,
     &EngineStats::n_moves},
    {"luna_moves_recomputed_total",
     "Sequences that were moved by computing their KV anew, which was faster.",
     kCounter,
     &EngineStats::n_moves_recomputed},
    {"luna_moves_failed_total",
     "Moves whose copy failed; the sequence stayed where it was.",
     kCounter,
     &EngineStats::n_moves_failed},
    {"luna_moved_kv_blocks_total",
     "KV blocks copied between groups of devices.",
     kCounter,
     &EngineStats::n_moved_blocks},
    {"luna_kv_blocks_used", "KV blocks held by sequences.", kGauge, &EngineStats::n_kv_blocks_used},
    {"luna_kv_blocks_cached",
     "KV blocks held by the prefix cache alone.",
     kGauge,
     &EngineStats::n_kv_blocks_cached},
    {"luna_kv_blocks_free", "KV blocks free.", kGauge, &EngineStats::n_kv_blocks_free},
    {"luna_kv_moves_total",
     "Parts of a sequence's KV that went to another group of devices, or came back.",
     kCounter,
     &EngineStats::n_kv_moves},
    {"luna_kv_move_failures_total",
     "Parts of a sequence's KV that could not be copied to another group of devices.",
     kCounter,
     &EngineStats::n_kv_move_failures},
    {"luna_kv_blocks_evicted_total",
     "Cached KV blocks given to other tokens.",
     kCounter,
     &EngineStats::n_kv_blocks_evicted},
    {"luna_prefix_hits_total",
     "Started prompts whose beginning was in the prefix cache.",
     kCounter,
     &EngineStats::n_prefix_hits},
    {"luna_prefix_misses_total",
     "Started prompts of which nothing was in the prefix cache.",
     kCounter,
     &EngineStats::n_prefix_misses},
    {"luna_kv_audit_failures_total",
     "Steps at which free + used + cached was not the total.",
     kCounter,
     &EngineStats::n_kv_audit_failures},
    {"luna_steps_total", "Steps run.", kCounter, &EngineStats::n_steps},
    {"luna_steps_in_flight", "Steps that run now.", kGauge, &EngineStats::n_steps_in_flight},
    {"luna_steps_in_flight_max",
     "Steps that may run at a time.",
     kGauge,
     &EngineStats::n_steps_in_flight_max},
    {"luna_plan_rejected_total",
     "Plans of the scheduler that were refused.",
     kCounter,
     &EngineStats::n_plans_rejected},
    {"luna_plans_late_total",
     "Plans that took longer than scheduler.plan_budget_ms.",
     kCounter,
     &EngineStats::n_plans_late},
    {"luna_policy_replacements_total",
     "Times that a fallback took the place of a policy that kept failing.",
     kCounter,
     &EngineStats::n_policies_replaced},
};

struct GroupFamily {
  const char* name;
  const char* key;  // in the page of groups
  const char* help;
  MetricType type;
  std::atomic<std::uint64_t> GroupStats::*field;
  double unit = 1.0;
};

constexpr GroupFamily kOfGroups[] = {
    {"luna_group_requests_running",
     "running",
     "Sequences that hold KV of the group.",
     kGauge,
     &GroupStats::n_running},
    {"luna_group_requests_waiting",
     "waiting",
     "Sequences that wait for the group.",
     kGauge,
     &GroupStats::n_waiting},
    {"luna_group_steps_total", "steps", "Steps begun.", kCounter, &GroupStats::n_steps},
    {"luna_group_steps_in_flight",
     "steps_in_flight",
     "Steps that run now.",
     kGauge,
     &GroupStats::n_steps_in_flight},
    {"luna_group_kv_blocks_used",
     "kv_blocks_used",
     "KV blocks held by sequences.",
     kGauge,
     &GroupStats::n_kv_blocks_used},
    {"luna_group_kv_blocks_cached",
     "kv_blocks_cached",
     "KV blocks held by the prefix cache alone.",
     kGauge,
     &GroupStats::n_kv_blocks_cached},
    {"luna_group_kv_blocks_free",
     "kv_blocks_free",
     "KV blocks free.",
     kGauge,
     &GroupStats::n_kv_blocks_free},
    {"luna_group_guest_attention_total",
     "guest_attention",
     "Attention that sequences of other groups paid to what the group holds of them; all attention "
     "of a step's last row of a sequence is 1.",
     kCounter,
     &GroupStats::guest_attention,
     1.0 / kAttentionUnits},
};

struct CheckFamily {
  const char* name;
  const char* key;  // in the page of checks
  const char* help;
  MetricType type;
  std::atomic<std::uint64_t> OutputCheckStats::*field;
};

constexpr CheckFamily kOfChecks[] = {
    {"luna_output_checks_waiting",
     "waiting",
     "Answers that wait to be computed once more.",
     kGauge,
     &OutputCheckStats::n_waiting},
    {"luna_output_checks_total",
     "checked",
     "Answers that were computed once more and compared.",
     kCounter,
     &OutputCheckStats::n_checked},
    {"luna_output_mismatches_total",
     "mismatches",
     "Answers that differed from what they were when computed once more.",
     kCounter,
     &OutputCheckStats::n_mismatches},
    {"luna_output_checks_interrupted_total",
     "interrupted",
     "Answers whose computing anew made room for requests.",
     kCounter,
     &OutputCheckStats::n_interrupted},
};
constexpr std::array<const char*, kCheckSkips> kSkipNames = {"too_large", "no_room", "failed"};

/// Where groups stand now.
std::vector<std::size_t> places_of(const EngineStats& stats) {
  std::vector<std::size_t> places;
  for (std::size_t g = 0; g < stats.groups.size(); ++g)
    if (stats.groups[g].n_devices.load(std::memory_order_acquire) > 0) places.push_back(g);
  return places;
}

boost::json::array devices_of(const EngineStats& stats, std::size_t place) {
  const GroupStats& group = stats.groups[place];
  boost::json::array names;
  const std::size_t n_devices = group.n_devices.load(std::memory_order_acquire);
  for (std::size_t d = 0; d < n_devices; ++d)
    names.emplace_back(stats.devices[group.devices[d].load()].name_text());
  return names;
}

void add_cluster(Families& families, const ClusterStats& cluster) {
  families.open("luna_cluster_workers", "Workers that have joined.", kGauge);
  families.value({}, load(cluster.n_workers));
  families.open("luna_cluster_devices", "Devices of the workers that have joined.", kGauge);
  families.value({}, load(cluster.n_devices));
  families.open("luna_cluster_workers_joined_total", "Workers that ever joined.", kCounter);
  families.value({}, load(cluster.n_joined));
  families.open(
      "luna_cluster_workers_lost_total", "Workers that joined and went unasked.", kCounter);
  families.value({}, load(cluster.n_lost));
  families.open(
      "luna_cluster_workers_drained_total", "Workers that joined and left in order.", kCounter);
  families.value({}, load(cluster.n_drained));
  families.open("luna_cluster_memory_alarms", "Workers above their memory alarm.", kGauge);
  families.value({}, load(cluster.n_alarmed));
  families.open("luna_cluster_workers_relieved_total",
                "Times that a worker gave memory back because of its alarm.",
                kCounter);
  families.value({}, load(cluster.n_relieved));
  families.open("luna_cluster_workers_restarted_total",
                "Workers that ended because of their memory alarm.",
                kCounter);
  families.value({}, load(cluster.n_restarted));
  families.open("luna_cluster_placements_total",
                "Times that a model was placed on devices while it served.",
                kCounter);
  families.value({}, load(cluster.n_placed));
  families.open("luna_cluster_degraded_devices", "Devices fewer than models once had.", kGauge);
  families.value({}, load(cluster.n_degraded));
  families.open(
      "luna_cluster_refused_total", "Connections and workers that were refused.", kCounter);
  families.value({}, load(cluster.n_refused));
}

}  // namespace

std::string MetricsPage::render() const {
  Families families;
  for (const ScalarFamily& scalar : kScalars) {
    families.open(scalar.name, scalar.help, scalar.type);
    for (const Source& model : models_)
      families.value({{"model", model.name}}, load(model.stats->*scalar.field));
  }
  families.open("luna_requests_total", "Requests to the model that ended, by how.", kCounter);
  for (const Source& model : models_)
    for (std::size_t code = 0; code < kEndCodes; ++code)
      families.value({{"model", model.name}, {"code", kCodeNames[code]}},
                     load(model.stats->n_ended[code]));
  families.open("luna_device_busy_seconds_total",
                "Time inside op programs; its rate is the device's busy share.",
                kCounter);
  for (const Source& model : models_) {
    const std::size_t n_devices = model.stats->n_devices.load(std::memory_order_acquire);
    for (const DeviceStats& device : std::span(model.stats->devices).first(n_devices))
      families.value({{"model", model.name}, {"device", std::string(device.name_text())}},
                     load(device.busy_ns) * 1e-9);
  }
  for (const GroupFamily& family : kOfGroups) {
    families.open(family.name, family.help, family.type);
    for (const Source& model : models_)
      for (const std::size_t g : places_of(*model.stats))
        families.value({{"model", model.name}, {"group", std::to_string(g)}},
                       load(model.stats->groups[g].*family.field) * family.unit);
  }
  for (const CheckFamily& family : kOfChecks) {
    families.open(family.name, family.help, family.type);
    for (const Source& model : models_)
      families.value({{"model", model.name}}, load(model.stats->output_check.*family.field));
  }
  families.open("luna_output_checks_skipped_total",
                "Answers that were to be computed once more and were not, by why.",
                kCounter);
  for (const Source& model : models_)
    for (std::size_t s = 0; s < kCheckSkips; ++s)
      families.value({{"model", model.name}, {"reason", kSkipNames[s]}},
                     load(model.stats->output_check.n_skipped[s]));
  if (!roles_.empty())
    families.open("luna_role_weight", "The role's part of the time of shared devices.", kGauge);
  for (const RoleSource& role : roles_)
    families.value({{"role", role.role}, {"model", role.model}}, role.weight());
  families.open("luna_border_calls_total", "Calls over the plugin border.", kCounter);
  for (const Source& model : models_) {
    families.value({{"kind", "scheduler"}, {"model", model.name}}, load(model.stats->n_plan_calls));
    families.value({{"kind", "backend"}, {"model", model.name}}, load(model.stats->n_submit_calls));
  }
  if (n_role_runs_ != nullptr)
    families.value({{"kind", "role"}, {"model", ""}}, load(*n_role_runs_));
  if (role_run_ns_ != nullptr) {
    families.open("luna_role_run_seconds_total", "Time in calls of stage roles.", kCounter);
    families.value({}, load(*role_run_ns_) / 1e9);
  }

  const auto histogram = [&](const char* name, const char* help, auto field) {
    families.open(name, help, MetricType::Histogram);
    for (const Source& model : models_)
      families.histogram({{"model", model.name}}, model.stats->*field);
  };
  histogram(
      "luna_ttft_seconds", "Arrival to first token, queue included.", &EngineStats::ttft_seconds);
  histogram("luna_queue_seconds", "Arrival to first step.", &EngineStats::queue_seconds);
  histogram("luna_e2e_seconds", "Arrival to last token.", &EngineStats::e2e_seconds);
  histogram("luna_itl_seconds", "Gap between two tokens of a sequence.", &EngineStats::itl_seconds);
  histogram("luna_step_seconds", "One step.", &EngineStats::step_seconds);
  histogram("luna_plan_seconds", "One plan of the scheduler.", &EngineStats::plan_seconds);
  histogram("luna_draft_seconds", "The draft model before one step.", &EngineStats::draft_seconds);

  histogram("luna_move_pause_seconds",
            "How long a sequence stood still that moved.",
            &EngineStats::move_pause_seconds);

  families.open("luna_http_connections", "Open connections.", kGauge);
  families.value({}, load(http_.n_connections));
  families.open("luna_http_requests", "Completions being answered.", kGauge);
  families.value({}, load(http_.n_requests));
  families.open("luna_http_responses_total", "Answers by class of status.", kCounter);
  families.value({{"code", "2xx"}}, load(http_.n_2xx));
  families.value({{"code", "4xx"}}, load(http_.n_4xx));
  families.value({{"code", "5xx"}}, load(http_.n_5xx));
  if (cluster_ != nullptr) add_cluster(families, *cluster_);
  families.open("luna_build_info", "Always 1.", kGauge);
  families.value({{"version", version_}}, 1.0);

  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families.all());
  return std::move(out).str();
}

std::string MetricsPage::render_groups() const {
  std::string text;
  for (const Source& model : models_) {
    for (const std::size_t g : places_of(*model.stats)) {
      boost::json::object object = {
          {"model", model.name}, {"group", g}, {"devices", devices_of(*model.stats, g)}};
      for (const GroupFamily& family : kOfGroups) {
        const std::uint64_t value = (model.stats->groups[g].*family.field).load();
        if (family.unit == 1.0) {
          object[family.key] = value;
        } else {
          object[family.key] = static_cast<double>(value) * family.unit;
        }
      }
      text.append(boost::json::serialize(object)).push_back('\n');
    }
  }
  return text;
}

std::string MetricsPage::render_roles() const {
  std::string text;
  for (const RoleSource& role : roles_) {
    const boost::json::object object = {
        {"role", role.role}, {"model", role.model}, {"weight", role.weight()}};
    text.append(boost::json::serialize(object)).push_back('\n');
  }
  return text;
}

std::string MetricsPage::render_checks() const {
  std::string text;
  for (const Source& model : models_) {
    const OutputCheckStats& stats = model.stats->output_check;
    boost::json::object object = {{"model", model.name}, {"percent", stats.percent.load()}};
    for (const CheckFamily& family : kOfChecks)
      object[family.key] = (stats.*family.field).load();
    boost::json::object skipped;
    for (std::size_t s = 0; s < kCheckSkips; ++s)
      skipped[kSkipNames[s]] = stats.n_skipped[s].load();
    object["skipped"] = std::move(skipped);
    if (stats.n_mismatches.load() > 0) {
      object["last_mismatch"] = {{"sequence", stats.last.request_id.load()},
                                 {"choice", stats.last.choice.load()},
                                 {"position", stats.last.position.load()}};
    }
    text.append(boost::json::serialize(object)).push_back('\n');
  }
  return text;
}

std::string MetricsPage::render_steps(std::size_t n) const {
  std::string text;
  for (const Source& model : models_)
    for (const StepRecord& record : model.stats->steps.last(n))
      text.append(to_json(record, model.name)).push_back('\n');
  return text;
}

}  // namespace luna::telemetry
