// KV blocks of a shard in another process, copied in and out over its connection.
#pragma once

#include "core/cluster/kv_messages.hpp"
#include "core/cluster/link.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

namespace luna::cluster {

/// A copy goes in messages of bounded size, a few on their way at a time, and returns when none is:
/// from then on nobody writes where it wrote. It ends early when the worker is lost; one that does
/// not answer is. Owned by RemoteShard. Copies one after the other, whoever calls. [any]
class RemoteKv {
 public:
  /// link  outlives it
  explicit RemoteKv(Link& link) : link_(link) {}

  /// The shard is known from now on. [start-up]
  ///
  /// block_bytes  a layer of a block takes at most kKvLayerBytesMax
  void open(std::uint64_t shard_id, const luna_kv_layout& layout, std::uint64_t block_bytes);

  /// As luna_kv_blocks_if has them.
  /// Errors  what the worker answers; unavailable: it is lost
  Result<void> copy_out(const luna_kv_part& part, std::byte* bytes);
  Result<void> copy_in(const luna_kv_part& part, const std::byte* bytes);

  // ---- by the shard, on the I/O thread
  /// Errors  corrupt: an answer to nothing, or of another length than was asked for
  Result<void> take(const Frame& frame);
  void lose(const Error& why);

 private:
  /// One of the two directions, with the memory outside.
  struct Call {
    const luna_kv_part& part;
    FrameType asks;
    FrameType answers;
    std::span<std::byte> into;        // of a copy out
    std::span<const std::byte> from;  // of a copy in
  };
  /// A message without its answer.
  struct Flight {
    std::uint64_t number = 0;
    std::span<std::byte> into;
  };

  Result<void> run(const Call& call);
  void send(const Call& call, const KvPiece& piece, std::uint64_t number);
  [[nodiscard]] std::optional<Flight>* find_flight(std::uint64_t number);

  Link& link_;
  std::uint64_t shard_id_ = 0;
  std::uint64_t layer_bytes_ = 0;

  std::mutex turn_mutex_;  // held by the copy that runs
  std::mutex mutex_;       // guards what follows; never held while somebody is called
  std::condition_variable answered_;
  std::array<std::optional<Flight>, kKvPiecesMax> flights_;
  FrameType awaited_ = FrameType::kv_given;
  std::uint64_t next_number_ = 1;
  std::uint64_t n_answers_ = 0;
  std::optional<Error> failed_;  // the first answer of the copy that was one
  std::optional<Error> lost_;
};

}  // namespace luna::cluster
