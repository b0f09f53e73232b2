#include "routed_target.hpp"

#include "core/bench/pipeline_target.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace luna::sol_against_luna {
namespace {

namespace asio = boost::asio;

class RoutedTarget final : public bench::Target {
 public:
  RoutedTarget(const asio::any_io_executor& executor, const Clock& clock, RoutedTargetParts parts)
      : parts_(std::move(parts)), outstanding_(parts_.copies.size()) {
    for (pipeline::Pipeline* copy : parts_.copies)
      copies_.push_back(bench::pipeline_target(*copy)(executor, clock));
  }

  asio::awaitable<void> answer(const bench::Prompt& prompt, bench::RequestRecord& record) override {
    const std::size_t idx = record.request_idx;
    if (parts_.on_sent) parts_.on_sent(idx);
    const bool is_watched = parts_.watch != nullptr && !record.is_warm_up;
    // What it is late by already counts: arrivals are intended ones.
    if (is_watched) parts_.watch->began(idx, parts_.now() - (record.sent - record.intended));
    const std::size_t copy = parts_.router.choose(parts_.session_of(idx), outstanding_);
    const std::uint64_t n_tokens =
        std::get<bench::TokenIds>(prompt.input).size() + prompt.n_generated_max;
    outstanding_[copy] += n_tokens;
    co_await copies_[copy]->answer(prompt, record);
    outstanding_[copy] -= n_tokens;
    const bool failed = record.outcome == bench::Outcome::failed;
    if (is_watched) parts_.watch->ended(idx, parts_.now(), failed);
  }

  void cancel_all() override {
    for (const auto& copy : copies_)
      copy->cancel_all();
  }

 private:
  RoutedTargetParts parts_;
  std::vector<std::unique_ptr<bench::Target>> copies_;
  std::vector<std::uint64_t> outstanding_;  // tokens
};

}  // namespace

void LateWatch::began(std::size_t request_idx, Nanoseconds due) {
  late_at_[request_idx] = due + limit_;
}

void LateWatch::ended(std::size_t request_idx, Nanoseconds now, bool failed) {
  const auto found = late_at_.find(request_idx);
  if (found == late_at_.end()) return;
  if (failed || now > found->second) ++n_late_;
  late_at_.erase(found);
}

bool LateWatch::is_lost(Nanoseconds now) const {
  const auto n_running = std::count_if(
      late_at_.begin(), late_at_.end(), [&](const auto& request) { return now > request.second; });
  return n_late_ + static_cast<std::size_t>(n_running) > n_late_allowed_;
}

bench::TargetFactory routed_target(RoutedTargetParts parts) {
  return [parts = std::move(parts)](const asio::any_io_executor& executor, const Clock& clock) {
    return std::make_unique<RoutedTarget>(executor, clock, parts);
  };
}

}  // namespace luna::sol_against_luna
