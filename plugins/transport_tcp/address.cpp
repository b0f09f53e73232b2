#include "address.hpp"

#include "bytes.hpp"

#include <algorithm>
#include <string_view>

namespace luna::tcp {
namespace {

constexpr std::string_view kMagic = "luna-tcp";

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == ':' || c == '%';
}

}  // namespace

std::vector<std::byte> encode_address(const Address& address) {
  std::vector<std::byte> bytes;
  append(bytes, std::as_bytes(std::span(kMagic)));
  append(bytes, address.endpoint);
  append(bytes, address.port);
  append(bytes, std::as_bytes(std::span(address.host)));
  return bytes;
}

Result<Address> parse_address(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(kMagic));
  if (bytes.size() < kAddressBytesMin || bytes.size() > kAddressBytesMax ||
      !std::equal(magic.begin(), magic.end(), bytes.begin())) {
    return Error{Code::invalid_argument, "not an address of transport tcp"};
  }
  Address address;
  address.endpoint = load<std::uint64_t>(bytes, 8);
  address.port = load<std::uint16_t>(bytes, 16);
  for (const std::byte byte : bytes.subspan(kAddressBytesMin - 1))
    address.host.push_back(std::to_integer<char>(byte));
  if (address.endpoint == 0 || address.port == 0 ||
      !std::all_of(address.host.begin(), address.host.end(), is_host_character)) {
    return Error{Code::invalid_argument, "an address of transport tcp without a usable host"};
  }
  return address;
}

}  // namespace luna::tcp
