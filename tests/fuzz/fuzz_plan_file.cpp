// Recordings of plans: whatever the bytes, plans that an engine could have asked for, or a refusal.
// A right hash in front of every record would keep the fuzzer out: it is put in first.
#include "core/engine/plan_file.hpp"
#include "core/engine/snapshot_check.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace {

using luna::Sha256;
using luna::Sha256Digest;

constexpr std::size_t kHeadBytes = 8 + 4 * 9;  // to the length of the text
constexpr std::size_t kDigestBytes = sizeof(Sha256Digest);

Sha256Digest chained(const Sha256Digest& before, std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(before);
  hash.update(bytes);
  return hash.finish();
}

std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t n = 0;
  std::memcpy(&n, bytes.data() + at, sizeof(n));
  return n;
}

/// Puts the digests of the chain where they belong, as far as the lengths lead.
void mend(std::vector<std::byte>& bytes) {
  Sha256Digest chain{};
  std::size_t at = 0;
  std::size_t n = kHeadBytes + 4;
  if (bytes.size() < n) return;
  n += number_at(bytes, kHeadBytes);
  while (n <= bytes.size() - at && kDigestBytes <= bytes.size() - at - n) {
    chain = chained(chain, std::span(bytes).subspan(at, n));
    std::memcpy(bytes.data() + at + n, chain.data(), kDigestBytes);
    at += n + kDigestBytes;
    if (bytes.size() - at < 8) return;
    n = 8 + std::size_t{number_at(bytes, at)};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(first, first + size);
  mend(bytes);
  auto reader = luna::engine::PlanFileReader::open(bytes);
  if (!reader) return 0;
  for (;;) {
    const auto more = reader->next();
    if (!more || !*more) return 0;
    const auto& plan = reader->plan();
    if (!luna::engine::check_snapshot(plan.snapshot)) __builtin_trap();
    if (plan.actions.size() > plan.plan.n_actions_max) __builtin_trap();
    if (plan.plan.n_actions_max < plan.snapshot.n_reqs) __builtin_trap();
  }
}
