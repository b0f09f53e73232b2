// Many event streams read by one thread, at the price of a read and a search each.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <vector>

namespace luna::bench {

struct ClientOptions {
  std::uint16_t port = 0;
  std::uint32_t n_streams = 0;
  std::uint64_t warm_up_us = 0;  ///< tokens of so long after the first are not counted
  std::uint64_t counted_us = 0;  ///< those of so long afterwards are; the rest is the streams' end
};

/// What the streams brought.
struct ClientReport {
  std::uint64_t n_tokens_all = 0;    ///< warm-up included
  std::uint64_t n_tokens = 0;        ///< counted ones
  std::uint64_t n_events = 0;        ///< counted ones: chunks with text
  std::uint64_t n_reads = 0;         ///< all
  std::uint64_t n_ended_well = 0;    ///< streams with a 200 and a [DONE]
  std::uint64_t n_out_of_order = 0;  ///< tokens older than the one before them
  double counted_s = 0;              ///< from the first counted token to the last
  std::uint32_t age_us_p50 = 0;
  std::uint32_t age_us_p99 = 0;
  std::uint32_t age_us_p999 = 0;
  std::uint32_t age_us_max = 0;
};

/// Opens every stream, reads all to their ends.
///
/// Errors  io (connecting, reading)
Result<ClientReport> read_streams(const ClientOptions& options);

}  // namespace luna::bench
