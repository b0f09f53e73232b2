// The head of a frame: what it is, how long, and for which connection. Pure, and the only parser of
// what other hosts send beside handshake.hpp and address.hpp.
//
// A connection carries frames: kHeaderBytes of head, then n_bytes of payload. All numbers are
// little-endian:
//
//   offset  0  4  magic "LTCP"          24  8  sequence        56  4  lane
//           4  2  protocol version      32  8  ack             60  4  tag
//           6  2  type                  40  8  n_bytes         64  4  flags
//           8  8  epoch                 48  8  argument        68  4  CRC-32C of bytes 0..67
//          16  8  value
#pragma once

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace luna::tcp {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kHeaderBytes = 72;
/// A hello is the longest: three numbers, a nonce and an address.
inline constexpr std::uint64_t kHandshakeBytesMax = 512;
/// Of a bandwidth probe: larger than what a socket's buffers hide, sent in about 1 ms at 10 Gbit/s.
inline constexpr std::uint64_t kProbeBytes = std::uint64_t{1} << 20U;

enum class FrameType : std::uint16_t {
  // Before a connection is trusted.
  hello = 1,  // dialer: who, to whom, nonce
  challenge,  // acceptor: nonce
  proof,      // dialer knows the token
  accept,     // acceptor knows the token; argument: last sequence it took
  refuse,     // argument: a Refusal
  // Without a number: may be lost with a connection.
  ping,   // argument: the sender's time
  pong,   // argument as in the ping or probe; value: payload bytes of the probe
  probe,  // argument as in a ping; payload means nothing
  ack,
  // Numbered: arrive once, in order, over any number of connections of one epoch.
  ready,     // argument: id of a receive; tag; value: its room in bytes
  withdraw,  // argument: id of a receive that is not wanted any more
  data,      // argument: id of the receive; payload
  failed,    // argument: id of the receive; value: status of the send that it met
  taken,     // argument: id of the receive; value: status with which it ended
  join,      // argument: group; lane: rank; value: opening; payload: GroupShape
  leave,     // argument: group; lane: rank; value: opening
  abort,     // argument: group; lane: rank; value: opening
  message,   // argument: group; lane: from and to; tag; value: opening of the sender; payload
  credit,    // argument: group; lane, tag, value as in the message that was consumed
  nothing,   // stands for a frame that was taken back
  bye,       // the endpoint closes
};

enum class Refusal : std::uint64_t {
  version = 1,
  token,      // or no token
  endpoint,   // another endpoint lives here
  duplicate,  // the two endpoints have a connection, or this one is dialing
  lost,       // the epoch is unknown: it was given up here
  full,       // too many peers
};

/// Of n_ranks (4 bytes) and message_bytes_max (8 bytes).
inline constexpr std::uint64_t kGroupShapeBytes = 12;

inline constexpr std::uint32_t kFlagAckNow = 1;  ///< acknowledge at once
inline constexpr std::uint32_t kFlagReduce = 2;  ///< message, credit: of an all-reduce
inline constexpr std::uint32_t kFlagsAll = kFlagAckNow | kFlagReduce;

struct Header {
  FrameType type = FrameType::nothing;
  std::uint64_t epoch = 0;
  std::uint64_t value = 0;
  std::uint64_t sequence = 0;  ///< 1 upward; 0: not numbered
  std::uint64_t ack = 0;       ///< all up to this were taken
  std::uint64_t n_bytes = 0;   ///< payload
  std::uint64_t argument = 0;
  std::uint32_t lane = 0;
  std::uint32_t tag = 0;
  std::uint32_t flags = 0;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

std::string_view name_of(FrameType type);
/// Whether frames of the type carry a sequence number.
bool is_numbered(FrameType type);
/// Whether frames of the type come before a connection is trusted.
bool is_handshake(FrameType type);

HeaderBytes encode_header(const Header& header);
/// Puts the checksum of the other bytes in.
void seal_header(HeaderBytes& bytes);

/// Checks everything that can be seen without state. [any]
///
/// message_bytes_max  of data and messages
/// Errors   unsupported: another protocol version; corrupt: what is wrong and the value
Result<Header> parse_header(std::span<const std::byte, kHeaderBytes> bytes,
                            std::uint64_t message_bytes_max);

}  // namespace luna::tcp
