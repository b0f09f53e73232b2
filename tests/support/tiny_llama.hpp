// A Llama-shaped program of any size with random weights, for backend tests.
#pragma once

#include "support/backend_fixture.hpp"

namespace luna::test {

struct LlamaShape {
  std::uint32_t vocab = 200;
  std::uint32_t hidden = 64;
  std::uint32_t n_layers = 2;
  std::uint32_t n_heads = 4;
  std::uint32_t n_kv_heads = 2;
  std::uint32_t head_dim = 32;
  std::uint32_t ffn = 96;
  std::uint32_t n_candidates = 5;
  std::uint32_t block_tokens = 32;
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;
  std::uint32_t prune_group_layers = 0;  // 0: no kv_prune
  std::uint32_t window = 0;
  float softcap = 0.0F;
  bool has_slices = false;
  std::uint32_t n_rows_max = 64;
  std::uint32_t n_positions_max = 600;
  std::uint32_t rope_style = LUNA_ROPE_INTERLEAVED;
  WeightKind layers;
  WeightKind head = {.bits = 8, .group = 32, .has_offset = false};
};

/// Where a program's part of the layers begins and ends, and its neighbours (pipeline stages).
struct LlamaPart {
  std::uint32_t first_layer = 0;
  std::uint32_t n_layers = 0;
  bool receives = false;  // from rank 0
  bool sends = false;     // to rank 1
};

class TinyLlama {
 public:
  TinyLlama(const LlamaShape& shape, std::uint64_t seed) : shape_(shape) {
    std::mt19937_64 rng(seed);
    const std::uint32_t q = shape.n_heads * shape.head_dim;
    const std::uint32_t kv = shape.n_kv_heads * shape.head_dim;
    const auto add = [&](std::uint32_t n, std::uint32_t k, const WeightKind& kind) {
      weights.push_back(random_weight(rng, n, k, kind));
    };
    add(shape.vocab, shape.hidden, shape.head);
    weights.push_back(random_vector(rng, shape.hidden));
    for (std::uint32_t i = 0; i < shape.n_layers; ++i) {
      weights.push_back(random_vector(rng, shape.hidden));
      add(q, shape.hidden, shape.layers);
      add(kv, shape.hidden, shape.layers);
      add(kv, shape.hidden, shape.layers);
      add(shape.hidden, q, shape.layers);
      weights.push_back(random_vector(rng, shape.hidden));
      add(shape.ffn, shape.hidden, shape.layers);
      add(shape.ffn, shape.hidden, shape.layers);
      add(shape.hidden, shape.ffn, shape.layers);
    }
    for (std::uint32_t p = 0; p < shape.head_dim / 2; ++p)
      frequencies_.push_back(std::pow(10000.0, -2.0 * p / shape.head_dim));
  }

  [[nodiscard]] Program program() const { return program({0, shape_.n_layers, false, false}); }
  [[nodiscard]] Program program(const LlamaPart& part) const {
    ProgramLimits limits;
    limits.n_rows_max = shape_.n_rows_max;
    limits.n_seqs_max = 8;
    limits.n_out_rows_max = shape_.n_rows_max;
    limits.n_positions_max = shape_.n_positions_max;
    limits.n_blocks_per_seq_max = table_stride();
    limits.kv = {part.n_layers,
                 shape_.n_kv_heads,
                 shape_.head_dim,
                 shape_.kv_dtype,
                 shape_.block_tokens,
                 shape_.prune_group_layers == 0 ? 0 : LUNA_KV_OBSERVED};
    ProgramBuilder b(limits);
    b.kv_copy();
    if (shape_.has_slices) b.allow_slices();
    const ViewId table = b.weight(0, shape_.vocab, shape_.hidden);
    const ViewId x = part.receives ? b.recv(shape_.hidden, 0, 7) : b.embed(table);
    const ViewId frequencies = b.constant(frequencies_);
    for (std::uint32_t i = 0; i < part.n_layers; ++i)
      add_layer(b, x, frequencies, 2 + 9 * (part.first_layer + i), i);
    if (part.sends) {
      b.send(x, 1, 7);
    } else {
      const ViewId norm = b.rms_norm(b.gather_rows(x), b.weight(1, shape_.hidden), 1e-5F);
      const ViewId logits = b.linear(norm, table, numerics(0, shape_.vocab));
      b.logits(logits);
      b.top_candidates(logits, shape_.n_candidates);
    }
    Result<Program> finished = std::move(b).finish();
    EXPECT_TRUE(finished) << finished.error().message();
    return std::move(finished).value();
  }
  [[nodiscard]] std::uint32_t table_stride() const {
    return (shape_.n_positions_max + shape_.block_tokens - 1) / shape_.block_tokens;
  }
  [[nodiscard]] std::vector<std::uint32_t> random_tokens(std::uint32_t n,
                                                         std::uint64_t seed) const {
    std::mt19937_64 rng(seed);
    std::vector<std::uint32_t> tokens(n);
    for (std::uint32_t& t : tokens)
      t = static_cast<std::uint32_t>(rng() % shape_.vocab);
    return tokens;
  }
  [[nodiscard]] const LlamaShape& shape() const { return shape_; }

  std::vector<HostWeight> weights;  // embedding, last norm, then nine a layer

 private:
  [[nodiscard]] LinearNumerics numerics(std::uint32_t weight, std::uint32_t n_rows_total) const {
    return linear_numerics(weights[weight].desc, n_rows_total);
  }
  void add_layer(ProgramBuilder& b,
                 ViewId x,
                 ViewId frequencies,
                 std::uint32_t first,
                 std::uint32_t layer) const {
    const std::uint32_t hidden = shape_.hidden;
    const std::uint32_t q_width = shape_.n_heads * shape_.head_dim;
    const std::uint32_t kv_width = shape_.n_kv_heads * shape_.head_dim;
    const auto linear = [&](ViewId in, std::uint32_t w, std::uint32_t n, std::uint32_t k) {
      return b.linear(in, b.weight(w, n, k), numerics(w, n));
    };
    const ViewId normed = b.rms_norm(x, b.weight(first, hidden), 1e-5F);
    const ViewId q = linear(normed, first + 1, q_width, hidden);
    const ViewId k = linear(normed, first + 2, kv_width, hidden);
    const ViewId v = linear(normed, first + 3, kv_width, hidden);
    b.rope_in_place(q,
                    frequencies,
                    {shape_.n_heads, shape_.head_dim, shape_.head_dim, shape_.rope_style, 1.0F});
    b.rope_in_place(k,
                    frequencies,
                    {shape_.n_kv_heads, shape_.head_dim, shape_.head_dim, shape_.rope_style, 1.0F});
    b.kv_write(k, v, layer);
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    const ViewId attended =
        b.attend(q, {layer, shape_.n_heads, scale, shape_.window, shape_.softcap});
    if (const std::uint32_t group = shape_.prune_group_layers; group != 0)
      b.kv_prune(q,
                 {layer,
                  shape_.n_heads,
                  scale,
                  0.0F,
                  layer / group * group,
                  std::min((layer / group + 1) * group, shape_.n_layers) - 1});
    b.add_in_place(x, linear(attended, first + 4, hidden, q_width));
    const ViewId normed2 = b.rms_norm(x, b.weight(first + 5, hidden), 1e-5F);
    const ViewId gate = linear(normed2, first + 6, shape_.ffn, hidden);
    const ViewId up = linear(normed2, first + 7, shape_.ffn, hidden);
    const ViewId act = b.act_mul(gate, up, LUNA_ACT_SILU);
    b.add_in_place(x, linear(act, first + 8, hidden, shape_.ffn));
  }

  LlamaShape shape_;
  std::vector<double> frequencies_;
};

}  // namespace luna::test
