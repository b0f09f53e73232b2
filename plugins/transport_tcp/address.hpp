// Where an endpoint is reached: what an address blob holds.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::tcp {

/// An endpoint and the way to it. A value.
struct Address {
  /// A random number, new with every start: a process that comes back is another endpoint.
  std::uint64_t endpoint = 0;
  std::uint16_t port = 0;
  std::string host;  ///< a name or an IP address
};

inline constexpr std::size_t kHostBytesMax = 200;
inline constexpr std::size_t kAddressBytesMin = 8 + 8 + 2 + 1;
inline constexpr std::size_t kAddressBytesMax = kAddressBytesMin - 1 + kHostBytesMax;

/// Layout: "luna-tcp", endpoint (8), port (2), then the host up to the end. At most
/// kAddressBytesMax bytes. [any]
std::vector<std::byte> encode_address(const Address& address);

/// Errors   invalid_argument: not an address of this transport
Result<Address> parse_address(std::span<const std::byte> bytes);

}  // namespace luna::tcp
