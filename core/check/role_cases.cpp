// Group E of roles: whole requests through one stage.
#include "core/check/cases.hpp"
#include "core/check/role_driver.hpp"

#include <algorithm>
#include <array>
#include <malloc.h>
#include <random>
#include <string>

namespace luna::check {
namespace {

/// Texts of all kinds: empty, with quotes and fences, of characters with one to four bytes, long.
std::string draw_text(std::mt19937_64& random) {
  constexpr std::array<std::string_view, 12> kParts = {"a",
                                                       " word",
                                                       "\n",
                                                       "```",
                                                       "{\"k\": 1}",
                                                       "\xC3\xA9",
                                                       "\xE4\xBD\xA0\xE5\xA5\xBD",
                                                       "\xF0\x9F\x99\x82",
                                                       ". ",
                                                       "* item\n",
                                                       "\"",
                                                       "  "};
  std::string text;
  for (std::uint64_t n = random() % 40; n > 0; --n)
    text += kParts[random() % kParts.size()];
  return text;
}

plugin::Instance<luna_role_if> make_role(Subject& subject) {
  return subject.make<luna_role_if>(LUNA_KIND_ROLE);
}

/// Runs until no item waits. False: the run was told what is wrong, or it goes on for ever.
bool run_to_end(CaseRun& run, RoleDriver& driver, std::uint32_t cuts) {
  constexpr int kStepsMax = 10'000;
  for (int n = 0; n < kStepsMax; ++n)
    if (!driver.step(cuts)) return !run.has_failed();
  run.fail("R1", "after " + std::to_string(kStepsMax) + " batches requests are still open");
  return false;
}

/// Texts of a request: what the stage before wrote, and what the model answers.
struct Texts {
  std::string before;
  std::string answer;
};

// Alone and in one piece, then in batches and in pieces: the same comes out.
void check_streams(CaseRun& run) {
  constexpr std::uint64_t kRequests = 40;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  std::mt19937_64 random(run.input().seed);
  std::vector<Texts> texts(kRequests);
  for (std::uint64_t r = 0; r < kRequests; ++r)
    texts[r] = {r % 3 == 0 ? draw_text(random) : "", draw_text(random)};
  const auto whole = make_role(*subject);
  if (!whole) return;
  std::vector<RoleAnswer> expected;
  for (std::uint64_t r = 0; r < kRequests; ++r) {
    RoleDriver driver(run, whole, r);
    driver.add(r + 1, texts[r].before, texts[r].answer);
    if (!run_to_end(run, driver, 1)) return;
    expected.push_back(driver.answers().at(r + 1));
    if (expected.back().n_ends != 1)
      return run.fail("R1",
                      "request " + std::to_string(r + 1) + " got all its items and did not end");
    driver.drop(r + 1);
  }
  const auto cut = make_role(*subject);
  if (!cut) return;
  RoleDriver driver(run, cut, run.input().seed);
  for (std::uint64_t r = 0; r < kRequests; ++r)
    driver.add(r + 1, texts[r].before, texts[r].answer);
  if (!run_to_end(run, driver, 6)) return;
  for (std::uint64_t r = 0; r < kRequests; ++r) {
    const RoleAnswer& got = driver.answers().at(r + 1);
    if (got.text == expected[r].text && got.end == expected[r].end &&
        got.error == expected[r].error)
      continue;
    return run.fail("R2",
                    "request " + std::to_string(r + 1) + " in pieces gave '" + got.text +
                        "', in one '" + expected[r].text + "'");
  }
}

// Dropped at any point: nothing more comes, and nothing is kept.
void check_drops(CaseRun& run) {
  constexpr std::uint64_t kRequests = 2'000;
  constexpr std::uint64_t kWarmUp = 500;
  constexpr std::size_t kBytesOfARequest = 64;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto role = make_role(*subject);
  if (!role) return;
  std::mt19937_64 random(run.input().seed);
  std::size_t bytes = 0;
  for (std::uint64_t r = 1; r <= kRequests; ++r) {
    if (r == kWarmUp) bytes = ::mallinfo2().uordblks;
    RoleDriver driver(run, role, r);
    driver.add(r, draw_text(random), draw_text(random));
    for (std::uint64_t n = random() % 6; n > 0; --n)
      if (!driver.step(3)) break;
    driver.drop(r);
    while (driver.step(3)) {}
    if (run.has_failed()) return;
  }
  const std::size_t now = ::mallinfo2().uordblks;
  if (now > bytes && now - bytes > (kRequests - kWarmUp) * kBytesOfARequest)
    run.fail("R3",
             std::to_string(now - bytes) + " bytes are kept of " +
                 std::to_string(kRequests - kWarmUp) + " requests that were dropped");
}

constexpr auto kCases = std::to_array<Case>({
    {"E.role.streams", LUNA_KIND_ROLE, "U3", check_streams},
    {"E.role.drops", LUNA_KIND_ROLE, "U3", check_drops},
});

}  // namespace

std::span<const Case> role_cases() {
  return kCases;
}

}  // namespace luna::check
