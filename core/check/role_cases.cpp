// Group E of roles: whole requests through one stage.
#include "core/check/cases.hpp"
#include "core/check/role_driver.hpp"

#include <algorithm>
#include <array>
#include <malloc.h>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// Texts of a request: what the stage before wrote, what the model answers, and what it answers to
/// a further choice; empty: there is none.
struct Texts {
  std::string before;
  std::string answer;
  std::string choice;
};

constexpr std::uint64_t kChoices = 1'000'000;  // identities of further choices begin here

std::vector<Texts> draw_texts(std::uint64_t n, std::mt19937_64& random) {
  std::vector<Texts> texts(n);
  for (std::uint64_t r = 0; r < n; ++r)
    texts[r] = {r % 3 == 0 ? draw_text(random) : "",
                draw_text(random),
                r % 4 == 1 ? draw_text(random) + "." : ""};
  return texts;
}

void add_request(RoleDriver& driver, std::uint64_t request, const Texts& texts) {
  driver.add(request, texts.before, texts.answer);
  if (!texts.choice.empty()) driver.add_choice(request, kChoices + request, texts.choice);
}

using Answers = std::map<std::uint64_t, RoleAnswer>;

/// What comes of each request by itself, in one piece. Empty: the run was told what is wrong.
Answers answers_alone(CaseRun& run,
                      const plugin::Instance<luna_role_if>& role,
                      std::span<const Texts> texts) {
  Answers expected;
  for (std::uint64_t r = 0; r < texts.size(); ++r) {
    RoleDriver driver(run, role, r);
    add_request(driver, r + 1, texts[r]);
    if (!run_to_end(run, driver, 1)) return {};
    for (const auto& [request, answer] : driver.answers()) {
      if (answer.n_ends != 1) {
        run.fail("R1", "request " + std::to_string(request) + " got all its items and did not end");
        return {};
      }
      expected[request] = answer;
    }
  }
  return expected;
}

/// Whether a request got what it gets alone. The run is told where not.
bool is_same(CaseRun& run,
             std::string_view rule,
             std::uint64_t request,
             const RoleAnswer& got,
             const RoleAnswer& alone,
             const char* how) {
  if (got.text == alone.text && got.end == alone.end && got.error == alone.error) return true;
  constexpr std::size_t kShown = 200;
  run.fail(rule,
           "request " + std::to_string(request) + " " + how + " gave '" +
               got.text.substr(0, kShown) + "', alone and in one piece '" +
               alone.text.substr(0, kShown) + "'");
  return false;
}

// Alone and in one piece, then in batches and in pieces: the same comes out.
void check_streams(CaseRun& run) {
  constexpr std::uint64_t kRequests = 40;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  std::mt19937_64 random(run.input().seed);
  const std::vector<Texts> texts = draw_texts(kRequests, random);
  const auto whole = make_role(*subject);
  if (!whole) return;
  const Answers expected = answers_alone(run, whole, texts);
  const auto cut = make_role(*subject);
  if (run.has_failed() || !cut) return;
  RoleDriver driver(run, cut, run.input().seed);
  for (std::uint64_t r = 0; r < kRequests; ++r)
    add_request(driver, r + 1, texts[r]);
  if (!run_to_end(run, driver, 6)) return;
  for (const auto& [request, alone] : expected)
    if (!is_same(run, "R2", request, driver.answers().at(request), alone, "in pieces")) return;
}

// Half of them go away at any point, while the others are served: these do not notice.
void check_neighbours(CaseRun& run) {
  constexpr std::uint64_t kRequests = 60;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  std::mt19937_64 random(run.input().seed);
  const std::vector<Texts> texts = draw_texts(kRequests, random);
  const auto quiet = make_role(*subject);
  if (!quiet) return;
  const Answers expected = answers_alone(run, quiet, texts);
  const auto role = make_role(*subject);
  if (run.has_failed() || !role) return;
  RoleDriver driver(run, role, run.input().seed);
  for (std::uint64_t r = 0; r < kRequests; ++r)
    add_request(driver, r + 1, texts[r]);
  std::uint64_t next = 1;  // those of odd numbers go
  do {
    if (next <= kRequests && random() % 2 == 0) {
      driver.drop(next);
      driver.drop(kChoices + next);
      next += 2;
    }
  } while (driver.step(3));
  if (run.has_failed()) return;
  for (const auto& [request, alone] : expected) {
    if (request % 2 == 1 && request % kChoices < next) continue;
    const auto found = driver.answers().find(request);
    if (found == driver.answers().end())
      return run.fail("R5", "request " + std::to_string(request) + " gets nothing");
    if (!is_same(run, "R5", request, found->second, alone, "beside others that were dropped"))
      return;
  }
}

// A text of a megabyte, in one item and in many; and none at all.
void check_sizes(CaseRun& run) {
  constexpr std::size_t kLarge = std::size_t{1} << 20U;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  std::mt19937_64 random(run.input().seed);
  std::vector<Texts> texts(2);
  while (texts[0].answer.size() < kLarge)
    texts[0].answer += draw_text(random) + ".";
  texts[0].before = texts[0].answer.substr(0, texts[0].answer.find('.') + 1);
  const auto whole = make_role(*subject);
  if (!whole) return;
  const Answers expected = answers_alone(run, whole, texts);
  const auto cut = make_role(*subject);
  if (run.has_failed() || !cut) return;
  RoleDriver driver(run, cut, run.input().seed);
  for (std::uint64_t r = 0; r < texts.size(); ++r)
    add_request(driver, r + 1, texts[r]);
  if (!run_to_end(run, driver, 200)) return;
  for (const auto& [request, alone] : expected)
    if (!is_same(run, "R2", request, driver.answers().at(request), alone, "in pieces")) return;
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
    {"E.role.sizes", LUNA_KIND_ROLE, "U3", check_sizes},
    {"E.role.drops", LUNA_KIND_ROLE, "U3", check_drops},
    {"E.role.neighbours", LUNA_KIND_ROLE, "U3", check_neighbours},
});

}  // namespace

std::span<const Case> role_cases() {
  return kCases;
}

}  // namespace luna::check
