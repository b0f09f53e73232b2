#include "core/engine/plan_record.hpp"

#include "core/base/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace luna::engine {
namespace {

/// What stands before each message of the ring: the bytes of a plan, or why none comes any more.
struct Message {
  std::uint32_t n_bytes;
  std::uint32_t end;  // 0, or a RecordEnd
};

// The end of the recording itself always fits into the file.
constexpr std::uint64_t kEndBytes = 64;

}  // namespace

Result<std::unique_ptr<PlanRecorder>> PlanRecorder::open(Options options) {
  const int fd = ::open(options.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{Code::io, options.file.string() + ": cannot be created: " + std::strerror(errno)};
  std::unique_ptr<PlanRecorder> recorder(new PlanRecorder(std::move(options), fd));
  if (!recorder->write(recorder->encoder_.begin(recorder->options_.text)))
    return Error{Code::io,
                 recorder->options_.file.string() + ": cannot be written: " + std::strerror(errno)};
  recorder->thread_ = std::thread([self = recorder.get()] { self->run(); });
  return recorder;
}

PlanRecorder::PlanRecorder(Options options, int fd)
    : options_(std::move(options)), fd_(fd), ring_(options_.ring_bytes) {}

PlanRecorder::~PlanRecorder() {
  end(RecordEnd::stopped);
  if (thread_.joinable()) thread_.join();
  ::close(fd_);
}

// Room for it is left by every plan.
void PlanRecorder::end(RecordEnd why) {
  if (std::exchange(is_stopped_, true)) return;
  const Message message{0, static_cast<std::uint32_t>(why)};
  ring_.append(&message, sizeof(message));
  ring_.publish();
}

void PlanRecorder::record(const luna_snapshot& snapshot,
                          const luna_plan& plan,
                          luna_status status) {
  if (is_stopped_) return;
  if (has_ended_.load(std::memory_order_relaxed)) return end(RecordEnd::stopped);
  PlanHead head{snapshot, plan, status, std::min(plan.n_actions, plan.n_actions_max)};
  head.snapshot.reqs = nullptr;
  head.snapshot.devices = nullptr;
  head.snapshot.links = nullptr;
  head.snapshot.slices = nullptr;
  head.snapshot.prefixes = nullptr;
  head.plan.actions = nullptr;
  const std::size_t n_bytes = plan_bytes(head);
  if (!ring_.has_room(n_bytes + 2 * sizeof(Message))) return end(RecordEnd::too_slow);
  const Message message{static_cast<std::uint32_t>(n_bytes), 0};
  ring_.append(&message, sizeof(message));
  ring_.append(&head, sizeof(head));
  const std::array<const void*, kPlanTables> tables = {
      snapshot.reqs, snapshot.devices, snapshot.links, snapshot.slices, snapshot.prefixes};
  const auto counts = plan_row_counts(snapshot);
  for (std::size_t t = 0; t < kPlanTables; ++t)
    ring_.append(tables[t], std::size_t{counts[t]} * kPlanRowBytes[t]);
  ring_.append(plan.actions, std::size_t{head.n_actions} * sizeof(luna_action));
  ring_.publish();
}

void PlanRecorder::run() {
  std::vector<std::byte> flat;
  std::uint64_t n_plans = 0;
  bool is_writing = true;
  for (;;) {
    while (ring_.n_readable() < sizeof(Message))
      ring_.wait();
    Message message{};
    ring_.take(std::as_writable_bytes(std::span(&message, 1)));
    if (message.end != 0) {
      if (is_writing) finish(static_cast<RecordEnd>(message.end), n_plans);
      return;
    }
    flat.resize(message.n_bytes);
    ring_.take(flat);
    if (!is_writing) continue;
    const auto record = encoder_.add(flat);
    const bool fits = n_file_bytes_ + record.size() + kEndBytes <= options_.file_bytes_max;
    if (fits && write(record)) {
      ++n_plans;
      continue;
    }
    encoder_.withdraw();
    finish(fits ? RecordEnd::write_failed : RecordEnd::file_full, n_plans);
    is_writing = false;
    has_ended_.store(true, std::memory_order_relaxed);
  }
}

void PlanRecorder::finish(RecordEnd why, std::uint64_t n_plans) {
  const int error = errno;
  if (why != RecordEnd::write_failed && !write(encoder_.end(why))) why = RecordEnd::write_failed;
  const bool is_wanted = why == RecordEnd::stopped;
  logger("engine")->log(
      is_wanted ? spdlog::level::info : spdlog::level::warn,
      "recording of plans ended reason={} file={} plans={} bytes={}{}",
      record_end_name(why),
      options_.file.string(),
      n_plans,
      n_file_bytes_,
      why == RecordEnd::write_failed ? std::string(" error=\"") + std::strerror(error) + "\"" : "");
}

bool PlanRecorder::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    n_file_bytes_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace luna::engine
