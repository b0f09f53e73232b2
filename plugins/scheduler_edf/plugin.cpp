// Earliest deadline first. One without a deadline, or with a late one, is due some time after its
// arrival, so that nothing starves.
#include <luna/scheduler.hpp>

#include <tuple>

struct Edf final : luna::Scheduler {
  std::uint64_t slack_ns;
  explicit Edf(const luna::Settings& settings)
      : slack_ns(static_cast<std::uint64_t>(settings.integer("slack_ms")) * 1'000'000) {}

  [[nodiscard]] std::uint64_t due_ns(luna::Row row) const {
    const std::uint64_t latest = row->arrival_ns + slack_ns;
    return row->deadline_ns == 0 ? latest : std::min(row->deadline_ns, latest);
  }

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    // Rows that decode go first: they take a token each, and somebody reads along.
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      return std::tuple(!rows[i].is_decoding(), due_ns(rows[i]), i);
    });
    bool is_blocked = false;  // nobody starts before one that waits for KV blocks
    for (const std::uint32_t i : order) {
      if (is_blocked && rows[i].is_waiting()) continue;
      is_blocked |= !out.take(i) && rows[i].is_waiting();
    }
  }
};

LUNA_SCHEDULER(Edf,
               "org.luna.scheduler.edf",
               "edf",
               "0.1.0",
               "Earliest deadline first.",
               luna::param(LUNA_TYPE_INT,
                           "slack_ms",
                           "10000",
                           "1",
                           "3600000",
                           nullptr,
                           "after its arrival a request is due at the latest"))
