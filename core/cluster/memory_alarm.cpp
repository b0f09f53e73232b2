#include "core/cluster/memory_alarm.hpp"

#include <algorithm>

namespace luna::cluster {
namespace {

// A worker that was silent for longer, loading for example, may have been well meanwhile.
constexpr std::chrono::seconds kSilenceMax{5};
// Of the patience: for each step to show.
constexpr int kStepShare = 4;

}  // namespace

const char* name_of(ReliefStep step) {
  switch (step) {
    case ReliefStep::relieve:
      return "relieve";
    case ReliefStep::move:
      return "move";
    case ReliefStep::drain:
      return "drain";
    case ReliefStep::restart:
      return "restart";
  }
  return "unknown";
}

std::uint64_t bytes_held(const MemoryReport& report) {
  return report.resident - std::min(report.resident, report.kv + report.spare);
}

std::uint64_t bytes_held_max(const MemoryReport& report, std::uint32_t percent) {
  const std::uint64_t share = report.budget / 100 * percent;
  const std::uint64_t margin = report.budget / 100 * std::min(percent, 100 - percent);
  return std::max(share, report.fixed + margin);
}

void MemoryAlarm::note(const std::string& worker, const MemoryReport& report, Nanoseconds now) {
  Watched& watched = watched_[worker];
  if (now - watched.noted_at > kSilenceMax) watched.above_since.reset();
  watched.noted_at = now;
  if (bytes_held(report) <= bytes_held_max(report, options_.percent))
    watched.above_since.reset();
  else if (!watched.above_since)
    watched.above_since = now;
  // It is back.
  if (!is_away_ || treated_->worker != worker) return;
  treated_.reset();
  is_away_ = false;
}

void MemoryAlarm::note_gone(const std::string& worker, Nanoseconds now) {
  watched_.erase(worker);
  if (!treated_ || treated_->worker != worker || is_away_) return;
  is_away_ = true;
  ordered_at_ = now;
}

void MemoryAlarm::note_refused(Nanoseconds now) {
  if (!treated_) return;
  is_refused_ = true;
  if (treated_->step != ReliefStep::drain) return;
  // Others are as full as it is: it is tried again when it has been above for as long again.
  if (const auto found = watched_.find(treated_->worker); found != watched_.end())
    found->second.above_since = now;
  treated_.reset();
}

void MemoryAlarm::note_drained() {
  is_drained_ = true;
}

bool MemoryAlarm::is_above(const std::string& worker) const {
  const auto found = watched_.find(worker);
  return found != watched_.end() && found->second.above_since.has_value();
}

std::uint32_t MemoryAlarm::n_above() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      watched_, [](const auto& one) { return one.second.above_since.has_value(); }));
}

std::optional<ReliefOrder> MemoryAlarm::next(Nanoseconds now) {
  if (treated_ && has_ended(now)) {
    treated_.reset();
    is_away_ = false;
  }
  return treated_ ? go_on(now) : begin(now);
}

bool MemoryAlarm::has_ended(Nanoseconds now) const {
  const bool is_over = now - ordered_at_ >= options_.patience;
  if (is_away_) return is_over;
  if (treated_->step == ReliefStep::restart) return is_over;
  return treated_->step < ReliefStep::drain && !is_above(treated_->worker);
}

std::optional<ReliefOrder> MemoryAlarm::go_on(Nanoseconds now) {
  if (is_away_ || treated_->step == ReliefStep::restart) return std::nullopt;
  if (treated_->step == ReliefStep::drain)
    return is_drained_ ? std::optional(order(ReliefStep::restart, now)) : std::nullopt;
  if (!is_refused_ && now - ordered_at_ < options_.patience / kStepShare) return std::nullopt;
  return order(treated_->step == ReliefStep::relieve ? ReliefStep::move : ReliefStep::drain, now);
}

/// The one that has been above for the longest time comes first.
std::optional<ReliefOrder> MemoryAlarm::begin(Nanoseconds now) {
  const Watched* worst = nullptr;
  for (const auto& [name, watched] : watched_) {
    if (!watched.above_since || now - *watched.above_since < options_.patience) continue;
    if (now - watched.noted_at > kSilenceMax) continue;
    if (worst != nullptr && *worst->above_since <= *watched.above_since) continue;
    worst = &watched;
    treated_ = {name, ReliefStep::relieve};
  }
  if (worst == nullptr) return std::nullopt;
  return order(ReliefStep::relieve, now);
}

ReliefOrder MemoryAlarm::order(ReliefStep step, Nanoseconds now) {
  treated_->step = step;
  ordered_at_ = now;
  is_refused_ = false;
  is_drained_ = false;
  return *treated_;
}

}  // namespace luna::cluster
