#include "core/telemetry/step_trace.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <bit>

namespace luna::telemetry {

void StepTrace::append(const StepRecord& record) {
  const auto words = std::bit_cast<std::array<std::uint64_t, kWords>>(record);
  const std::uint64_t index = n_written_.load(std::memory_order_relaxed);
  Slot& slot = slots_[index % kRecords];
  // Release: a reader that sees any of these words also sees the count that led here, and so knows
  // that the slot's record before this one is gone.
  for (std::size_t i = 0; i < kWords; ++i)
    slot[i].store(words[i], std::memory_order_release);
  n_written_.store(index + 1, std::memory_order_release);
}

std::vector<StepRecord> StepTrace::last(std::size_t n) const {
  const std::uint64_t end = n_written_.load(std::memory_order_acquire);
  const std::uint64_t first = end - std::min<std::uint64_t>({n, end, kRecords});
  std::vector<StepRecord> records(end - first);
  for (std::uint64_t index = first; index < end; ++index) {
    std::array<std::uint64_t, kWords> words;
    for (std::size_t i = 0; i < kWords; ++i)
      words[i] = slots_[index % kRecords][i].load(std::memory_order_acquire);
    records[index - first] = std::bit_cast<StepRecord>(words);
  }
  // The writer may be at the slot of index `now`, which held the record now - kRecords.
  const std::uint64_t now = n_written_.load(std::memory_order_acquire);
  const std::uint64_t n_gone = now >= first + kRecords ? now - kRecords + 1 - first : 0;
  records.erase(records.begin(),
                records.begin() +
                    static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(n_gone, records.size())));
  return records;
}

std::string to_json(const StepRecord& record, std::string_view model) {
  const boost::json::array device_busy_ns(
      record.device_busy_ns.begin(),
      record.device_busy_ns.begin() + static_cast<std::ptrdiff_t>(record.n_devices));
  const boost::json::object object = {{"model", model},
                                      {"step", record.step},
                                      {"group", record.group},
                                      {"lane", record.lane},
                                      {"in_flight", record.n_in_flight},
                                      {"started_ns", record.started_ns},
                                      {"plan_ns", record.plan_ns},
                                      {"prepare_ns", record.prepare_ns},
                                      {"submit_ns", record.submit_ns},
                                      {"devices_ns", record.devices_ns},
                                      {"busy_ns", record.busy_ns},
                                      {"device_busy_ns", device_busy_ns},
                                      {"sample_ns", record.sample_ns},
                                      {"publish_ns", record.publish_ns},
                                      {"total_ns", record.total_ns},
                                      {"since_last_ns", record.since_last_ns},
                                      {"rows", record.n_rows},
                                      {"seqs", record.n_seqs},
                                      {"out_rows", record.n_out_rows},
                                      {"kv_tokens", record.n_kv_tokens}};
  return boost::json::serialize(object);
}

}  // namespace luna::telemetry
