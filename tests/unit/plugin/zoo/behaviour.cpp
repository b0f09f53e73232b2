// A scheduler plugin with one fault, chosen by the name that it is linked with. Compiled once,
// linked into each plugin of the zoo.
#include <luna/plugin.hpp>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <unistd.h>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

[[noreturn]] void hang() {
  for (;;)
    ::pause();
}

// A sanitizer would report the store instead of making it.
__attribute__((no_sanitize("undefined", "address"))) void crash() {
  volatile int* nowhere = nullptr;
  *nowhere = 1;
}

/// What a static constructor may do to the host.
struct Constructed {
  Constructed() {
    if (is("throws_in_constructor")) throw std::runtime_error("thrown by a constructor");
    if (is("hangs_in_constructor")) hang();
    if (is("crashes_in_constructor")) crash();
    if (is("exits_in_constructor")) std::exit(0);
  }
};
const Constructed constructed;

luna_status plan(void* /*self*/, const luna_snapshot*, luna_plan* plan, luna_err*) {
  plan->n_actions = 0;
  return LUNA_OK;
}

luna_status create(const luna_host* host,
                   const luna_kv* settings,
                   std::uint32_t n_settings,
                   void** self,
                   luna_err* err) {
  if (is("throws_in_create")) throw std::runtime_error("thrown by create");
  if (is("hangs_in_create")) hang();
  if (is("crashes_in_create")) crash();
  if (is("aborts_in_create")) std::abort();
  if (is("fails_in_create")) return luna::report(err, LUNA_UNAVAILABLE, "no such device here");
  host->log(host, LUNA_LOG_INFO, luna::to_abi("created"));
  *self = new std::int64_t(luna::Settings(settings, n_settings).integer("interval_ms"));
  return LUNA_OK;
}

void destroy(void* self) {
  delete static_cast<std::int64_t*>(self);
}

luna_status init(const luna_host*, luna_err* err) {
  if (is("throws_in_init")) throw 7;
  if (is("hangs_in_init")) hang();
  if (is("fails_in_init")) return luna::report(err, LUNA_IO, "no licence file");
  return LUNA_OK;
}

void fini() {}

constexpr luna_param kParams[] = {
    luna::param(LUNA_TYPE_INT, "interval_ms", "200", "1", "60000", nullptr, "time between plans"),
    luna::param(LUNA_TYPE_FLOAT, "low", "0.6", "0", "1", nullptr, "share of memory"),
    luna::param(LUNA_TYPE_BOOL, "dynamic", "false", nullptr, nullptr, nullptr, "follow the load"),
    luna::param(LUNA_TYPE_STRING, "order", "fifo", nullptr, nullptr, "fifo|lifo", "who is next"),
    luna::param(LUNA_TYPE_STRING_LIST, "labels", "a|b", nullptr, nullptr, nullptr, "labels"),
    luna::param(LUNA_TYPE_STRING_MAP, "limits", "", nullptr, nullptr, nullptr, "limits"),
};

const luna_scheduler_if& scheduler() {
  static const luna_scheduler_if table = {
      {static_cast<std::uint32_t>(is("small_table") ? sizeof(luna_if) : sizeof(luna_scheduler_if)),
       0,
       std::size(kParams),
       0,
       kParams,
       is("no_create") ? nullptr : create,
       destroy,
       luna::no_extension},
      is("no_plan") ? nullptr : plan};
  return table;
}

const void* table(const char* kind) {
  if (is("no_table")) return nullptr;
  return std::string_view(kind) == LUNA_KIND_SCHEDULER ? &scheduler() : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t /*major*/, std::uint32_t /*minor*/) {
  if (is("throws_in_query")) throw std::logic_error("thrown by query");
  if (is("refuses_host")) return nullptr;
  static const luna_plugin plugin = {
      sizeof(luna_plugin),
      is("other_major") ? 99u : LUNA_ABI_MAJOR,
      LUNA_ABI_MINOR,
      is("newer_minor") ? 99u : LUNA_ABI_MINOR,
      is("note_differs") ? "org.luna.test.other" : "org.luna.test.zoo",
      "zoo",
      "0.1.0",
      "Luna",
      "Apache-2.0",
      "A plugin with one fault.",
      0,
      table,
      init,
      fini};
  return &plugin;
}
