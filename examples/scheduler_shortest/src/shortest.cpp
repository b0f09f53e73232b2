// Shortest remaining work first; waiting buys tokens back, so nothing starves.
#include <luna/scheduler.hpp>

struct Shortest final : luna::Scheduler {
  double aging;
  explicit Shortest(const luna::Settings& settings) : aging(settings.number("aging")) {}

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    // By the row itself where two are equal: a stable sort would take memory in each plan.
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      return std::pair(rows[i].n_remaining() - aging * rows[i].waited_ms(), i);
    });
    for (const std::uint32_t i : order)
      if (!out.take(i)) break;  // the step is full
  }
};

LUNA_SCHEDULER(Shortest,
               "org.luna.example.shortest",
               "shortest",
               "0.1.0",
               "Shortest remaining work first.",
               luna::param(LUNA_TYPE_FLOAT,
                           "aging",
                           "0.5",
                           "0",
                           "100",
                           nullptr,
                           "tokens forgiven per millisecond of waiting"))
