// What an endpoint is told by its settings.
#pragma once

#include <luna/plugin.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace luna::tcp {

struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

/// A value, checked as far as it can be without opening anything.
struct Options {
  std::string host;
  std::uint16_t port = 0;
  std::string advertised_host;        ///< never empty
  std::uint16_t advertised_port = 0;  ///< 0: the one it listens on
  std::string token_file;             ///< empty: none
  TlsFiles tls;                       ///< all empty: no TLS
  std::uint64_t message_bytes_max = 0;
  std::chrono::milliseconds heartbeat_interval{};
  std::chrono::milliseconds heartbeat_timeout{};
  std::chrono::milliseconds peer_timeout{};
  std::chrono::milliseconds refused_timeout{};

  [[nodiscard]] bool has_tls() const { return !tls.certificate.empty(); }

  /// Errors   invalid_argument: settings that contradict each other, or an address that others
  ///          reach without a token or TLS
  static Result<Options> from(const Settings& settings);
};

}  // namespace luna::tcp
