// One rank of a pair over a transport, for tests that put the two on different hosts.
//
//   luna_transport_peer PLUGIN RANK KEY=VALUE...     settings are text or whole numbers
//
// Prints "address HEX". Reads "connect HEX" (of the other rank), then, rank 0 only, "echo N BYTES":
// sends N messages, and checks what rank 1 sends back; prints "echoed", or "status S". Ends with
// its input.
#include "unit/transport/endpoint.hpp"
#include "unit/transport/transport_case.hpp"

#include <charconv>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace luna::test {
namespace {

SettingValues settings_of(int argc, char** argv) {
  SettingValues settings;
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t at = text.find('=');
    const std::string value = text.substr(at + 1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc() && end == value.data() + value.size()) {
      settings[text.substr(0, at)] = number;
    } else {
      settings[text.substr(0, at)] = value;
    }
  }
  return settings;
}

using Blob = std::vector<std::uint8_t>;

std::string to_hex(const Blob& blob) {
  std::string hex;
  for (const std::uint8_t byte : blob) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex.push_back(kDigits[byte >> 4U]);
    hex.push_back(kDigits[byte & 15U]);
  }
  return hex;
}

Blob from_hex(const std::string& hex) {
  Blob blob;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    blob.push_back(static_cast<std::uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return blob;
}

/// Message i has more or fewer bytes than n, which both sides know.
std::vector<std::uint8_t> message(std::uint32_t i, std::size_t n) {
  return pattern(n + i % 7, i);
}

luna_status echo(const luna_comm* comm, std::uint32_t n_messages, std::size_t n_bytes) {
  for (std::uint32_t i = 0; i < n_messages; ++i) {
    const auto sent = message(i, n_bytes);
    std::vector<std::uint8_t> got(sent.size());
    const std::uint64_t size = sent.size();
    luna_status status = comm->send(comm->self, 1, 1, &size, sizeof(size));
    if (status == LUNA_OK) status = comm->send(comm->self, 1, 2, sent.data(), sent.size());
    if (status == LUNA_OK) status = comm->recv(comm->self, 1, 3, got.data(), got.size());
    if (status != LUNA_OK) return status;
    if (got != sent) return LUNA_CORRUPT;
  }
  return LUNA_OK;
}

void serve(const luna_comm* comm) {
  std::vector<std::uint8_t> bytes;
  std::uint64_t size = 0;
  while (comm->recv(comm->self, 0, 1, &size, sizeof(size)) == LUNA_OK) {
    bytes.resize(size);
    if (comm->recv(comm->self, 0, 2, bytes.data(), size) != LUNA_OK) return;
    if (comm->send(comm->self, 0, 3, bytes.data(), size) != LUNA_OK) return;
  }
}

int run(int argc, char** argv) {
  const auto* const table = load_table<luna_transport_if>(argv[1], LUNA_KIND_TRANSPORT);
  if (table == nullptr) return 1;
  const std::uint32_t rank = argv[2][0] == '0' ? 0 : 1;
  const FakeHost host;
  Endpoint endpoint(*table, host, settings_of(argc, argv));
  const Blob own = endpoint.address();
  std::cout << "address " << to_hex(own) << std::endl;
  std::string verb, hex;
  if (!(std::cin >> verb >> hex) || verb != "connect") return 1;
  const Blob other = from_hex(hex);
  const auto opened = endpoint.open(
      rank, 2, 1U << 24U, "pair", rank == 0 ? std::vector{own, other} : std::vector{other, own});
  if (!opened) {
    std::cerr << opened.error().message() << std::endl;
    return 1;
  }
  if (rank == 1) {
    serve(*opened);
    return 0;
  }
  std::uint32_t n_messages = 0;
  std::size_t n_bytes = 0;
  while (std::cin >> verb >> n_messages >> n_bytes) {
    const luna_status status = echo(*opened, n_messages, n_bytes);
    if (status == LUNA_OK) {
      std::cout << "echoed" << std::endl;
    } else {
      std::cout << "status " << status << std::endl;
    }
  }
  endpoint.close(*opened);
  return 0;
}

}  // namespace
}  // namespace luna::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return luna::test::run(argc, argv);
}
