// One obvious function per op. Everything is FP32 outside and double inside; a row's result never
// depends on the other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace luna::reference {

/// Rows of an activation: element (row, col) of dtype `dtype` (LUNA_DTYPE_*).
struct Rows {
  std::byte* base = nullptr;
  std::size_t row_bytes = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t width = 0;
  std::uint32_t dtype = 0;

  /// A row of FP32 values.
  [[nodiscard]] float* row(std::uint32_t i) const {
    return reinterpret_cast<float*>(base + i * row_bytes);
  }
};

/// A weight or bias as FP32: [n_rows, n_cols].
struct Matrix {
  const float* values = nullptr;
  std::uint32_t n_rows = 0;
  std::uint32_t n_cols = 0;
};

/// The KV blocks of one layer and sequence: [block][layer][K, V][kv_head][token][head_dim] FP32.
struct KvCache {
  float* base = nullptr;
  std::size_t block_floats = 0;  // of a whole block, all layers
  std::size_t layer_floats = 0;  // of one layer of a block
  std::uint32_t block_tokens = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t head_dim = 0;
  bool has_masses = false;  // [kv_head][token] behind K and V
  const std::uint32_t* table = nullptr;

  /// The [head_dim] vector of a position. part 0: K, 1: V.
  [[nodiscard]] float* at(std::uint32_t layer,
                          std::uint32_t part,
                          std::uint32_t kv_head,
                          std::uint32_t position) const {
    const std::size_t plane = static_cast<std::size_t>(part) * n_kv_heads + kv_head;
    return base + table[position / block_tokens] * block_floats + layer * layer_floats +
           (plane * block_tokens + position % block_tokens) * head_dim;
  }
  /// The mass of a slot, where attention is observed.
  [[nodiscard]] float* mass_at(std::uint32_t layer,
                               std::uint32_t kv_head,
                               std::uint32_t slot) const {
    return base + table[slot / block_tokens] * block_floats + layer * layer_floats +
           (std::size_t{2} * n_kv_heads * head_dim + kv_head) * block_tokens + slot % block_tokens;
  }
};

struct RopeParams {
  std::uint32_t n_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t n_rot = 0;
  bool halves = false;
  float magnitude = 1.0F;
  const double* frequencies = nullptr;  // [n_rot / 2]
};

struct AttendParams {
  std::uint32_t layer = 0;
  std::uint32_t n_heads = 0;
  float scale = 1.0F;
  std::uint32_t window = 0;
  float softcap = 0.0F;
};

void embed(const Matrix& w, const std::uint32_t* token_ids, const Rows& y);
void rms_norm(const Rows& x, const float* w, float eps, const Rows& y);
/// w: [head_dim]; each head of a row is normed on its own.
void head_norm(const Rows& x, const Matrix& w, float eps, const Rows& y);
void layer_norm(const Rows& x, const Matrix& w, const Matrix& b, float eps, const Rows& y);
/// Lanes of rows that linear() advances together, and the doubles of scratch it needs.
inline constexpr std::uint32_t kLinearLanes = 16;
void linear(const Rows& x,
            const Matrix& w,
            const float* bias,
            std::span<double> scratch,  // [w.n_cols * kLinearLanes]
            const Rows& y);
/// routes: [E]; k of them are not 0.
void moe_route(const Rows& scores, std::uint32_t k, bool normalizes, const Rows& routes);
/// w: [E * n_expert_rows, K]
void grouped_linear(const Rows& x, const Rows& routes, const Matrix& w, const Rows& y);
void moe_sum(const Rows& x, const Rows& routes, const Rows& y);
void rope(const Rows& x, const std::uint32_t* positions, const RopeParams& params, const Rows& y);
void kv_write(
    const float* k, const float* v, const KvCache& kv, std::uint32_t layer, std::uint32_t position);
/// One row: all heads of a query over slots 0 .. its own. scores: [own + 1].
void attend_row(const float* q,
                const KvCache& kv,
                const AttendParams& params,
                std::span<double> scores,
                float* out);
/// Adds what a row's heads give each slot to the slots' masses.
void observe_row(const float* q,
                 const KvCache& kv,
                 const AttendParams& params,
                 std::span<double> scores);
/// Layers that keep the same slots.
struct PruneGroup {
  std::uint32_t first_layer;
  std::uint32_t last_layer;
};
/// Memory that choosing slots takes; as long as there are slots.
struct PruneScratch {
  std::span<float> weights;
  std::span<float> ranks;
  std::span<std::uint32_t> kept;
};
/// Keeps n_keep slots in every layer of the group, as the ABI says.
void kv_prune(const KvCache& kv,
              const PruneGroup& group,
              const PruneScratch& scratch,
              std::uint32_t n_keep);
void act_mul(const Rows& gate, const Rows& up, bool gelu, const Rows& y);
void add(const Rows& a, const Rows& b, const Rows& y);
void scale(const Rows& x, float factor, const Rows& y);
void softcap(const Rows& x, float cap, const Rows& y);
void gather_rows(const Rows& x, const std::uint32_t* row_ids, const Rows& y);
/// Widens to FP32 and rounds to y's type; copy is the same with one type.
void convert(const Rows& x, const Rows& y);
/// k pairs (logit, id), largest first, ties to the lowest id; then (log-sum-exp, 0). NaN comes
/// last.
void top_candidates(std::span<const float> logits,
                    std::uint32_t k,
                    std::span<std::uint32_t> ids,  // [vocab] scratch
                    std::uint32_t* out);           // [2 * (k + 1)]

}  // namespace luna::reference
