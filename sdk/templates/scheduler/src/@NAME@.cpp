// Which requests run in a step: decoding ones first, then those that came first.
#include <luna/scheduler.hpp>

#include <tuple>

struct @CLASS@ final : luna::Scheduler {
  bool newest_first;
  explicit @CLASS@(const luna::Settings& settings) : newest_first(settings.flag("newest_first")) {}

  void plan(const luna::Snapshot& rows, luna::Plan& out) override {
    auto& order = out.order();
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      // Rows stand in order of arrival: the index is the age.
      return std::tuple(!rows[i].is_decoding(), newest_first ? -std::int64_t{i} : std::int64_t{i});
    });
    for (const std::uint32_t i : order)
      if (!out.take(i)) break;  // the step is full
  }
};

LUNA_SCHEDULER(@CLASS@, "@ID@", "@NAME@", "0.1.0", "First come, first served.",
               luna::param(LUNA_TYPE_BOOL, "newest_first", "false", nullptr, nullptr, nullptr,
                           "serve the newest request first, whoever waits"))
