#include "core/cluster/kv_messages.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::cluster {

Bytes encode_kv_order(const KvOrder& order) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(order.number);
  writer.number(order.first_layer);
  writer.number(order.n_layers);
  writer.number(static_cast<std::uint32_t>(order.blocks.size()));
  writer.array(order.blocks.data(), order.blocks.size());
  return bytes;
}

Result<KvOrder> parse_kv_order(std::span<const std::byte> payload) {
  WireReader reader(payload);
  KvOrder order;
  order.number = reader.number<std::uint64_t>();
  order.first_layer = reader.number<std::uint32_t>();
  order.n_layers = reader.number<std::uint32_t>();
  const std::uint32_t n_blocks = reader.count(kKvPieceBlocksMax);
  reader.array(order.blocks, n_blocks);
  if (n_blocks == 0 || order.n_layers == 0) reader.fail("nothing to copy");
  order.bytes = reader.rest();
  if (const auto whole = reader.finish(); !whole) return whole.error().in("KV copy");
  return order;
}

Bytes encode_kv_answer(const KvAnswer& answer) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(answer.number);
  writer.result(answer.result);
  return bytes;
}

Result<KvAnswer> parse_kv_answer(std::span<const std::byte> payload) {
  WireReader reader(payload);
  KvAnswer answer;
  answer.number = reader.number<std::uint64_t>();
  answer.result = reader.result();
  answer.bytes = reader.rest();
  if (!answer.result && !answer.bytes.empty()) reader.fail("blocks beside an error");
  if (const auto whole = reader.finish(); !whole) return whole.error().in("KV answer");
  return answer;
}

std::optional<KvPiece> KvPieces::next() {
  LUNA_ASSERT(layer_bytes_ > 0);
  if (block_ == n_blocks_) return std::nullopt;
  const std::uint64_t block_bytes = n_layers_ * layer_bytes_;
  KvPiece piece{.first_block = block_, .first_layer = layer_, .offset = offset_};
  if (block_bytes <= kKvPieceBytes) {
    const std::uint64_t n_max =
        std::min<std::uint64_t>(kKvPieceBytes / block_bytes, kKvPieceBlocksMax);
    piece.n_blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(n_max, n_blocks_ - block_));
    piece.n_layers = n_layers_;
  } else {
    const std::uint64_t n_max = std::max<std::uint64_t>(1, kKvPieceBytes / layer_bytes_);
    piece.n_blocks = 1;
    piece.n_layers = static_cast<std::uint32_t>(std::min<std::uint64_t>(n_max, n_layers_ - layer_));
  }
  piece.n_bytes = piece.n_blocks * piece.n_layers * layer_bytes_;
  offset_ += piece.n_bytes;
  layer_ += piece.n_layers;
  if (layer_ == n_layers_) {
    layer_ = 0;
    block_ += piece.n_blocks;
  }
  return piece;
}

}  // namespace luna::cluster
