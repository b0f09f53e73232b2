// Programs of many shapes pass verify(); their order and numbers are those of the paper and the
// arithmetic contract.
#include "core/model/program_builder.hpp"

#include "core/model/architecture.hpp"
#include "core/model/tensor_program.hpp"
#include "core/model/weight_names.hpp"
#include "kernels/cpu/arithmetic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::model {
namespace {

ModelConfig make_config(std::uint32_t n_heads, std::uint32_t n_kv_heads, std::uint32_t head_dim) {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = n_heads * head_dim;
  config.n_layers = 3;
  config.n_heads = n_heads;
  config.n_kv_heads = n_kv_heads;
  config.head_dim = head_dim;
  config.ffn_size = 2 * config.hidden_size;
  config.vocab_size = 300;
  config.context_length = 1000;
  config.norm_eps = 1e-5F;
  config.attention_scale = 0.125F;
  config.rope.n_rot = head_dim;
  config.rope.frequencies.assign(head_dim / 2, 0.5);
  return config;
}

luna_weight_desc make_desc(std::uint64_t n_rows, std::uint64_t n_cols, std::uint32_t bits) {
  luna_weight_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.klass = LUNA_WEIGHT_AFFINE;
  desc.bits = bits;
  desc.group = 32;
  desc.n_rows = n_rows;
  desc.n_cols = n_cols;
  return desc;
}

std::vector<ShardWeight> make_weights(const ModelConfig& config, const ShardSpec& shard) {
  std::vector<ShardWeight> weights;
  for (const auto& [name, rows] : shard_weight_parts(config, shard)) {
    WeightShape shape{config.vocab_size, config.hidden_size};
    if (name == kOutputNormName) shape = {1, config.hidden_size};
    for (const LayerWeight weight : architecture_of(config).layer_weights) {
      for (std::uint32_t layer = 0; layer < config.n_layers; ++layer)
        if (name == layer_weight_name(layer, weight)) shape = layer_weight_shape(config, weight);
    }
    const ShardWeight whole{
        .name = name, .desc = make_desc(shape.n_rows, shape.n_cols, 4), .file_bytes = 1000};
    weights.push_back(rows ? take_rows(whole, *rows) : whole);
  }
  return weights;
}

ProgramOptions make_options() {
  ProgramOptions options;
  options.limits = {.n_rows_max = 64, .n_seqs_max = 8, .n_out_rows_max = 8, .n_positions_max = 999};
  return options;
}

TEST(ProgramBuilder, ProgramsOfManyShapesPassVerify) {
  for (const auto& [n_heads, n_kv_heads, head_dim] :
       std::vector<std::array<std::uint32_t, 3>>{{1, 1, 32}, {9, 3, 64}, {4, 4, 128}, {8, 1, 96}}) {
    for (const bool tied : {true, false}) {
      ModelConfig config = make_config(n_heads, n_kv_heads, head_dim);
      config.tied_head = tied;
      for (std::uint32_t n_devices = 1; n_devices <= 3; ++n_devices) {
        std::vector<LayerRange> ranges;
        for (std::uint32_t d = 0; d < n_devices; ++d)
          ranges.push_back({d, d + 1 == n_devices ? config.n_layers - d : 1});
        for (const ShardSpec& shard : make_shards(ranges)) {
          const auto weights = make_weights(config, shard);
          const auto program = build_program(config, shard, weights, make_options());
          ASSERT_TRUE(program) << program.error().message();
          EXPECT_TRUE(verify(program->abi()));
          EXPECT_EQ(program->abi().kv.n_layers, shard.layers.count);
          EXPECT_EQ(program->abi().n_blocks_per_seq_max, 32u);  // ceil(999 / 32)
          EXPECT_EQ(program->bound_slot(LUNA_SLOT_COMM).has_value(), n_devices > 1);
          EXPECT_EQ(program->bound_slot(LUNA_SLOT_LOGITS).has_value(), shard.has_head);
        }
      }
    }
  }
}

TEST(ProgramBuilder, ProgramsOfEveryFamilyPassVerifyWholeAndInParts) {
  for (const Architecture* family : architectures()) {
    SCOPED_TRACE(family->name);
    ModelConfig config = make_config(4, 2, 32);
    config.architecture = family->name;
    config.local_rope = config.rope;
    config.window = {.n_tokens = 40, .period = 2};
    config.attention_softcap = 5.0F;
    config.logit_softcap = 4.0F;
    config.embedding_scale = 2.0F;
    config.experts = {.n = 4, .n_used = 2, .ffn_size = 64};
    const auto check = [&](const ShardSpec& shard) {
      const auto weights = make_weights(config, shard);
      const auto program = build_program(config, shard, weights, make_options());
      ASSERT_TRUE(program) << program.error().message();
      EXPECT_TRUE(verify(program->abi()));
    };
    for (const ShardSpec& shard : make_shards(std::vector<LayerRange>{{0, 1}, {1, 2}}))
      check(shard);
    const auto parts = make_tensor_shards(config, 2);
    EXPECT_EQ(parts.has_value(), !family->why_no_tensor_split.has_value());
    if (!parts) {
      EXPECT_THAT(parts.error().message(), ::testing::HasSubstr(config.architecture));
      continue;
    }
    for (const ShardSpec& shard : *parts)
      check(shard);
  }
}

TEST(ProgramBuilder, WindowsAreThoseOfTheModelsLayersWhereverTheyRun) {
  ModelConfig config = make_config(4, 2, 32);
  config.window = {.n_tokens = 40, .period = 3};
  const auto shard = make_shards(std::vector<LayerRange>{{0, 1}, {1, 2}})[1];
  const auto program = build_program(config, shard, make_weights(config, shard), make_options());
  ASSERT_TRUE(program) << program.error().message();
  std::vector<std::uint32_t> windows;
  const luna_program abi = program->abi();
  for (std::uint32_t i = 0; i < abi.n_ops; ++i)
    if (abi.ops[i].op == LUNA_OP_ATTEND)
      windows.push_back(OpReader(abi, abi.ops[i]).attr(LUNA_ATTEND_WINDOW));
  EXPECT_EQ(windows, (std::vector<std::uint32_t>{40, 0}));  // of layers 1 and 2
}

TEST(ProgramBuilder, KvBehindAWindowIsNotPruned) {
  ModelConfig config = make_config(4, 2, 32);
  config.window = {.n_tokens = 40, .period = 0};
  ProgramOptions options = make_options();
  options.prunes = true;
  const auto shard = make_shards(std::vector<LayerRange>{{0, 3}})[0];
  const auto program = build_program(config, shard, make_weights(config, shard), options);
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code(), Code::unsupported);
  EXPECT_THAT(program.error().message(), ::testing::HasSubstr("sliding window"));
}

TEST(TensorProgram, ProgramsOfManyShapesPassVerify) {
  for (const auto& [n_heads, n_kv_heads, head_dim] :
       std::vector<std::array<std::uint32_t, 3>>{{9, 3, 64}, {4, 4, 128}, {8, 8, 96}}) {
    for (const bool tied : {true, false}) {
      ModelConfig config = make_config(n_heads, n_kv_heads, head_dim);
      config.tied_head = tied;
      for (std::uint32_t n_ranks = 2; n_ranks <= 3; ++n_ranks) {
        const auto shards = make_tensor_shards(config, n_ranks);
        ASSERT_TRUE(shards) << shards.error().message();
        std::uint32_t n_kv_heads_seen = 0;
        for (const ShardSpec& shard : *shards) {
          const auto weights = make_weights(config, shard);
          const auto program = build_program(config, shard, weights, make_options());
          ASSERT_TRUE(program) << program.error().message();
          EXPECT_TRUE(verify(program->abi()));
          EXPECT_EQ(program->abi().kv.n_layers, config.n_layers);
          n_kv_heads_seen += program->abi().kv.n_kv_heads;
          EXPECT_EQ(program->bound_slot(LUNA_SLOT_LOGITS).has_value(),
                    shard.tensor_rank + 1 == n_ranks);
        }
        EXPECT_EQ(n_kv_heads_seen, n_kv_heads);
      }
    }
  }
}

TEST(TensorProgram, EachRowOfALayerLiesOnOneDeviceAndSegmentsAreThoseOfTheWhole) {
  ModelConfig config = make_config(9, 3, 64);
  config.tied_head = true;
  const auto shards = make_tensor_shards(config, 2);
  ASSERT_TRUE(shards);
  const ShardSpec alone = make_shards(std::vector<LayerRange>{{0, config.n_layers}})[0];
  for (const ShardWeight& whole : make_weights(config, alone)) {
    if (whole.desc.n_rows == 1 || whole.name == kEmbeddingName) continue;
    std::uint64_t next = 0;
    for (const ShardSpec& shard : *shards) {
      const auto weights = make_weights(config, shard);
      const auto part = std::ranges::find(weights, whole.name, &ShardWeight::name);
      ASSERT_NE(part, weights.end());
      EXPECT_EQ(part->first_row, next) << whole.name;
      EXPECT_EQ(part->n_rows_total(), whole.desc.n_rows);
      next += part->desc.n_rows;
    }
    EXPECT_EQ(next, whole.desc.n_rows) << whole.name;
  }
}

TEST(TensorProgram, MoreDevicesThanKvHeadsAreRefusedWithTheNumbers) {
  const ModelConfig config = make_config(9, 3, 64);
  const auto shards = make_tensor_shards(config, 4);
  ASSERT_FALSE(shards);
  EXPECT_EQ(shards.error().code(), Code::unsupported);
  EXPECT_THAT(shards.error().message(), ::testing::HasSubstr("over 4 devices"));
  EXPECT_THAT(shards.error().message(), ::testing::HasSubstr("the model has 3"));
}

TEST(ColumnShare, SharesFollowEachOtherAndDifferByAUnitAtMost) {
  for (std::uint32_t n_columns = 1; n_columns < 200; n_columns += 7) {
    for (const std::uint32_t unit : {1U, 3U, 32U}) {
      for (std::uint32_t n_ranks = 1; n_ranks <= 5; ++n_ranks) {
        std::uint32_t next = 0;
        std::uint32_t last_count = ~0U;
        for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
          const ColumnShare share = column_share(n_columns, unit, rank, n_ranks);
          EXPECT_EQ(share.first, next);
          EXPECT_LE(share.count, last_count) << "the first are never smaller";
          if (rank > 0) {
            EXPECT_LE(last_count, share.count + 2 * unit - 1);
          }
          last_count = share.count;
          next = share.end();
        }
        EXPECT_EQ(next, n_columns);
      }
    }
  }
}

TEST(ProgramBuilder, ALayerIsInThePapersOrder) {
  ModelConfig config = make_config(2, 1, 32);
  config.n_layers = 1;
  config.tied_head = true;
  const ShardSpec shard = make_shards(std::vector<LayerRange>{{0, 1}})[0];
  const auto weights = make_weights(config, shard);
  const auto program = build_program(config, shard, weights, make_options());
  ASSERT_TRUE(program);
  std::vector<std::string> ops;
  const luna_program abi = program->abi();
  for (std::uint32_t i = 0; i < abi.n_ops; ++i)
    ops.emplace_back(op_name(abi.ops[i].op));
  EXPECT_THAT(ops,
              ::testing::ElementsAre("kv_copy",
                                     "embed",  //
                                     "rms_norm",
                                     "linear",
                                     "linear",
                                     "linear",  //
                                     "rope",
                                     "rope",
                                     "kv_write",
                                     "attend",  //
                                     "linear",
                                     "add",  //
                                     "rms_norm",
                                     "linear",
                                     "linear",
                                     "act_mul",  //
                                     "linear",
                                     "add",  //
                                     "gather_rows",
                                     "rms_norm",
                                     "linear",
                                     "logits",  //
                                     "top_candidates"));
}

TEST(ProgramBuilder, ATiedHeadIsOneWeightOnOneDeviceAndACopyOnTwo) {
  ModelConfig config = make_config(2, 1, 32);
  config.tied_head = true;
  const auto count = [&](const ShardSpec& shard) {
    const auto names = shard_weight_names(config, shard);
    return std::ranges::count(names, std::string(kEmbeddingName));
  };
  EXPECT_EQ(count(make_shards(std::vector<LayerRange>{{0, 3}})[0]), 1);
  const auto two = make_shards(std::vector<LayerRange>{{0, 1}, {1, 2}});
  EXPECT_EQ(count(two[0]), 1);
  EXPECT_EQ(count(two[1]), 1);
}

TEST(ProgramBuilder, RefusesBlocksThatAreNoPowerOfTwo) {
  const ModelConfig config = make_config(2, 1, 32);
  const ShardSpec shard = make_shards(std::vector<LayerRange>{{0, 3}})[0];
  const auto weights = make_weights(config, shard);
  for (const std::uint32_t tokens : {0u, 16u, 48u, 512u}) {
    ProgramOptions options = make_options();
    options.kv_block_tokens = tokens;
    EXPECT_FALSE(build_program(config, shard, weights, options)) << tokens;
  }
}

TEST(ProgramBuilder, LinearNumbersAreThoseOfTheKernels) {
  for (const std::uint64_t n_rows : {32u, 64u, 192u, 576u, 1536u, 4096u, 49152u, 151936u}) {
    for (const std::uint64_t n_cols : {64u, 256u, 576u, 1536u, 4096u, 14336u}) {
      for (const auto& [bits, group, super] :
           std::vector<std::array<std::uint32_t, 3>>{{4, 32, 0},
                                                     {5, 32, 0},
                                                     {8, 32, 0},
                                                     {4, 128, 0},
                                                     {2, 16, 256},
                                                     {5, 32, 256},
                                                     {6, 16, 256}}) {
        luna_weight_desc desc = make_desc(n_rows, n_cols, bits);
        desc.group = group;
        desc.super = super;
        const LinearNumerics numerics = linear_numerics(desc, n_rows);
        const auto rows = static_cast<std::int64_t>(n_rows);
        const auto cols = static_cast<std::int64_t>(n_cols);
        EXPECT_EQ(numerics.segment, kernels::segment_length(rows, cols, group, super));
        EXPECT_EQ(numerics.activation_bits,
                  static_cast<std::uint32_t>(kernels::activation_bits(static_cast<int>(bits))));
        EXPECT_EQ(numerics.activation_group, kernels::activation_group(group, super));
      }
    }
  }
}

}  // namespace
}  // namespace luna::model
