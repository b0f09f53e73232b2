// What the server is told at start: where to listen and what one client may take.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace luna::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: any free port
  std::uint32_t n_io_threads = 1;
  std::uint32_t n_connections_max = 1024;
  std::uint32_t n_requests_max = 256;  ///< completions running and waiting; beyond it: 429
  std::uint64_t header_bytes_max = std::uint64_t{16} * 1024;
  std::uint64_t body_bytes_max = std::uint64_t{8} * 1024 * 1024;
  std::chrono::milliseconds header_timeout{10'000};  ///< first byte to the end of the head
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{75'000};   ///< between two requests
  std::chrono::milliseconds write_timeout{30'000};  ///< a client that does not read is dropped
  /// Origins that browsers may ask from; "*": all; empty: none.
  std::vector<std::string> cors_origins;
};

}  // namespace luna::http
