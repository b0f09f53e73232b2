// The ops of <luna/abi/op_program.h> as the loops that define them.
#pragma once

#include <luna/abi/op_program.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace plain {

struct Rows {
  std::byte* base;
  std::size_t row_bytes;
  std::uint32_t n_rows;
  std::uint32_t width;  // floats of a row
  float* row(std::uint32_t i) const { return reinterpret_cast<float*>(base + i * row_bytes); }
};

struct Matrix {
  const float* values;  // [n_rows, n_cols]
  std::uint32_t n_rows;
  std::uint32_t n_cols;
};

// A block holds [n_layers, K and V, n_kv_heads, block_tokens, head_dim].
struct KvOfSequence {
  float* base;
  const luna_kv_layout& layout;
  const std::uint32_t* table;  // block of each block_tokens positions
  float* at(std::uint32_t layer,
            std::uint32_t part,
            std::uint32_t head,
            std::uint32_t position) const {
    const std::size_t head_floats = std::size_t{layout.block_tokens} * layout.head_dim;
    const std::size_t layer_floats = 2 * layout.n_kv_heads * head_floats;
    return base + table[position / layout.block_tokens] * (layout.n_layers * layer_floats) +
           layer * layer_floats + (part * layout.n_kv_heads + head) * head_floats +
           position % layout.block_tokens * std::size_t{layout.head_dim};
  }
};

inline void embed(const Matrix& w, const std::uint32_t* token_ids, const Rows& y) {
  for (std::uint32_t i = 0; i < y.n_rows; ++i)
    std::copy_n(w.values + std::size_t{token_ids[i]} * w.n_cols, w.n_cols, y.row(i));
}

inline void rms_norm(const Rows& x, const float* w, float eps, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i) {
    double sum = 0;
    for (std::uint32_t d = 0; d < x.width; ++d)
      sum += double{x.row(i)[d]} * x.row(i)[d];
    const double factor = 1.0 / std::sqrt(sum / x.width + double{eps});
    for (std::uint32_t d = 0; d < x.width; ++d)
      y.row(i)[d] = static_cast<float>(x.row(i)[d] * factor * w[d]);
  }
}

// Eight sums that do not wait for each other; their order is the same for every row.
inline double dot(const float* a, const float* b, std::uint32_t n) {
  double sums[8] = {};
  std::uint32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::uint32_t lane = 0; lane < 8; ++lane)
      sums[lane] += double{a[i + lane]} * b[i + lane];
  for (; i < n; ++i)
    sums[0] += double{a[i]} * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

inline void linear(const Rows& x, const Matrix& w, const float* bias, const Rows& y) {
  for (std::uint32_t n = 0; n < w.n_rows; ++n)  // each row of the weight is read once
    for (std::uint32_t i = 0; i < x.n_rows; ++i)
      y.row(i)[n] =
          static_cast<float>(dot(w.values + std::size_t{n} * w.n_cols, x.row(i), w.n_cols) +
                             (bias != nullptr ? bias[n] : 0.0F));
}

struct RopeOptions {
  std::uint32_t n_heads, head_dim, n_rot;
  bool halves;
  float magnitude;
  const double* frequencies;
};

inline void rope(const Rows& x,
                 const std::uint32_t* positions,
                 const RopeOptions& o,
                 const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i) {
    if (y.base != x.base) std::copy_n(x.row(i), x.width, y.row(i));
    for (std::uint32_t pair = 0; pair < o.n_rot / 2; ++pair) {
      const double angle = positions[i] * o.frequencies[pair];
      const float c = static_cast<float>(std::cos(angle)) * o.magnitude;
      const float s = static_cast<float>(std::sin(angle)) * o.magnitude;
      const std::uint32_t a = o.halves ? pair : 2 * pair;
      const std::uint32_t b = o.halves ? pair + o.n_rot / 2 : 2 * pair + 1;
      for (std::uint32_t head = 0; head < o.n_heads; ++head) {
        float* const at = y.row(i) + std::size_t{head} * o.head_dim;
        const double x0 = at[a];
        const double x1 = at[b];
        at[a] = static_cast<float>(x0 * c - x1 * s);
        at[b] = static_cast<float>(x0 * s + x1 * c);
      }
    }
  }
}

inline void kv_write(const float* k,
                     const float* v,
                     const KvOfSequence& kv,
                     std::uint32_t layer,
                     std::uint32_t position) {
  const std::uint32_t head_dim = kv.layout.head_dim;
  for (std::uint32_t head = 0; head < kv.layout.n_kv_heads; ++head) {
    std::copy_n(k + std::size_t{head} * head_dim, head_dim, kv.at(layer, 0, head, position));
    std::copy_n(v + std::size_t{head} * head_dim, head_dim, kv.at(layer, 1, head, position));
  }
}

struct AttendOptions {
  std::uint32_t layer, n_heads;
  float scale;
  std::uint32_t window;
  float softcap;
};

// scores  [positions that the row sees, its own included]
inline void attend(const float* q,
                   const KvOfSequence& kv,
                   const AttendOptions& o,
                   std::span<double> scores,
                   float* out) {
  const std::uint32_t head_dim = kv.layout.head_dim;
  const auto n = static_cast<std::uint32_t>(scores.size());
  const std::uint32_t first = o.window != 0 && o.window < n ? n - o.window : 0;
  for (std::uint32_t head = 0; head < o.n_heads; ++head) {
    const std::uint32_t kv_head = head / (o.n_heads / kv.layout.n_kv_heads);
    double max = -std::numeric_limits<double>::infinity();
    for (std::uint32_t t = first; t < n; ++t) {
      scores[t] =
          o.scale * dot(q + std::size_t{head} * head_dim, kv.at(o.layer, 0, kv_head, t), head_dim);
      if (o.softcap != 0.0F) scores[t] = o.softcap * std::tanh(scores[t] / o.softcap);
      max = std::max(max, scores[t]);
    }
    double sum = 0;
    for (std::uint32_t t = first; t < n; ++t)
      sum += scores[t] = std::exp(scores[t] - max);
    float* const to = out + std::size_t{head} * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      double value = 0;
      for (std::uint32_t t = first; t < n; ++t)
        value += scores[t] * kv.at(o.layer, 1, kv_head, t)[d];
      to[d] = static_cast<float>(value / sum);
    }
  }
}

inline void act_mul(const Rows& gate, const Rows& up, bool is_gelu, const Rows& y) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588;
  for (std::uint32_t i = 0; i < gate.n_rows; ++i)
    for (std::uint32_t d = 0; d < gate.width; ++d) {
      const double g = gate.row(i)[d];
      const double act =
          is_gelu ? 0.5 * g * (1.0 + std::tanh(kSqrt2OverPi * (g + 0.044715 * g * g * g)))
                  : g / (1.0 + std::exp(-g));
      y.row(i)[d] = static_cast<float>(act * up.row(i)[d]);
    }
}

inline void add(const Rows& a, const Rows& b, const Rows& y) {
  for (std::uint32_t i = 0; i < a.n_rows; ++i)
    for (std::uint32_t d = 0; d < a.width; ++d)
      y.row(i)[d] = a.row(i)[d] + b.row(i)[d];
}

inline void gather_rows(const Rows& x, const std::uint32_t* row_ids, const Rows& y) {
  for (std::uint32_t i = 0; i < y.n_rows; ++i)
    std::copy_n(x.row(row_ids[i]), x.width, y.row(i));
}

// k pairs (logit, id), largest first, ties to the lowest id; then the row's log-sum-exp and a zero.
inline void top_candidates(std::span<const float> logits, std::uint32_t k, std::uint32_t* out) {
  const auto value = [&](std::uint32_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  const auto is_before = [&](std::uint32_t a, std::uint32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  std::uint32_t n = 0;  // found so far, in order
  for (std::uint32_t id = 0; id < logits.size(); ++id) {
    if (n == k && !is_before(id, out[2 * k - 1])) continue;
    std::uint32_t at = n < k ? n++ : k - 1;
    for (; at > 0 && is_before(id, out[2 * at - 1]); --at)
      out[2 * at + 1] = out[2 * at - 1];
    out[2 * at + 1] = id;
  }
  for (std::uint32_t i = 0; i < k; ++i)
    out[2 * i] = std::bit_cast<std::uint32_t>(logits[out[2 * i + 1]]);
  const double max = value(out[1]);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(double{logit} - max);
  out[2 * k] = std::bit_cast<std::uint32_t>(static_cast<float>(max + std::log(sum)));
  out[2 * k + 1] = 0;
}

}  // namespace plain
