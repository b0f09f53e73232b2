// How a connection between a controller and a worker is cut into messages.
//
// A connection carries frames: kFrameHeadBytes of head, then n_bytes of payload. Little-endian:
//
//   offset  0  4  magic "LCTL"        8  8  subject: which shard, 0 where there is none
//           4  2  protocol version   16  4  n_bytes
//           6  2  type               20  4  0
//
// Between sides that share a token, each frame after the greeting ends with a tag of 16 bytes over
// head and payload, which n_bytes leaves out: see FrameSeal.
#pragma once

#include "core/cluster/frame_seal.hpp"
#include "core/cluster/wire.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace luna::cluster {

inline constexpr std::uint16_t kProtocolVersion = 5;
inline constexpr std::size_t kFrameHeadBytes = 24;
/// Before the other side has proved that it knows the token.
inline constexpr std::uint32_t kGreetingBytesMax = 4096;
/// Afterwards: the largest step, or a row of logits of four million tokens.
inline constexpr std::uint32_t kPayloadBytesMax = 16U << 20U;

enum class FrameType : std::uint16_t {
  // Before a connection is trusted, in this order.
  hello = 1,  // worker: who I am, nonce
  challenge,  // controller: nonce
  proof,      // worker knows the token
  accept,     // controller knows the token; how often to ping
  refuse,     // controller: why not; then it closes
  // Membership.
  join,     // worker: what it has
  welcome,  // controller: it is one of us
  ping,     // either: I live
  leave,    // worker: it ends, in an orderly way
  drain,    // worker: it wants to end, once nothing lies on its devices
  dismiss,  // controller: nothing does any more; it ends
  stay,     // controller: nobody can take over what lies on them; why
  memory,   // worker: what its process takes
  relieve,  // controller: give back to the system what nobody uses
  // About a shard, the subject.
  survey,  // controller: which layers of a model do you have, what would they take?
  plan,    // controller: make it so; what does it take?
  pack,    // controller: load the weights
  bind,    // controller: connect, allocate
  answer,  // worker: to one of the four, or to slices_open
  unload,  // controller: forget it
  abort,   // controller: end every wait for other devices
  step,    // controller: run this
  output,  // worker: a row of logits or candidates
  done,    // worker: the step has ended, after its outputs
  // KV blocks of a shard on their way to another place: see kv_messages.
  kv_export,  // controller: give these
  kv_import,  // controller: take these
  kv_given,   // worker: here they are, or why not
  kv_taken,   // worker: they lie there, or why not
  // Slices between a shard, the subject, and that of another copy.
  slices_open,   // controller: attend for it, you may ask it
  slices_abort,  // controller: end every wait for it
  slices_close,  // controller: forget it
};
inline constexpr FrameType kFrameTypeLast = FrameType::slices_close;

std::string_view name_of(FrameType type);
/// Whether frames of the type may come before a connection is trusted.
bool is_greeting(FrameType type);

/// A frame as it was read. The payload lies in the reader.
struct Frame {
  FrameType type = FrameType::ping;
  std::uint64_t subject = 0;
  std::span<const std::byte> payload;
};

using FrameHead = std::array<std::byte, kFrameHeadBytes>;
FrameHead encode_head(FrameType type, std::uint64_t subject, std::size_t n_bytes);

/// Cuts the bytes of a connection into frames. Memory follows what has come, never what a head
/// promises. A resource of its connection. [io]
class FrameReader {
 public:
  /// From now on any type is read, and payloads up to kPayloadBytesMax; with a seal, none whose tag
  /// is not the one that is due.
  void trust(std::optional<FrameSeal> seal = std::nullopt) {
    is_trusted_ = true;
    seal_ = std::move(seal);
  }

  /// Where the next bytes go; never empty. Payloads given before are gone.
  std::span<std::byte> room();
  /// So many bytes were put there.
  void add(std::size_t n);
  /// The next whole frame, or none yet.
  /// Errors  corrupt: no frame of ours, too long, or one with a wrong tag; unsupported: another
  ///         protocol version
  Result<std::optional<Frame>> next();

 private:
  Result<void> check_tag(std::string_view type, std::size_t n_bytes);

  Bytes buffer_;
  std::size_t begin_ = 0;  // of what was not given yet
  std::size_t end_ = 0;
  bool is_trusted_ = false;
  std::optional<FrameSeal> seal_;
};

}  // namespace luna::cluster
