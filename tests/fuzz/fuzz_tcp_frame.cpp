// Bytes that other hosts send: a frame, a hello or an address, or a reason; never a crash, and what
// is read is what was written.
#include "plugins/transport_tcp/address.hpp"
#include "plugins/transport_tcp/frame.hpp"
#include "plugins/transport_tcp/handshake.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace {

constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 30U;

bool is_same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void parse_head(std::span<const std::byte> bytes) {
  if (bytes.size() < luna::tcp::kHeaderBytes) return;
  // A fuzzer does not find checksums: the right one is put in.
  luna::tcp::HeaderBytes head;
  std::copy_n(bytes.begin(), head.size(), head.begin());
  for (const bool is_repaired : {false, true}) {
    if (is_repaired) luna::tcp::seal_header(head);
    const auto header = luna::tcp::parse_header(head, kMessageBytesMax);
    if (header && !is_same(luna::tcp::encode_header(*header), head)) std::abort();
    if (header && header->n_bytes > kMessageBytesMax) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  parse_head(bytes);
  const auto hello = luna::tcp::parse_hello(bytes);
  if (hello && !is_same(luna::tcp::encode_hello(*hello), bytes)) std::abort();
  const auto address = luna::tcp::parse_address(bytes);
  if (address && !is_same(luna::tcp::encode_address(*address), bytes)) std::abort();
  return 0;
}
