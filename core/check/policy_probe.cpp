#include "core/check/policy_probe.hpp"

#include "core/check/allocation_watch.hpp"
#include "core/plugin/scheduler_traits.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>

namespace luna::check {
namespace {

constexpr std::size_t kCanaries = 64;  // actions behind those that a plan has room for
constexpr unsigned char kPoison = 0xA5;
constexpr std::size_t kGoneMax = 16;  // tables whose pages are kept from everybody

/// Lays tables one behind the other.
class Layout {
 public:
  Layout(std::byte* first, std::uint32_t pad_bytes) : at_(first), pad_bytes_(pad_bytes) {}

  /// Rows with `pad_bytes` of poison behind each. The stride is written to `stride`.
  template <typename Row>
  const Row* put(const Row* rows, std::uint32_t n, std::uint32_t& stride) {
    stride = static_cast<std::uint32_t>(sizeof(Row)) + pad_bytes_;
    const std::byte* const first = at_;
    for (std::uint32_t i = 0; i < n; ++i) {
      std::memcpy(at_, &rows[i], sizeof(Row));
      std::memset(at_ + sizeof(Row), kPoison, pad_bytes_);
      at_ += stride;
    }
    return reinterpret_cast<const Row*>(first);
  }

 private:
  std::byte* at_;
  std::uint32_t pad_bytes_;
};

double thread_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

std::size_t bytes_of(const luna_snapshot& s, std::size_t pad) {
  return sizeof(luna_snapshot) + pad + s.n_reqs * (sizeof(luna_req_row) + pad) +
         s.n_devices * (sizeof(luna_device_row) + pad) + s.n_links * (sizeof(luna_link_row) + pad) +
         s.n_slices * (sizeof(luna_slice_row) + pad) +
         s.n_prefixes * (sizeof(luna_prefix_row) + pad);
}

}  // namespace

std::unique_ptr<PolicyProbe> PolicyProbe::make(CaseRun& run, Subject& subject, Lending lending) {
  std::unique_ptr<PolicyProbe> probe(new PolicyProbe(run, subject, lending));
  probe->policy_ = subject.make<luna_scheduler_if>(LUNA_KIND_SCHEDULER);
  if (!probe->policy_) return nullptr;
  run.phase("plan");
  return probe;
}

// Rows keep to an alignment of 8 where the pad is a multiple of it.
std::unique_ptr<GuardedMemory> PolicyProbe::lend(const luna_snapshot& snapshot) const {
  auto memory = std::make_unique<GuardedMemory>(bytes_of(snapshot, lending_.pad_bytes));
  std::byte* const first = memory->bytes().data();
  luna_snapshot copy = snapshot;
  copy.struct_size = static_cast<std::uint32_t>(sizeof(copy)) + lending_.pad_bytes;
  Layout layout(first + copy.struct_size, lending_.pad_bytes);
  copy.reqs = layout.put(snapshot.reqs, snapshot.n_reqs, copy.req_stride);
  copy.devices = layout.put(snapshot.devices, snapshot.n_devices, copy.device_stride);
  copy.links = layout.put(snapshot.links, snapshot.n_links, copy.link_stride);
  copy.slices = layout.put(snapshot.slices, snapshot.n_slices, copy.slice_stride);
  copy.prefixes = layout.put(snapshot.prefixes, snapshot.n_prefixes, copy.prefix_stride);
  std::memcpy(first, &copy, sizeof(copy));
  std::memset(first + sizeof(copy), kPoison, lending_.pad_bytes);
  return memory;
}

bool PolicyProbe::slices() const {
  return plugin::does_slice(policy_);
}

luna_status PolicyProbe::plan(const luna_snapshot& snapshot, luna_plan& plan, luna_err& err) {
  const bool is_lent = lending_.read_only || lending_.taken_away || lending_.pad_bytes > 0;
  if (!is_lent) return ask(snapshot, plan, err);
  std::unique_ptr<GuardedMemory> memory = lend(snapshot);
  if (lending_.read_only) memory->make_read_only();
  const luna_status status =
      ask(*reinterpret_cast<const luna_snapshot*>(memory->bytes().data()), plan, err);
  if (!lending_.taken_away) return status;
  memory->take_away();
  gone_.push_back(std::move(memory));
  if (gone_.size() > kGoneMax) gone_.pop_front();
  return status;
}

luna_status PolicyProbe::ask(const luna_snapshot& snapshot, luna_plan& plan, luna_err& err) {
  room_.resize(plan.n_actions_max + kCanaries);
  std::memset(room_.data(), 0, plan.n_actions_max * sizeof(luna_action));
  std::memset(room_.data() + plan.n_actions_max, kPoison, kCanaries * sizeof(luna_action));
  luna_plan own = plan;
  own.actions = room_.data();
  subject_.host().set_now(snapshot.now_ns);
  const std::uint64_t n_log_lines = subject_.host().n_log_lines();
  luna_status status = LUNA_INTERNAL;
  const bool returned = call_fenced(run_, "plan", [&] {
    if (watches_allocations_) AllocationWatch::begin();
    const double began_us = thread_us();
    status = policy_->plan(policy_.self(), &snapshot, &own, &err);
    plan_us_ = thread_us() - began_us;
    if (watches_allocations_) n_allocations_ += AllocationWatch::end();
  });
  if (!returned) luna::report(&err, LUNA_INTERNAL, "it threw");
  if (status >= 0 && subject_.host().n_log_lines() != n_log_lines)
    run_.fail("C2", "plan() logged a line and succeeded");
  const auto* const behind =
      reinterpret_cast<const unsigned char*>(room_.data() + plan.n_actions_max);
  const std::size_t n_behind = kCanaries * sizeof(luna_action);
  if (std::any_of(behind, behind + n_behind, [](unsigned char c) { return c != kPoison; }))
    run_.fail(
        "O3",
        "plan() writes more actions than n_actions_max = " + std::to_string(plan.n_actions_max));
  if (err.struct_size != sizeof(luna_err) ||
      strnlen(err.text, sizeof(err.text)) == sizeof(err.text))
    run_.fail("O3", "plan() leaves an error record without its size or its final zero");
  plan.n_actions = own.n_actions;
  plan.wake_at_ns = own.wake_at_ns;
  std::copy_n(room_.begin(), std::min(plan.n_actions, plan.n_actions_max), plan.actions);
  return status;
}

}  // namespace luna::check
