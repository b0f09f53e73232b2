#include "core/engine/snapshot_check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

namespace luna::engine {
namespace {

Error wrong(const std::string& what) {
  return Error{Code::corrupt, "snapshot: " + what};
}

Error wrong_row(const char* table, std::size_t i, const char* what) {
  return wrong(std::string(table) + " " + std::to_string(i) + ": " + what);
}

Result<void> check_sizes(const luna_snapshot& s) {
  if (s.n_reqs > kSnapshotReqsMax) return wrong(std::to_string(s.n_reqs) + " requests");
  if (s.n_devices == 0 || s.n_devices > kSnapshotDevicesMax)
    return wrong(std::to_string(s.n_devices) + " devices");
  for (const std::uint32_t n : {s.n_links, s.n_slices, s.n_prefixes})
    if (n > kSnapshotRowsMax) return wrong(std::to_string(n) + " rows in a table");
  if (s.n_rows_max == 0 || s.n_seqs_max == 0) return wrong("a step that holds nothing");
  if (!std::has_single_bit(s.kv_block_tokens) || s.kv_block_tokens > (1U << 16U))
    return wrong("KV blocks of " + std::to_string(s.kv_block_tokens) + " tokens");
  if (s.n_steps_in_flight_max > 0 && s.n_steps_in_flight >= s.n_steps_in_flight_max)
    return wrong("no room for a step");
  return {};
}

// Numbers of devices ascend, but are not their indices where groups come and go.
bool is_device(const luna_snapshot& s, std::uint32_t number) {
  const std::span rows(s.devices, s.n_devices);
  const auto found = std::ranges::lower_bound(rows, number, {}, &luna_device_row::device);
  return found != rows.end() && found->device == number;
}

Result<void> check_reqs(const luna_snapshot& s) {
  const std::span rows(s.reqs, s.n_reqs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const luna_req_row& row = rows[i];
    const auto refused = [i](const char* what) { return wrong_row("request", i, what); };
    if (i > 0 && row.id <= rows[i - 1].id) return refused("its id does not ascend");
    if (row.state > LUNA_REQ_DECODE) return refused("unknown state");
    if (row.device != LUNA_NO_DEVICE && !is_device(s, row.device)) return refused("no such device");
    if (row.moving_to != LUNA_NO_DEVICE && !is_device(s, row.moving_to))
      return refused("moves to no device");
    if (row.state != LUNA_REQ_DECODE && row.n_computed > row.n_prompt)
      return refused("more computed than it has");
    if (row.arrival_ns > s.now_ns) return refused("comes from the future");
    // As tokens they are added up and doubled.
    for (const std::uint32_t n : {row.n_prompt,
                                  row.n_computed,
                                  row.n_generated,
                                  row.n_generated_max,
                                  row.n_kv_blocks,
                                  row.n_kv_blocks_freed,
                                  row.n_kv_blocks_shared,
                                  row.n_draft})
      if (n > (1U << 30U)) return refused("a number out of range");
    if (row.n_generated > row.n_generated_max) return refused("more generated than asked for");
    if (row.slice_first_token > row.slice_end_token || row.slice_end_token > row.n_computed)
      return refused("slices of what is not there");
  }
  return {};
}

Result<void> check_devices(const luna_snapshot& s) {
  const std::span rows(s.devices, s.n_devices);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const luna_device_row& row = rows[i];
    const auto refused = [i](const char* what) { return wrong_row("device", i, what); };
    if (i > 0 && row.device <= rows[i - 1].device) return refused("its number does not ascend");
    if (row.group >= kSnapshotDevicesMax) return refused("no such group");
    if (row.kv_bytes_free > row.kv_bytes_total || row.n_kv_blocks_free > row.n_kv_blocks_total)
      return refused("more free than there is");
    for (const float x :
         {row.busy_ratio, row.step_ns_fixed, row.step_ns_per_row, row.step_ns_per_kv_token})
      if (!std::isfinite(x)) return refused("a number that is none");
    if (row.n_steps_in_flight > row.n_steps_in_flight_max && row.n_steps_in_flight_max > 0)
      return refused("more steps in flight than may be");
  }
  return {};
}

Result<void> check_other_tables(const luna_snapshot& s) {
  const std::span links(s.links, s.n_links);
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (!is_device(s, links[i].from) || !is_device(s, links[i].to))
      return wrong_row("link", i, "no such device");
    if (!std::isfinite(links[i].bytes_per_ns) || links[i].bytes_per_ns < 0.0)
      return wrong_row("link", i, "a rate that is none");
  }
  const std::span slices(s.slices, s.n_slices);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const luna_slice_row& slice = slices[i];
    if (slice.row >= s.n_reqs || !is_device(s, slice.device))
      return wrong_row("slice", i, "no such request or device");
    if (slice.first_token > (1U << 30U) || slice.n_tokens > (1U << 30U))
      return wrong_row("slice", i, "a number out of range");
    if (!std::isfinite(slice.mass) || slice.mass < 0.0F)
      return wrong_row("slice", i, "a mass that is none");
  }
  const std::span prefixes(s.prefixes, s.n_prefixes);
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const luna_prefix_row& prefix = prefixes[i];
    if (prefix.row >= s.n_reqs || !is_device(s, prefix.device))
      return wrong_row("prefix", i, "no such request or device");
    if (i > 0 && prefix.row < prefixes[i - 1].row) return wrong_row("prefix", i, "not in order");
    if (prefix.n_tokens > s.reqs[prefix.row].n_prompt)
      return wrong_row("prefix", i, "longer than the prompt");
  }
  return {};
}

}  // namespace

Result<void> check_snapshot(const luna_snapshot& snapshot) {
  LUNA_TRY(check_sizes(snapshot));
  LUNA_TRY(check_devices(snapshot));
  LUNA_TRY(check_reqs(snapshot));
  return check_other_tables(snapshot);
}

}  // namespace luna::engine
