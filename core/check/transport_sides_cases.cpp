// Group E of transports: two sides, in two processes where the transport reaches across them.
#include "core/check/cases.hpp"
#include "core/check/two_sides.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace luna::check {
namespace {

using std::chrono::steady_clock;

constexpr std::uint32_t kTag = 7;
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30U;  // with --large
constexpr std::array<std::uint64_t, 9> kSizes = {
    1, 7, 63, 4096, 65'537, 1U << 20U, (1U << 20U) + 3, 5'000'001, 32U << 20U};

/// What both sides know a message to be: another one for each number.
void fill_message(std::span<std::uint8_t> bytes, std::uint64_t number) {
  std::uint64_t x = number * 0x9E3779B97F4A7C15U + 1;
  const auto next = [&x] {
    x ^= x << 13U;
    x ^= x >> 7U;
    return x ^= x << 17U;
  };
  std::size_t at = 0;
  for (; at + sizeof(x) <= bytes.size(); at += sizeof(x)) {
    const std::uint64_t word = next();
    std::memcpy(&bytes[at], &word, sizeof(word));
  }
  for (; at < bytes.size(); ++at)
    bytes[at] = static_cast<std::uint8_t>(next());
}

bool is_message(std::span<const std::uint8_t> bytes, std::uint64_t number) {
  std::vector<std::uint8_t> expected(bytes.size());
  fill_message(expected, number);
  return std::equal(bytes.begin(), bytes.end(), expected.begin());
}

/// One transfer from its post to its end. False: the run was told why.
bool carry_out(Side& side, std::uint32_t verb, std::uint64_t key, std::uint64_t n_bytes) {
  const std::string what = "a message of " + std::to_string(n_bytes) + " bytes";
  side.end.done().clear();
  luna_xfer one = transfer(verb, side.end, key, n_bytes);
  one.n_bytes = n_bytes;
  one.tag = kTag;
  luna_err err = make_err();
  if (side.end.post(one, err) < 0) {
    side.run.fail("X1", what + " is refused: " + std::string(text_of(err)));
    return false;
  }
  if (!side.end.poll_until([&] { return !side.end.done().empty(); })) {
    side.run.fail("X1", what + " does not arrive within 10 s");
    return false;
  }
  const luna_xfer_done& done = side.end.done().front();
  if (done.status != LUNA_OK || done.n_bytes != n_bytes || done.cookie != n_bytes)
    side.run.fail("X1",
                  what + " ends with status " + std::to_string(done.status) + " and " +
                      std::to_string(done.n_bytes) + " bytes");
  return !side.run.has_failed();
}

std::vector<std::uint64_t> sizes_of(const Side& side) {
  std::vector<std::uint64_t> sizes(kSizes.begin(), kSizes.end());
  if (side.run.input().is_large) sizes.push_back(kLargest);
  const std::uint64_t max = side.end.caps().message_bytes_max;
  std::erase_if(sizes, [max](std::uint64_t size) { return size > max; });
  return sizes;
}

/// There and back: the first sends, the other answers with another message.
void send_and_answer(Side& side, bool is_first) {
  for (const std::uint64_t size : sizes_of(side)) {
    std::vector<std::uint8_t> memory(size);
    const auto key = side.end.add(memory);
    if (!key) return;
    const std::uint64_t own = 2 * size + (is_first ? 0 : 1);
    const std::uint64_t other = 2 * size + (is_first ? 1 : 0);
    const auto send = [&] {
      fill_message(memory, own);
      return carry_out(side, LUNA_XFER_SEND, *key, size);
    };
    const auto receive = [&] {
      if (!carry_out(side, LUNA_XFER_RECV, *key, size)) return false;
      if (!is_message(memory, other))
        side.run.fail("X1", "a message of " + std::to_string(size) + " bytes arrives changed");
      return !side.run.has_failed();
    };
    if (is_first ? !send() || !receive() : !receive() || !send()) return;
    side.end.remove(*key);
  }
  // Nobody leaves before the other has all.
  side.channel.send("done");
  receive_polling(side.end, side.channel);
}

void check_two_sides(CaseRun& run) {
  run_two_sides(
      run,
      [](Side& side) {
        side.run.figure("sides", side.is_process ? "processes" : "threads");
        send_and_answer(side, true);
      },
      [](Side& side) { send_and_answer(side, false); });
}

struct Timing {
  std::uint64_t n_bytes;
  std::uint32_t n_rounds;
};
constexpr double kFarOff = 20.0;
constexpr std::array<Timing, 3> kTimings = {
    Timing{8, 200}, Timing{1U << 20U, 10}, Timing{32U << 20U, 3}};

/// Rounds of a message and its answer, without a look at what arrives.
void bounce(Side& side, bool is_first) {
  for (const Timing& timing : kTimings) {
    if (timing.n_bytes > side.end.caps().message_bytes_max) continue;
    std::vector<std::uint8_t> memory(timing.n_bytes, 1);
    const auto key = side.end.add(memory);
    if (!key) return;
    std::vector<double> us;
    for (std::uint32_t n = 0; n < timing.n_rounds; ++n) {
      const auto began = steady_clock::now();
      const std::uint32_t first = is_first ? LUNA_XFER_SEND : LUNA_XFER_RECV;
      const std::uint32_t second = is_first ? LUNA_XFER_RECV : LUNA_XFER_SEND;
      if (!carry_out(side, first, *key, timing.n_bytes) ||
          !carry_out(side, second, *key, timing.n_bytes))
        return;
      us.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - began).count() /
                   2.0);
    }
    side.end.remove(*key);
    if (!is_first) continue;
    std::ranges::sort(us);
    const std::string bytes = std::to_string(timing.n_bytes) + "_bytes";
    const std::uint64_t ns =
        side.end.table().estimate_ns(side.end.self(), side.end.peer(), timing.n_bytes);
    side.run.figure("estimate_us_" + bytes, std::to_string(static_cast<double>(ns) * 1e-3));
    const double took_ns = us[us.size() / 2] * 1e3;
    side.run.figure("took_us_" + bytes, std::to_string(took_ns * 1e-3));
    // Noise of a busy machine is less than that; who plans with such a number plans wrongly.
    const double off = took_ns / static_cast<double>(std::max<std::uint64_t>(ns, 1));
    if (off > kFarOff || off < 1.0 / kFarOff)
      side.run.figure("far_off_" + bytes, "took " + std::to_string(off) + " times as long");
  }
  side.channel.send("done");
  receive_polling(side.end, side.channel);
}

// What it expects beside what it takes, for the reader: time is no matter of pass or fail.
void check_time_taken(CaseRun& run) {
  run_two_sides(
      run, [](Side& side) { bounce(side, true); }, [](Side& side) { bounce(side, false); });
}

constexpr std::uint64_t kPiece = 65'536;
constexpr std::uint64_t kPieces = 1'000;
constexpr std::uint64_t kGrowthMax = kPiece * kPieces / 4;

/// Posts what is left of the pieces, as far as there is room. False: the run was told why not.
bool post_pieces(Side& side, std::uint32_t verb, std::uint64_t key, std::uint64_t* n_posted) {
  for (; *n_posted < kPieces; ++*n_posted) {
    luna_xfer one = transfer(verb, side.end, key, *n_posted);
    one.tag = kTag;
    one.offset = *n_posted * kPiece;
    one.n_bytes = kPiece;
    luna_err err = make_err();
    const luna_status status = side.end.post(one, err);
    if (status == LUNA_EXHAUSTED) return true;  // poll first
    if (status >= 0) continue;
    side.run.fail(
        "X1", "piece " + std::to_string(*n_posted) + " is refused: " + std::string(text_of(err)));
    return false;
  }
  return true;
}

bool pass_all(Side& side, std::uint32_t verb, std::uint64_t key, std::uint64_t n_posted) {
  const bool ends = side.end.poll_until([&] {
    return !post_pieces(side, verb, key, &n_posted) || side.end.done().size() == kPieces;
  });
  if (!ends)
    side.run.fail("X5",
                  std::to_string(side.end.done().size()) + " of " + std::to_string(kPieces) +
                      " pieces end within 10 s, once somebody takes them");
  for (const luna_xfer_done& done : side.end.done())
    if (done.status != LUNA_OK)
      side.run.fail("X1", "a piece ends with status " + std::to_string(done.status));
  return !side.run.has_failed();
}

void tell_growth(Side& side, std::uint64_t before) {
  const std::uint64_t now = resident_bytes();
  if (now > before + kGrowthMax)
    side.run.fail("X5",
                  std::to_string(now - before) + " bytes more lie in memory, where " +
                      std::to_string(kPiece * kPieces) + " are sent that nobody takes");
}

/// For as long as a queue without a bound would take to swallow all.
void poll_a_while(Side& side) {
  const auto end = steady_clock::now() + std::chrono::milliseconds(300);
  while (steady_clock::now() < end)
    side.end.poll();
}

// A receiver that takes nothing: what is sent waits with the sender, in the sender's own memory.
void check_back_pressure(CaseRun& run) {
  const auto begin = [](Side& side, std::vector<std::uint8_t>& memory) {
    fill_message(memory, 1);
    const auto key = side.end.add(memory);
    side.channel.send("ready");
    receive_polling(side.end, side.channel);
    return key;
  };
  const auto send = [&](Side& side) {
    std::vector<std::uint8_t> memory(kPiece * kPieces);
    const auto key = begin(side, memory);
    if (!key) return;
    const std::uint64_t before = resident_bytes();
    std::uint64_t n_posted = 0;
    if (!post_pieces(side, LUNA_XFER_SEND, *key, &n_posted)) return;
    poll_a_while(side);
    tell_growth(side, before);
    side.channel.send("sent");
    if (!pass_all(side, LUNA_XFER_SEND, *key, n_posted)) return;
    receive_polling(side.end, side.channel);
  };
  const auto receive = [&](Side& side) {
    std::vector<std::uint8_t> memory(kPiece * kPieces);
    const auto key = begin(side, memory);
    if (!key) return;
    std::ranges::fill(memory, std::uint8_t{0});
    const std::uint64_t before = resident_bytes();
    receive_polling(side.end, side.channel);
    if (side.is_process) tell_growth(side, before);
    if (!pass_all(side, LUNA_XFER_RECV, *key, 0)) return;
    if (!is_message(memory, 1))
      side.run.fail("X1", "pieces that waited arrive changed, or in another order");
    side.channel.send("done");
  };
  run_two_sides(run, send, receive);
}

// The other process is killed with a receive and a send open: both end, and so does what comes
// after.
void check_killed_peer(CaseRun& run) {
  const auto here = [](Side& side, const std::function<void()>& kill) {
    std::vector<std::uint8_t> memory(32U << 20U);
    const auto key = side.end.add(memory);
    if (!key || !receive_polling(side.end, side.channel)) return;
    luna_err err = make_err();
    for (const std::uint32_t verb : {LUNA_XFER_RECV, LUNA_XFER_SEND}) {
      luna_xfer one = transfer(verb, side.end, *key, verb);
      one.tag = verb;
      one.n_bytes = std::min<std::uint64_t>(memory.size(), side.end.caps().message_bytes_max);
      if (side.end.post(one, err) < 0)
        return side.run.fail("X1", "a transfer is refused: " + std::string(text_of(err)));
    }
    kill();
    const auto began = steady_clock::now();
    if (!side.end.poll_until([&] { return side.end.done().size() == 2; }))
      return side.run.fail("X3",
                           std::to_string(side.end.done().size()) +
                               " of 2 transfers with a process that was killed end within 10 s");
    side.run.figure(
        "loss_told_after_ms",
        std::to_string(
            std::chrono::duration<double, std::milli>(steady_clock::now() - began).count()));
    for (const luna_xfer_done& done : side.end.done())
      if (done.status >= 0)
        side.run.fail("X3", "a transfer with a process that was killed ends well");
    side.end.done().clear();
    luna_xfer late = transfer(LUNA_XFER_RECV, side.end, *key, 9);
    late.n_bytes = 100;
    if (side.end.post(late, err) < 0) return;  // or so
    if (!side.end.poll_until([&] { return !side.end.done().empty(); }) ||
        side.end.done().front().status >= 0)
      side.run.fail("X3", "a transfer with a process that has gone is taken, and does not fail");
  };
  const auto there = [](Side& side) {
    side.channel.send("ready");
    for (;;)
      side.end.poll();
  };
  run_beside_a_victim(run, here, there);
}

constexpr const char* kKind = LUNA_KIND_TRANSPORT;
constexpr auto kCases = std::to_array<Case>({
    {"E.transport.two_sides", kKind, "U3", check_two_sides},
    {"E.transport.back_pressure", kKind, "U3", check_back_pressure},
    {"E.transport.killed_peer", kKind, "X3", check_killed_peer},
    {"F.transport.time_taken", kKind, "U3", check_time_taken},
});

}  // namespace

std::span<const Case> transport_sides_cases() {
  return kCases;
}

}  // namespace luna::check
