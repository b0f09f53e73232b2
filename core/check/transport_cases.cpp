// Group E of transports: two endpoints of one process. Two sides are in transport_sides_cases.cpp.
#include "core/check/cases.hpp"
#include "core/check/subject.hpp"
#include "core/check/transport_end.hpp"

#include <luna/abi/transport.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace luna::check {
namespace {

/// Both know each other. False: the run was told why.
bool meet(CaseRun& run, End& a, End& b) {
  const auto of_a = a.address();
  const auto of_b = b.address();
  luna_err err = make_err();
  luna_status to_b = LUNA_AGAIN;
  luna_status to_a = LUNA_AGAIN;
  turn_until(a, b, [&] {
    if (to_b == LUNA_AGAIN) to_b = a.connect(of_b, err);
    if (to_a == LUNA_AGAIN) to_a = b.connect(of_a, err);
    return to_a != LUNA_AGAIN && to_b != LUNA_AGAIN;
  });
  if (to_a == LUNA_OK && to_b == LUNA_OK) return true;
  run.fail("X1", "two endpoints of one process do not meet: " + std::string(text_of(err)));
  return false;
}

struct Pair {
  std::unique_ptr<Subject> subject;
  std::unique_ptr<End> a, b;
  explicit operator bool() const { return a != nullptr && b != nullptr; }
};

Pair make_pair_of_ends(CaseRun& run) {
  Pair pair;
  pair.subject = Subject::load(run);
  if (pair.subject == nullptr) return pair;
  pair.a = End::make(run, *pair.subject);
  if (pair.a != nullptr) pair.b = End::make(run, *pair.subject);
  if (pair && !meet(run, *pair.a, *pair.b)) pair.b.reset();
  return pair;
}

/// The two ends of one message, and where it lies in their memory.
struct Message {
  explicit Message(std::uint64_t n_bytes, std::mt19937_64& random)
      : size(n_bytes),
        from_at(random() % 9),
        to_at(random() % 9),
        from(n_bytes + 16),
        to(n_bytes + 16, kUntouched) {
    for (std::uint8_t& byte : from)
      byte = static_cast<std::uint8_t>(random());
  }
  [[nodiscard]] std::string name() const {
    return "a message of " + std::to_string(size) + " bytes";
  }
  /// What was written beside its place.
  [[nodiscard]] bool is_beside() const {
    const auto is_untouched = [](std::uint8_t byte) { return byte == kUntouched; };
    const auto begin = to.begin() + static_cast<std::ptrdiff_t>(to_at);
    return !std::all_of(to.begin(), begin, is_untouched) ||
           !std::all_of(begin + static_cast<std::ptrdiff_t>(size), to.end(), is_untouched);
  }
  static constexpr std::uint8_t kUntouched = 0xEE;
  std::uint64_t size;
  std::uint64_t from_at;
  std::uint64_t to_at;
  std::vector<std::uint8_t> from;
  std::vector<std::uint8_t> to;
};

/// Both ends ask, in either order, and both hear of the end. False: the run was told why.
bool exchange(CaseRun& run, const Pair& pair, luna_xfer send, luna_xfer recv, bool sends_first) {
  const std::string what = "a message of " + std::to_string(send.n_bytes) + " bytes";
  pair.a->done().clear();
  pair.b->done().clear();
  luna_err err = make_err();
  const luna_status first = sends_first ? pair.a->post(send, err) : pair.b->post(recv, err);
  const luna_status second = sends_first ? pair.b->post(recv, err) : pair.a->post(send, err);
  if (first < 0 || second < 0) {
    run.fail("X1", what + " is refused: " + std::string(text_of(err)));
    return false;
  }
  if (!turn_until(
          *pair.a, *pair.b, [&] { return !pair.a->done().empty() && !pair.b->done().empty(); })) {
    run.fail("X1", what + " does not arrive within 10 s");
    return false;
  }
  const luna_xfer_done& sent = pair.a->done().front();
  const luna_xfer_done& got = pair.b->done().front();
  if (sent.status != LUNA_OK || got.status != LUNA_OK || got.n_bytes != send.n_bytes)
    run.fail("X1",
             what + " ends with status " + std::to_string(sent.status) + " and " +
                 std::to_string(got.status) + ", " + std::to_string(got.n_bytes) + " bytes");
  if (sent.cookie != send.cookie || got.cookie != recv.cookie)
    run.fail("X1", what + " comes back with another cookie");
  return !run.has_failed();
}

// Messages of a byte and of megabytes, at any offset, whichever side asks first.
void check_integrity(CaseRun& run) {
  constexpr std::array<std::uint64_t, 9> kSizes = {
      1, 7, 63, 4096, 65'537, 1U << 20U, (1U << 20U) + 3, 5'000'001, 32U << 20U};
  const Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  const luna_transport_caps caps = pair.a->caps();
  std::mt19937_64 random(run.input().seed);
  std::uint64_t cookie = 0;
  for (const std::uint64_t size : kSizes) {
    if (size > caps.message_bytes_max) continue;
    Message message(size, random);
    const auto from_key = pair.a->add(message.from);
    const auto to_key = pair.b->add(message.to);
    if (!from_key || !to_key) return;
    luna_xfer send = transfer(LUNA_XFER_SEND, *pair.a, *from_key, ++cookie);
    luna_xfer recv = transfer(LUNA_XFER_RECV, *pair.b, *to_key, ++cookie);
    send.n_bytes = recv.n_bytes = size;
    send.offset = message.from_at;
    recv.offset = message.to_at;
    send.tag = recv.tag = static_cast<std::uint32_t>(size % 1000);
    if (!exchange(run, pair, send, recv, random() % 2 == 0)) return;
    if (std::memcmp(
            message.to.data() + message.to_at, message.from.data() + message.from_at, size) != 0)
      return run.fail("X1", message.name() + " arrives changed");
    if (message.is_beside()) return run.fail("O3", message.name() + " is written beside its place");
    pair.a->remove(*from_key);
    pair.b->remove(*to_key);
  }
}

// Many messages of one tag arrive in the order in which they were sent, and a full queue says so.
void check_order(CaseRun& run) {
  constexpr std::uint64_t kMessages = 20'000;
  constexpr std::uint64_t kBytes = 8;
  const Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  std::vector<std::uint8_t> from(kMessages * kBytes);
  std::vector<std::uint8_t> to(kMessages * kBytes);
  for (std::uint64_t i = 0; i < kMessages; ++i)
    std::memcpy(from.data() + i * kBytes, &i, kBytes);
  const auto from_key = pair.a->add(from);
  const auto to_key = pair.b->add(to);
  if (!from_key || !to_key) return;
  std::uint64_t n_sent = 0;
  std::uint64_t n_asked = 0;
  const auto post_more = [&](End& end, std::uint32_t verb, std::uint64_t key, std::uint64_t& n) {
    while (n < kMessages) {
      luna_xfer one = transfer(verb, end, key, n);
      one.offset = n * kBytes;
      one.n_bytes = kBytes;
      luna_err err = make_err();
      const luna_status status = end.post(one, err);
      if (status == LUNA_EXHAUSTED) return;  // poll first
      if (status < 0)
        return run.fail(
            "X1", "message " + std::to_string(n) + " is refused: " + std::string(text_of(err)));
      ++n;
    }
  };
  if (!turn_until(*pair.a, *pair.b, [&] {
        post_more(*pair.a, LUNA_XFER_SEND, *from_key, n_sent);
        post_more(*pair.b, LUNA_XFER_RECV, *to_key, n_asked);
        return run.has_failed() ||
               (pair.a->done().size() == kMessages && pair.b->done().size() == kMessages);
      }))
    return run.fail("X1",
                    std::to_string(pair.b->done().size()) + " of " + std::to_string(kMessages) +
                        " messages arrive within 10 s");
  if (!run.has_failed() && from != to)
    run.fail("X1", "messages of one tag arrive in another order");
}

void check_refusals(CaseRun& run) {
  const Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  std::vector<std::uint8_t> memory(100);
  const auto key = pair.a->add(memory);
  if (!key) return;
  const auto refused = [&](const char* what, const luna_xfer& wrong) {
    luna_err err = make_err();
    const luna_status status = pair.a->post(wrong, err);
    if (status >= 0)
      run.fail("X2", std::string(what) + " is accepted");
    else if (err.text[0] == '\0')
      run.fail("E2", std::string(what) + " is refused without a reason");
  };
  luna_xfer good = transfer(LUNA_XFER_SEND, *pair.a, *key, 1);
  good.n_bytes = 100;
  luna_xfer wrong = good;
  wrong.offset = 1;
  refused("a range that leaves its memory", wrong);
  wrong.offset = UINT64_MAX;
  refused("an offset of 2^64 - 1", wrong);
  wrong = good;
  wrong.key = *key + 1'000'003;
  refused("a key that was never given", wrong);
  wrong = good;
  wrong.peer += 1'000'003;
  refused("a peer that was never connected", wrong);
  wrong = good;
  wrong.verb = 77;
  refused("a verb that is none", wrong);
  pair.a->remove(*key);
  refused("memory that is not registered any more", good);
}

// Blobs that are no addresses, and addresses that were damaged.
void check_addresses(CaseRun& run) {
  const Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  std::mt19937_64 random(run.input().seed);
  const auto good = pair.b->address();
  for (std::size_t n = 0; n <= LUNA_ADDRESS_BYTES_MAX; ++n) {
    std::vector<std::uint8_t> blob(n);
    for (std::uint8_t& byte : blob)
      byte = static_cast<std::uint8_t>(random());
    if (blob == good) continue;
    run.phase("connect to " + std::to_string(n) + " random bytes");
    luna_err err = make_err();
    const luna_status status = pair.a->connect(blob, err);
    if (status == LUNA_OK) run.fail("X2", std::to_string(n) + " random bytes pass for an address");
    if (status < 0 && err.text[0] == '\0')
      run.fail("E2", "connect() refuses an address without a reason");
    if (run.has_failed()) return;
  }
}

void check_peer_loss(CaseRun& run) {
  Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  std::vector<std::uint8_t> memory(100);
  const auto key = pair.a->add(memory);
  if (!key) return;
  luna_xfer recv = transfer(LUNA_XFER_RECV, *pair.a, *key, 9);
  recv.n_bytes = 100;
  luna_err err = make_err();
  if (pair.a->post(recv, err) < 0)
    return run.fail("X1", "a receive is refused: " + std::string(text_of(err)));
  run.phase("destroy of the peer");
  pair.b.reset();
  if (!pair.a->poll_until([&] { return !pair.a->done().empty(); }))
    return run.fail("X3", "a receive from a peer that has gone is open after 10 s");
  if (pair.a->done().front().status >= 0)
    run.fail("X3",
             "a receive from a peer that has gone ends with status " +
                 std::to_string(pair.a->done().front().status));
}

void check_estimates(CaseRun& run) {
  const Pair pair = make_pair_of_ends(run);
  if (!pair) return;
  const End& a = *pair.a;
  luna_transport_caps caps{};
  caps.struct_size = sizeof(caps);
  if (a.table().caps(a.self(), &caps) < 0 || caps.message_bytes_max == 0 ||
      !(caps.bytes_per_ns > 0.0) || (caps.mem_kinds & LUNA_MEM_HOST) == 0)
    run.fail("X4", "caps() names no message size, no speed or no host memory");
  std::uint64_t before = 0;
  for (std::uint64_t n = 1; n <= (1U << 26U); n *= 4) {
    const std::uint64_t ns = a.table().estimate_ns(a.self(), a.peer(), n);
    if (ns != a.table().estimate_ns(a.self(), a.peer(), n))
      return run.fail("X4",
                      "asked twice for " + std::to_string(n) + " bytes, it answers two times");
    if (ns < before)
      return run.fail("X4",
                      std::to_string(n) + " bytes take " + std::to_string(ns) +
                          " ns, a quarter of them " + std::to_string(before));
    before = ns;
  }
}

constexpr const char* kKind = LUNA_KIND_TRANSPORT;
constexpr auto kCases = std::to_array<Case>({
    {"E.transport.integrity", kKind, "U3", check_integrity},
    {"E.transport.order", kKind, "U3", check_order},
    {"E.transport.refusals", kKind, "X2", check_refusals},
    {"E.transport.addresses", kKind, "X2", check_addresses},
    {"E.transport.peer_loss", kKind, "X3", check_peer_loss},
    {"E.transport.estimates", kKind, "U3", check_estimates},
});

}  // namespace

std::span<const Case> transport_cases() {
  return kCases;
}

}  // namespace luna::check
