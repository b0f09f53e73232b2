// A scheduler plugin that works, with one fault, chosen by the name that it is linked with. What
// the host cannot see at the start, and the validator has to find. Compiled once.
#include "zoo_descriptor.hpp"

#include <luna/scheduler.hpp>

#include <algorithm>
#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

double cpu_ms() {
  return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC;
}

void work_for(double ms) {
  const double began = cpu_ms();
  while (cpu_ms() - began < ms) {}
}

/// A thread that outlives whoever started it.
void start_thread() {
  std::thread([] { ::pause(); }).detach();
}

struct Constructed {
  Constructed() {
    if (is("slow_load")) work_for(200.0);
    if (is("writes_at_load")) static_cast<void>(::write(STDERR_FILENO, "hello\n", 6));
    if (is("thread_at_load")) start_thread();
    if (is("opens_file_at_load")) static_cast<void>(::open("/dev/null", O_RDONLY));
    if (is("environment_at_load")) ::setenv("LUNA_ZOO", "1", 1);
  }
};
const Constructed constructed;

/// First come, first served, as far as its fault lets it.
struct Fifo final : luna::Scheduler {
  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    if (is("starves_long_ones"))
      std::ranges::sort(
          order, {}, [&](std::uint32_t i) { return std::pair(rows[i].n_remaining(), i); });
    if (is("orders_by_address")) by_address(rows, order);
    if (is("orders_by_clock")) by_clock(order);
    for (const std::uint32_t i : order)
      if (!out.take(i)) break;
  }

 private:
  // An object a request, made when it is first seen: where the heap has put it decides.
  void by_address(const luna::Snapshot& rows, std::vector<std::uint32_t>& order) {
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) {
      auto& object = objects_[rows[i]->id];
      if (object.empty()) object.resize(200);
      return (reinterpret_cast<std::uintptr_t>(object.data()) * 0x9E3779B97F4A7C15U) >> 40U;
    });
  }
  static void by_clock(std::vector<std::uint32_t>& order) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (!order.empty())
      std::rotate(order.begin(),
                  order.begin() +
                      static_cast<long>(static_cast<std::size_t>(now.tv_nsec / 64) % order.size()),
                  order.end());
  }
  std::map<std::uint64_t, std::string> objects_;
};

using Instance = luna::SchedulerInstance<Fifo>;

/// What create() makes: the policy, and what a faulty one keeps.
struct Kept {
  std::unique_ptr<Instance> policy;
  const luna_kv* settings = nullptr;
  const luna_req_row* rows = nullptr;
  std::thread::id thread = std::this_thread::get_id();
  int n_plans = 0;
};

void add(luna_plan* plan, const luna_action& action) {
  if (plan->n_actions < plan->n_actions_max) plan->actions[plan->n_actions++] = action;
}

luna_action run_of(std::uint32_t row, std::uint32_t n_tokens) {
  luna_action action{};
  action.row = row;
  action.verb = LUNA_VERB_RUN;
  action.n_tokens = n_tokens;
  return action;
}

const luna_req_row& row_at(const luna_snapshot* s, std::uint32_t i) {
  return *reinterpret_cast<const luna_req_row*>(reinterpret_cast<const unsigned char*>(s->reqs) +
                                                std::size_t{s->req_stride} * i);
}

/// Illegal actions on top of a plan, or in its place.
void spoil(const luna_snapshot* s, luna_plan* plan) {
  const std::uint32_t first = plan->n_actions > 0 ? plan->actions[0].row : 0;
  if (is("names_no_row")) add(plan, run_of(s->n_reqs + 7, 1));
  if (is("names_a_row_twice") && plan->n_actions > 0) add(plan, plan->actions[0]);
  if (is("unknown_verb")) {
    luna_action action = run_of(0, 1);
    action.verb = 40;
    add(plan, action);
  }
  if (is("preempts_waiting"))
    for (std::uint32_t i = 0; i < s->n_reqs; ++i)
      if (row_at(s, i).state == LUNA_REQ_WAITING) {
        luna_action action = run_of(i, 0);
        action.verb = LUNA_VERB_PREEMPT;
        plan->n_actions = 0;
        add(plan, action);
        return;
      }
  if (is("more_than_it_wants") && plan->n_actions > 0 && plan->actions[0].verb == LUNA_VERB_RUN)
    plan->actions[0].n_tokens += row_at(s, first).n_prompt + 1;
  if (is("too_many_tokens") || is("too_many_rows") || is("too_many_blocks")) {
    // Everything that could run, without books.
    plan->n_actions = 0;
    for (std::uint32_t i = 0; i < s->n_reqs; ++i) {
      const luna_req_row& row = row_at(s, i);
      if (row.device == LUNA_NO_DEVICE || row.n_steps > 0) continue;
      const std::uint32_t n_left = row.n_prompt - row.n_computed;
      const bool decodes = row.state == LUNA_REQ_DECODE;
      add(plan, run_of(i, decodes ? 1 : (is("too_many_rows") ? 1 : n_left)));
    }
  }
  if (is("assigns_running"))
    for (std::uint32_t i = 0; i < s->n_reqs; ++i)
      if (row_at(s, i).state != LUNA_REQ_WAITING) {
        luna_action action = run_of(i, 0);
        action.verb = LUNA_VERB_ASSIGN;
        add(plan, action);
        return;
      }
  if (is("preempts_in_step"))
    for (std::uint32_t i = 0; i < s->n_reqs; ++i)
      if (row_at(s, i).n_steps > 0) {
        luna_action action = run_of(i, 0);
        action.verb = LUNA_VERB_PREEMPT;
        add(plan, action);
        return;
      }
}

/// A part of the first row that may be sliced, cut or sent wrongly.
void slice_wrongly(const luna_snapshot* s, luna_plan* plan) {
  const bool cuts = is("slices_within_a_partition");
  const bool stays = is("slices_to_where_it_is");
  const bool hurries = is("slices_what_is_not_finished");
  if (!cuts && !stays && !hurries) return;
  for (std::uint32_t i = 0; i < s->n_reqs; ++i) {
    const luna_req_row& row = row_at(s, i);
    if (row.slice_end_token == 0) continue;
    luna_action action = run_of(i, cuts ? 100 : LUNA_PARTITION_TOKENS);
    action.verb = LUNA_VERB_SLICE;
    action.device = stays || row.device != s->devices[0].device
                        ? row.device
                        : s->devices[s->n_devices - 1].device;
    action.first_token = hurries ? row.slice_end_token : row.slice_first_token;
    return add(plan, action);
  }
}

// Small enough to be called often, large enough that the compiler keeps it.
void take_and_leave() {
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc): that is the fault
  void* volatile memory = std::malloc(64);
  std::free(memory);
}

void leak() {
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc): that is the fault
  [[maybe_unused]] void* volatile memory = std::malloc(4096);
}

luna_status plan(void* self, const luna_snapshot* s, luna_plan* plan, luna_err* err) {
  auto* kept = static_cast<Kept*>(self);
  if (is("throws_in_plan")) throw std::runtime_error("thrown by plan");
  if (is("crashes_in_plan")) ::raise(SIGSEGV);
  if (is("exits_in_plan")) std::exit(3);
  if (is("hangs_in_plan"))
    for (;;)
      ::pause();
  if (is("fails_silently_in_plan")) return LUNA_INTERNAL;
  if (is("fails_in_plan")) return luna::report(err, LUNA_INTERNAL, "no mood for it");
  if (is("stands_still")) {
    plan->n_actions = 0;
    return LUNA_OK;
  }
  if (is("knows_its_thread") && kept->thread != std::this_thread::get_id())
    return luna::report(err, LUNA_INTERNAL, "called from another thread");
  if (is("writes_rows") && s->n_reqs > 0) const_cast<luna_req_row*>(s->reqs)->n_draft = 0;
  if (is("keeps_rows")) {
    if (kept->rows != nullptr && kept->rows->id == 0)
      return luna::report(err, LUNA_CORRUPT, "gone");
    kept->rows = s->reqs;
  }
  if (is("writes_no_zero")) std::memset(err->text, 'x', sizeof(err->text));
  if (is("allocates_in_plan")) take_and_leave();
  if (is("slow_plan")) work_for(0.003 * s->n_reqs);
  if (is("late_plan")) work_for(30.0);
  luna_snapshot copy = *s;
  if (is("fixed_stride")) copy.req_stride = sizeof(luna_req_row);
  const luna_status status = Instance::plan(kept->policy.get(), &copy, plan, err);
  if (is("writes_too_many"))
    for (std::uint32_t n = 0; n < 8; ++n)
      plan->actions[plan->n_actions_max + n] = run_of(0, 1);
  if (is("counts_too_many")) plan->n_actions = plan->n_actions_max + 1;
  spoil(s, plan);
  if (is("turns_illegal") && ++kept->n_plans > 12) add(plan, run_of(s->n_reqs + 7, 1));
  slice_wrongly(s, plan);
  return status;
}

const luna_host* g_host = nullptr;

luna_status plan_and_log(void* self, const luna_snapshot* s, luna_plan* out, luna_err* err) {
  if (is("logs_in_plan")) g_host->log(g_host, LUNA_LOG_INFO, luna::to_abi("a plan"));
  return plan(self, s, out, err);
}

luna_status create(const luna_host* host,
                   const luna_kv* settings,
                   std::uint32_t n_settings,
                   void** self,
                   luna_err* err) {
  g_host = host;
  if (is("fails_silently")) return LUNA_IO;
  if (is("makes_nothing")) return LUNA_OK;
  if (is("writes_settings") && n_settings > 0) const_cast<luna_kv*>(settings)->i = 7;
  if (is("leaks_memory")) leak();
  if (is("leaks_descriptor")) static_cast<void>(::open("/dev/null", O_RDONLY));
  if (is("leaks_thread")) start_thread();
  if (is("sets_environment")) ::setenv("LUNA_ZOO", "1", 1);
  if (is("sets_rounding")) std::fesetround(FE_UPWARD);
  if (is("sets_locale")) std::setlocale(LC_ALL, "C.UTF-8");
  if (is("sets_signal")) std::signal(SIGUSR1, SIG_IGN);
  if (is("changes_folder")) static_cast<void>(::chdir("/"));
  static Kept shared;
  if (is("shares_its_instance")) {
    if (shared.policy == nullptr)
      shared.policy = std::make_unique<Instance>(std::make_unique<Fifo>());
    *self = &shared;
    return LUNA_OK;
  }
  if (is("throws_without_memory")) {
    // Unfenced: what new throws crosses the border.
    auto kept = std::make_unique<Kept>();
    kept->policy = std::make_unique<Instance>(std::make_unique<Fifo>());
    *self = kept.release();
    return LUNA_OK;
  }
  return luna::fenced(err, [&] {
    auto kept = std::make_unique<Kept>();
    kept->policy = std::make_unique<Instance>(std::make_unique<Fifo>());
    if (is("keeps_settings")) kept->settings = settings;
    *self = kept.release();
    return LUNA_OK;
  });
}

void destroy(void* self) {
  if (is("shares_its_instance")) return;
  auto* const kept = static_cast<Kept*>(self);
  if (is("aborts_in_destroy")) std::abort();
  if (is("keeps_settings") && kept->settings != nullptr && kept->settings->i == 12345) return;
  delete kept;
}

const void* ext(void* self, const char* id) {
  if (is("knows_every_extension")) return &constructed;
  if (std::string_view(id) != LUNA_EXT_REASONS) return nullptr;
  if (!is("reason_twice") && !is("reason_unnamed")) return nullptr;
  static_cast<void>(self);
  static constexpr luna_reason kTwice[] = {{300, LUNA_VERB_RUN, "one", "It was first."},
                                           {300, LUNA_VERB_RUN, "two", "It was second."}};
  static constexpr luna_reason kUnnamed[] = {{301, LUNA_VERB_RUN, "", ""}};
  static constexpr luna_reasons kReasonsTwice = {sizeof(luna_reasons), 2, kTwice};
  static constexpr luna_reasons kReasonsUnnamed = {sizeof(luna_reasons), 1, kUnnamed};
  return is("reason_twice") ? &kReasonsTwice : &kReasonsUnnamed;
}

std::vector<luna_param> declared() {
  std::vector<luna_param> params = {luna::param(
      LUNA_TYPE_INT, "interval_ms", "200", "1", "60000", nullptr, "time between plans")};
  const auto number = [](const char* key, const char* dflt, const char* max, const char* help) {
    return luna::param(LUNA_TYPE_INT, key, dflt, "1", max, nullptr, help);
  };
  if (is("default_out_of_range")) params.push_back(number("limit", "0", "9", "a limit"));
  if (is("setting_without_help")) params.push_back(number("limit", "1", "9", ""));
  if (is("setting_twice")) params.push_back(number("interval_ms", "1", "9", "again"));
  if (is("setting_in_camel_case")) params.push_back(number("maxRows", "1", "9", "rows"));
  if (is("bound_of_other_type")) params.push_back(number("limit", "1", "many", "a limit"));
  return params;
}

const luna_scheduler_if& scheduler() {
  static const std::vector<luna_param> params = declared();
  static const luna_scheduler_if table = {
      {sizeof(luna_scheduler_if),
       is("reason_twice") || is("reason_unnamed") ? LUNA_SCHEDULER_REASONS : 0,
       static_cast<std::uint32_t>(params.size()),
       0,
       params.data(),
       create,
       destroy,
       ext},
      plan_and_log};
  return table;
}

const void* table(const char* kind) {
  const std::string_view id(kind);
  if (is("knows_every_kind")) return &scheduler();
  if (is("knows_kinds_by_their_beginning") && id.starts_with(LUNA_KIND_SCHEDULER))
    return &scheduler();
  return id == LUNA_KIND_SCHEDULER ? &scheduler() : nullptr;
}

constexpr luna_plugin describe() {
  return zoo_plugin("A policy with one fault.", table, LUNA_PLUGIN_DETERMINISTIC);
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t host_minor) {
  static constexpr luna_plugin kPlugin = describe();
  static constexpr luna_plugin kOther = describe();
  static int n_asked = 0;
  if (is("two_descriptors")) return ++n_asked % 2 == 0 ? &kOther : &kPlugin;
  if (is("refuses_newer_host") && host_minor > LUNA_ABI_MINOR) return nullptr;
  if (host_major != LUNA_ABI_MAJOR && !is("serves_every_major")) return nullptr;
  return &kPlugin;
}
