// Groups C and D: instances of any kind, and what they keep to.
#include "core/check/allocation_watch.hpp"
#include "core/check/cases.hpp"
#include "core/check/guarded_memory.hpp"
#include "core/check/process_state.hpp"
#include "core/check/subject.hpp"

#include <array>
#include <cstring>
#include <malloc.h>
#include <string>

namespace luna::check {
namespace {

constexpr const char* kUnknownId = "luna.ext.nobody.knows.this/1";

/// Calls `body` for each kind, with its table and its settings.
template <typename Body>
void for_each_kind(CaseRun& run, Subject& subject, Body&& body) {
  for (const std::string& kind : subject.kinds()) {
    const luna_if& head = subject.head(kind);
    const auto rows = subject.settings(head);
    if (rows) body(kind, head, rows->rows());
    if (run.has_failed()) return;
  }
}

/// Makes one. False: the run was told why not.
bool make(Subject& subject, const luna_if& head, std::span<const luna_kv> rows, void*& self) {
  const Created made = subject.create(head, rows);
  self = made.self;
  return subject.is_made(made);
}

std::size_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Made and given back again and again: nothing may be left of it.
void check_leaks(CaseRun& run) {
  constexpr int kWarmUp = 20;  // what is made once, at first use
  constexpr int kRounds = 100;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    std::size_t bytes = 0;
    std::size_t n_descriptors = 0;
    std::size_t n_threads = 0;
    for (int i = 0; i < kWarmUp + kRounds; ++i) {
      if (i == kWarmUp) {
        bytes = heap_bytes();
        n_descriptors = count_descriptors();
        n_threads = count_threads();
      }
      void* self = nullptr;
      if (!make(*subject, head, rows, self)) return;
      run.phase("destroy");
      head.destroy(self);
    }
    const auto grown = [](std::size_t now, std::size_t before) {
      return now > before ? now - before : 0;
    };
    // A byte or two a round is the heap's own.
    if (const std::size_t n = grown(heap_bytes(), bytes); n >= std::size_t{16} * kRounds)
      run.fail("O4",
               std::to_string(n) + " bytes are left of " + std::to_string(kRounds) + " instances");
    if (const std::size_t n = grown(count_descriptors(), n_descriptors); n >= kRounds)
      run.fail(
          "O4",
          std::to_string(n) + " descriptors are left of " + std::to_string(kRounds) + " instances");
    if (const std::size_t n = grown(count_threads(), n_threads); n > 0)
      run.fail(
          "O4",
          std::to_string(n) + " threads are left of " + std::to_string(kRounds) + " instances");
  });
}

// Several at once, given back in the order in which they came.
void check_several(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    std::array<void*, 3> made{};
    for (void*& self : made)
      if (!make(*subject, head, rows, self)) return;
    if (made[0] == made[1] || made[1] == made[2] || made[0] == made[2])
      run.fail("U2", "create answers the same instance twice");
    run.phase("destroy");
    for (void* const self : made)
      if (!run.has_failed()) head.destroy(self);
  });
}

void check_extensions(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    void* self = nullptr;
    if (!make(*subject, head, rows, self)) return;
    run.phase("ext");
    if (head.ext(self, kUnknownId) != nullptr)
      run.fail("V5", std::string("ext(\"") + kUnknownId + "\") is not NULL");
    if (head.ext(self, "") != nullptr) run.fail("V5", "ext(\"\") is not NULL");
    head.destroy(self);
  });
}

/// The settings as they lie in pages of their own: rows, then keys and texts.
class LentSettings {
 public:
  explicit LentSettings(std::span<const luna_kv> rows)
      : n_rows_(rows.size()), memory_(bytes_of(rows)) {
    std::byte* const first = memory_.bytes().data();
    auto* const copies = reinterpret_cast<luna_kv*>(first);
    std::byte* text = first + n_rows_ * sizeof(luna_kv);
    const auto lend = [&text](luna_str& from) {
      if (from.n > 0) std::memcpy(text, from.p, from.n);
      from.p = reinterpret_cast<const char*>(text);
      text += from.n;
    };
    for (std::size_t i = 0; i < n_rows_; ++i) {
      copies[i] = rows[i];
      lend(copies[i].key);
      if (copies[i].type >= LUNA_TYPE_STRING) lend(copies[i].s);
    }
    memory_.make_read_only();
  }
  [[nodiscard]] std::span<const luna_kv> rows() const {
    return {reinterpret_cast<const luna_kv*>(memory_.bytes().data()), n_rows_};
  }
  void take_away() { memory_.take_away(); }

 private:
  static std::size_t bytes_of(std::span<const luna_kv> rows) {
    std::size_t n = rows.size() * sizeof(luna_kv);
    for (const luna_kv& row : rows)
      n += row.key.n + (row.type >= LUNA_TYPE_STRING ? row.s.n : 0);
    return n;
  }
  std::size_t n_rows_;
  GuardedMemory memory_;
};

void check_settings_unchanged(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    const LentSettings lent(rows);
    void* self = nullptr;
    if (make(*subject, head, lent.rows(), self)) head.destroy(self);
  });
}

void check_settings_not_kept(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    LentSettings lent(rows);
    void* self = nullptr;
    if (!make(*subject, head, lent.rows(), self)) return;
    lent.take_away();
    run.phase("use after the settings have gone");
    // The calls that need nothing of their kind; those of the kind's own cases come on top.
    head.ext(self, kUnknownId);
    head.destroy(self);
  });
}

void check_process_state(CaseRun& run) {
  const ProcessState before = ProcessState::now();
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    void* self = nullptr;
    if (!make(*subject, head, rows, self)) return;
    if (const std::string what = before.difference(ProcessState::now()); !what.empty())
      run.fail("T1", "create changes " + what);
    head.destroy(self);
  });
}

// Each allocation of create() fails once: it answers with an error, or does without.
void check_out_of_memory(CaseRun& run) {
  constexpr std::uint64_t kAllocationsMax = 2000;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  if (!AllocationWatch::install(&subject->library().descriptor()))
    return run.skip("not under a sanitizer");
  for_each_kind(run, *subject, [&](const std::string&, const luna_if& head, auto rows) {
    for (std::uint64_t n = 1; n <= kAllocationsMax; ++n) {
      run.phase("create whose allocation " + std::to_string(n) + " fails");
      const Created made = subject->create(head, rows, n);
      if (made.status >= 0 && made.self != nullptr) head.destroy(made.self);
      if (run.has_failed()) return;
      if (made.status < 0 && made.err.text[0] == '\0')
        run.fail("E2", "create failed without memory and gave no reason");
      if (made.n_allocations < n) return;
    }
  });
}

constexpr auto kCases = std::to_array<Case>({
    {"C.leaks", "", "U3", check_leaks},
    {"C.several", "", "U2", check_several},
    {"C.out_of_memory", "", "E1", check_out_of_memory},
    {"D.extensions", "", "U3", check_extensions},
    {"D.settings_unchanged", "", "O1", check_settings_unchanged},
    {"D.settings_not_kept", "", "O2", check_settings_not_kept},
    {"D.process_state", "", "U3", check_process_state},
});

}  // namespace

std::span<const Case> instance_cases() {
  return kCases;
}

}  // namespace luna::check
