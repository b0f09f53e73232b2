// Two lanes by size: a short question does not queue behind a long document, and the document gets
// its turn all the same.
#include <luna/scheduler.hpp>

#include <tuple>

struct Express final : luna::Scheduler {
  double small_tokens;
  double patience_ms;
  explicit Express(const luna::Settings& settings)
      : small_tokens(settings.number("small_tokens")),
        patience_ms(settings.number("patience_ms")) {}

  // What generates goes on, what has waited too long is next, then the small ones, then the rest.
  int lane(const luna::Row& row) const {
    if (row.is_decoding()) return 0;
    if (row.waited_ms() > patience_ms) return 1;
    return row.n_remaining() <= small_tokens ? 2 : 3;
  }

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    // Rows stand in order of arrival: the index is the age.
    std::ranges::sort(order, {}, [&](std::uint32_t i) { return std::pair(lane(rows[i]), i); });
    for (const std::uint32_t i : order)
      if (!out.take(i)) break;  // the step is full
  }
};

LUNA_SCHEDULER(Express,
               "org.luna.example.express",
               "express",
               "0.1.0",
               "Small requests first; who has waited too long before them.",
               luna::param(LUNA_TYPE_FLOAT,
                           "small_tokens",
                           "256",
                           "1",
                           "1000000",
                           nullptr,
                           "a request with so many tokens left, or fewer, is small"),
               luna::param(LUNA_TYPE_FLOAT,
                           "patience_ms",
                           "2000",
                           "0",
                           "3600000",
                           nullptr,
                           "a request that came so long ago goes before the small ones"))
