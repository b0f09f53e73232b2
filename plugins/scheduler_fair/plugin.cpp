// Deficit round robin by tenant: in each round a tenant is given tokens, and its requests start as
// long as it has some left. A request counts with all its work when it starts.
#include <luna/scheduler.hpp>

struct Fair final : luna::Scheduler {
  static constexpr std::uint32_t kTenants = 1024;  // numbers that differ by a multiple share
  struct Queue {
    std::uint32_t tenant, next, end;  // in the order
  };
  std::int64_t quantum;
  std::array<std::int64_t, kTenants> credit{};
  std::uint32_t turn = 0;  // whose round it is
  std::vector<Queue> queues;
  explicit Fair(const luna::Settings& settings) : quantum(settings.integer("quantum_tokens")) {}

  [[nodiscard]] std::uint32_t rank(luna::Row row) const {
    if (!row.is_waiting()) return row.is_prefilling();  // what has begun goes first
    return 2 + (row->tenant - turn) % kTenants;
  }
  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    std::ranges::sort(order, {}, [&](std::uint32_t i) { return std::pair(rank(rows[i]), i); });
    std::uint32_t at = 0;
    for (; at < order.size() && rank(rows[order[at]]) < 2; ++at)
      out.take(order[at]);
    if (out.n_tokens_left() == 0 || out.n_rows_left() == 0) return;
    queues.clear();
    for (std::uint32_t last = kTenants; at < order.size(); ++at) {
      const std::uint32_t tenant = rows[order[at]]->tenant % kTenants;
      if (tenant != last) queues.push_back({last = tenant, at, at});
      queues.back().end = at + 1;
    }
    for (; !queues.empty(); std::erase_if(queues, [](const Queue& q) { return q.next == q.end; }))
      for (Queue& q : queues) {
        if (q.tenant != turn || credit[turn] <= 0) credit[q.tenant] += quantum;  // a new round
        for (turn = q.tenant; credit[turn] > 0 && q.next < q.end; ++q.next) {
          if (!out.take(order[q.next])) return;  // the step is full, or this one needs blocks
          credit[turn] -= static_cast<std::int64_t>(rows[order[q.next]].n_remaining());
        }
        if (q.next == q.end) credit[turn] = std::min<std::int64_t>(credit[turn], 0);
      }
  }
};

LUNA_SCHEDULER(Fair,
               "org.luna.scheduler.fair",
               "fair",
               "0.1.0",
               "Deficit round robin by tenant.",
               luna::param(LUNA_TYPE_INT,
                           "quantum_tokens",
                           "256",
                           "1",
                           "1000000",
                           nullptr,
                           "tokens that a tenant is given in a round"))
