// The transport of the sdk's template, with one fault, chosen by the name that it is linked with.
// Compiled once.
#include "zoo_descriptor.hpp"

#include <luna/transport.hpp>

// The template is a whole plugin; here it is a part of one.
#undef LUNA_DEFINE_PLUGIN
#define LUNA_DEFINE_PLUGIN(...)
#include "zoo/transport_of_template.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

luna_status post(void* self, const luna_xfer* transfers, std::uint32_t n, luna_err* err) {
  static std::vector<std::vector<char>> kept;
  std::vector<luna_xfer> own(transfers, transfers + n);
  for (luna_xfer& one : own) {
    if (is("keeps_what_nobody_takes") && one.verb == LUNA_XFER_SEND)
      kept.emplace_back(one.n_bytes, 'x');
    if (is("cuts_large_messages") && one.n_bytes > 65536) one.n_bytes -= 1;
    if (is("moves_messages") && one.verb == LUNA_XFER_SEND && one.n_bytes == 4096) one.offset += 1;
    if (is("turns_pairs_round") && one.verb == LUNA_XFER_SEND && one.n_bytes == 8) one.offset ^= 8;
  }
  const luna_status status = kTable.post(self, own.data(), n, err);
  // An error that nobody sees.
  if (is("swallows_refusals") && status < 0) return LUNA_OK;
  return status;
}

luna_status poll(void* self, luna_xfer_done* done, std::uint32_t n_max, std::uint32_t* n) {
  const luna_status status = kTable.poll(self, done, n_max, n);
  std::uint32_t n_kept = 0;
  for (std::uint32_t i = 0; i < *n; ++i) {
    if (is("forgets_what_failed") && done[i].status < 0) continue;
    done[n_kept++] = done[i];
  }
  *n = n_kept;
  return status;
}

luna_status connect(
    void* self, const std::uint8_t* blob, std::uint32_t n, std::uint32_t* peer, luna_err* err) {
  if (is("takes_any_address") && n != 8) {
    *peer = 0;
    return LUNA_OK;
  }
  return kTable.connect(self, blob, n, peer, err);
}

luna_status caps(void* self, luna_transport_caps* caps) {
  const luna_status status = kTable.caps(self, caps);
  if (is("claims_another_reach")) caps->reach = LUNA_REACH_HOST;
  // As if its own record were the caller's.
  if (is("writes_behind_its_answer")) caps[1].struct_size = 0;
  return status;
}

std::uint64_t estimate_ns(void* self, std::uint32_t peer, std::uint64_t n_bytes) {
  static std::uint64_t n_asked = 0;
  return kTable.estimate_ns(self, peer, n_bytes) + (is("estimates_vary") ? ++n_asked : 0);
}

const luna_transport_if& transport() {
  static const luna_transport_if table = [] {
    luna_transport_if made = kTable;
    made.caps = caps;
    made.post = post;
    made.poll = poll;
    made.connect = connect;
    made.estimate_ns = estimate_ns;
    return made;
  }();
  return table;
}

const void* table(const char* kind) {
  return std::string_view(kind) == LUNA_KIND_TRANSPORT ? &transport() : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t /*minor*/) {
  static constexpr luna_plugin kPlugin = zoo_plugin("A transport with one fault.", table);
  return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;
}
