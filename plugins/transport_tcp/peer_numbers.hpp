// Peers as callers name them.
#pragma once

#include "endpoint.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace luna::tcp {

/// Gives each endpoint that is reached a number, which is not used again. Looks at what the I/O
/// thread publishes, so nothing here waits. [any]
class PeerNumbers {
 public:
  explicit PeerNumbers(Endpoint& endpoint) : endpoint_(endpoint) {}

  /// LUNA_AGAIN while the peer is not there; then LUNA_OK and its number.
  /// Errors   unavailable: it is over; unsupported, invalid_argument: it speaks another version, or
  ///          has another token
  luna_status connect(const Address& address, std::uint32_t& number, luna_err* err);
  /// The endpoint of a number; 0: it is over or dropped. Errors: invalid_argument: no such number
  [[nodiscard]] Result<std::uint64_t> endpoint_of(std::uint32_t number) const;
  /// Takes a number away. Returns its endpoint; 0: there is none.
  std::uint64_t drop(std::uint32_t number);
  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t number, std::uint64_t n_bytes) const;

  // Of loopback and good networks alike, before anything is measured; for planning only.
  static constexpr std::uint64_t kLatencyNs = 30'000;
  static constexpr double kBytesPerNs = 1.0;

 private:
  static constexpr double kBytesPerNsMin = 1e-6;  // 1 kB/s: a link below that is as good as none

  struct Numbered {
    std::uint64_t endpoint = 0;  // 0: dropped
    std::shared_ptr<PeerStatus> status;
  };

  Endpoint& endpoint_;
  mutable std::mutex mutex_;
  std::vector<Numbered> numbers_;  // guarded by the mutex
};

}  // namespace luna::tcp
