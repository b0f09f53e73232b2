// Shortest remaining work first; waiting buys tokens back, so nothing starves.
#include <luna/scheduler.hpp>

#include <tuple>

struct Srf final : luna::Scheduler {
  double aging;
  explicit Srf(const luna::Settings& settings) : aging(settings.number("aging")) {}

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    // Rows that decode go first: they take a token each, and somebody reads along.
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      const double left = rows[i].n_remaining() - aging * rows[i].waited_ms();
      return std::tuple(!rows[i].is_decoding(), left, i);
    });
    bool is_blocked = false;  // nobody starts before one that waits for KV blocks
    for (const std::uint32_t i : order) {
      if (is_blocked && rows[i].is_waiting()) continue;
      is_blocked |= !out.take(i) && rows[i].is_waiting();
    }
  }
};

LUNA_SCHEDULER(Srf,
               "org.luna.scheduler.srf",
               "srf",
               "0.1.0",
               "Shortest remaining work first, with ageing.",
               luna::param(LUNA_TYPE_FLOAT,
                           "aging",
                           "0.5",
                           "0.001",
                           "100",
                           nullptr,
                           "tokens of work that a millisecond of waiting makes up for"))
