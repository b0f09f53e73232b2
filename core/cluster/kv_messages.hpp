// How KV blocks leave a shard of a worker and come into it: what is asked, what is answered, and
// how a copy of any size is cut into messages. Pure.
#pragma once

#include "core/cluster/frame.hpp"
#include "core/cluster/wire.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace luna::cluster {

/// KV in one message, but for a single layer of a single block that is longer. Steps share the
/// connection with it: one that is sent behind a full window of such messages waits for 1 MiB.
inline constexpr std::uint64_t kKvPieceBytes = std::uint64_t{256} << 10U;
/// Messages of one shard on their way at a time: while one is copied, others are on the wire.
inline constexpr std::uint32_t kKvPiecesMax = 4;
/// The longest layer of a block that can be copied: it goes in one message with its head.
inline constexpr std::uint64_t kKvLayerBytesMax = kPayloadBytesMax / 2;
inline constexpr std::uint32_t kKvPieceBlocksMax = 4096;

/// kv_export, kv_import: layers of some blocks of a shard, the subject.
struct KvOrder {
  std::uint64_t number = 0;       ///< comes back in the answer
  std::uint32_t first_layer = 0;  ///< of the shard
  std::uint32_t n_layers = 0;
  std::vector<std::uint32_t> blocks;
  /// Of an import: what goes there, as a luna_kv_part has it outside. It lies in the payload.
  std::span<const std::byte> bytes;
};
/// Without its bytes, which are sent behind it.
Bytes encode_kv_order(const KvOrder& order);
/// Errors  corrupt
Result<KvOrder> parse_kv_order(std::span<const std::byte> payload);

/// kv_given, kv_taken
struct KvAnswer {
  std::uint64_t number = 0;
  Result<void> result;
  std::span<const std::byte> bytes;  ///< of an export that went well; they lie in the payload
};
/// Without its bytes, which are sent behind it.
Bytes encode_kv_answer(const KvAnswer& answer);
/// Errors  corrupt
Result<KvAnswer> parse_kv_answer(std::span<const std::byte> payload);

/// What of a copy goes in one message: whole blocks, or some layers of one. Outside, its bytes lie
/// in one piece.
struct KvPiece {
  std::uint32_t first_block = 0;  ///< index among the blocks of the copy
  std::uint32_t n_blocks = 0;
  std::uint32_t first_layer = 0;  ///< index among the layers of the copy
  std::uint32_t n_layers = 0;
  std::uint64_t offset = 0;  ///< in the memory outside
  std::uint64_t n_bytes = 0;
};

/// Cuts a copy into its pieces, in the order of their bytes.
class KvPieces {
 public:
  /// layer_bytes  of one layer of one block, at least 1
  KvPieces(std::uint32_t n_blocks, std::uint32_t n_layers, std::uint64_t layer_bytes)
      : n_blocks_(n_blocks), n_layers_(n_layers), layer_bytes_(layer_bytes) {}

  /// The next piece; none: those were all.
  std::optional<KvPiece> next();

 private:
  const std::uint32_t n_blocks_;
  const std::uint32_t n_layers_;
  const std::uint64_t layer_bytes_;
  std::uint32_t block_ = 0;
  std::uint32_t layer_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace luna::cluster
