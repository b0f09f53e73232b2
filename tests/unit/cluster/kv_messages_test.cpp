// What is said of KV blocks is read back as it was written, and a copy of any size comes in pieces
// that are bounded and cover it once.
#include "core/cluster/kv_messages.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace luna::cluster {
namespace {

KvOrder some_order() {
  KvOrder order;
  order.number = 77;
  order.first_layer = 3;
  order.n_layers = 2;
  order.blocks = {9, 4, 11};
  return order;
}

TEST(ClusterKvMessages, AreReadBackAsTheyWereWritten) {
  Bytes order = encode_kv_order(some_order());
  order.insert(order.end(), {std::byte{1}, std::byte{2}});
  const auto read = parse_kv_order(order);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->number, 77U);
  EXPECT_EQ(read->first_layer, 3U);
  EXPECT_EQ(read->n_layers, 2U);
  EXPECT_EQ(read->blocks, some_order().blocks);
  EXPECT_EQ(read->bytes.size(), 2U);

  KvAnswer answer;
  answer.number = 78;
  answer.result = Error{Code::io, "no such page"};
  const auto failed = parse_kv_answer(encode_kv_answer(answer));
  ASSERT_TRUE(failed) << failed.error().message();
  EXPECT_EQ(failed->number, 78U);
  EXPECT_EQ(failed->result.error(), answer.result.error());
}

TEST(ClusterKvMessages, WhatIsCutOffOrSenselessIsRefused) {
  const Bytes order = encode_kv_order(some_order());
  for (std::size_t n = 0; n < order.size(); ++n)
    EXPECT_FALSE(parse_kv_order(std::span(order).first(n))) << n;
  const Bytes fine = encode_kv_answer({});
  for (std::size_t n = 0; n < fine.size(); ++n)
    EXPECT_FALSE(parse_kv_answer(std::span(fine).first(n))) << n;
  KvOrder nothing = some_order();
  nothing.blocks.clear();
  EXPECT_FALSE(parse_kv_order(encode_kv_order(nothing)));
  KvOrder flat = some_order();
  flat.n_layers = 0;
  EXPECT_FALSE(parse_kv_order(encode_kv_order(flat)));
  KvOrder many = some_order();
  many.blocks.resize(kKvPieceBlocksMax + 1);
  EXPECT_FALSE(parse_kv_order(encode_kv_order(many)));
  KvAnswer error;
  error.result = Error{Code::io, "broken"};
  Bytes with_bytes = encode_kv_answer(error);
  with_bytes.push_back(std::byte{0});
  EXPECT_FALSE(parse_kv_answer(with_bytes)) << "blocks beside an error";
}

void expect_covered(std::uint32_t n_blocks, std::uint32_t n_layers, std::uint64_t layer_bytes) {
  SCOPED_TRACE(std::to_string(n_blocks) + " x " + std::to_string(n_layers) + " x " +
               std::to_string(layer_bytes));
  std::vector<std::uint32_t> n_copied(std::size_t{n_blocks} * n_layers);
  std::uint64_t offset = 0;
  KvPieces pieces(n_blocks, n_layers, layer_bytes);
  while (const auto piece = pieces.next()) {
    ASSERT_LE(piece->first_block + piece->n_blocks, n_blocks);
    ASSERT_LE(piece->first_layer + piece->n_layers, n_layers);
    EXPECT_EQ(piece->offset, offset);
    EXPECT_EQ(piece->offset,
              (std::uint64_t{piece->first_block} * n_layers + piece->first_layer) * layer_bytes);
    EXPECT_EQ(piece->n_bytes, std::uint64_t{piece->n_blocks} * piece->n_layers * layer_bytes);
    EXPECT_TRUE(piece->n_layers == n_layers || piece->n_blocks == 1) << "it lies in one piece";
    if (piece->n_blocks * piece->n_layers > 1) {
      EXPECT_LE(piece->n_bytes, kKvPieceBytes);
    }
    EXPECT_LE(piece->n_blocks, kKvPieceBlocksMax);
    offset += piece->n_bytes;
    for (std::uint32_t b = 0; b < piece->n_blocks; ++b)
      for (std::uint32_t l = 0; l < piece->n_layers; ++l)
        ++n_copied[std::size_t{piece->first_block + b} * n_layers + piece->first_layer + l];
  }
  for (const std::uint32_t n : n_copied)
    EXPECT_EQ(n, 1U);
}

TEST(ClusterKvPieces, CoverACopyOnceInBoundedPieces) {
  for (const std::uint32_t n_blocks : {0U, 1U, 2U, 7U, 65U})
    for (const std::uint32_t n_layers : {1U, 2U, 5U, 30U})
      for (const std::uint64_t layer_bytes : {std::uint64_t{1},
                                              std::uint64_t{24576},
                                              kKvPieceBytes / 30,
                                              kKvPieceBytes / 2 + 1,
                                              kKvPieceBytes,
                                              kKvPieceBytes + 1})
        expect_covered(n_blocks, n_layers, layer_bytes);
  expect_covered(3 * kKvPieceBlocksMax + 1, 1, 1);
}

}  // namespace
}  // namespace luna::cluster
