// Deficit round robin by tenant: in each round a tenant is given tokens, and its rows run while it
// has some left; what they take beyond that is paid back in the rounds after.
#include <luna/scheduler.hpp>

struct Fair final : luna::Scheduler {
  static constexpr std::uint32_t kTenants = 1024;  // numbers that differ by a multiple share
  struct Queue {
    std::uint32_t tenant, next, end;  // places in the order
  };
  std::int64_t quantum;
  std::array<std::int64_t, kTenants> credit{};
  std::uint32_t turn = 0;  // whose round was cut off
  std::vector<Queue> queues;
  explicit Fair(const luna::Settings& settings) : quantum(settings.integer("quantum_tokens")) {}

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    const auto tenant_of = [&](std::uint32_t i) { return rows[i]->tenant % kTenants; };
    // Rows that decode go first: they take a token each, and somebody reads along.
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      return std::pair(rows[i].is_decoding() ? 0 : 1 + (tenant_of(i) - turn) % kTenants, i);
    });
    queues.clear();
    queues.reserve(out.n_reqs_max());
    for (std::uint32_t at = 0; at < order.size(); ++at) {
      std::int64_t& left = credit[tenant_of(order[at])];
      if (rows[order[at]].is_decoding()) {
        if (out.take(order[at])) left = std::max(left - 1, -16 * quantum);  // debts have an end
        continue;
      }
      if (queues.empty() || queues.back().tenant != tenant_of(order[at]))
        queues.push_back({tenant_of(order[at]), at, at});
      queues.back().end = at + 1;
    }
    for (; !queues.empty(); std::erase_if(queues, [](const Queue& q) { return q.next == q.end; }))
      for (Queue& q : queues) {
        if (q.tenant != turn || credit[turn] <= 0) credit[q.tenant] += quantum;  // a new round
        for (turn = q.tenant; credit[turn] > 0 && q.next < q.end; ++q.next) {
          const std::uint32_t n_before = out.n_tokens_left();
          if (!out.take(order[q.next])) return;  // the step is full, or this one needs blocks
          credit[turn] -= n_before - out.n_tokens_left();
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
