#include "ops.hpp"

#include <luna/abi/types.h>
#include <luna/float16.hpp>
#include <luna/kv_prune.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace luna::reference {

void embed(const Matrix& w, const std::uint32_t* token_ids, const Rows& y) {
  for (std::uint32_t i = 0; i < y.n_rows; ++i) {
    const float* row = w.values + static_cast<std::size_t>(token_ids[i]) * w.n_cols;
    std::copy_n(row, w.n_cols, y.row(i));
  }
}

namespace {

/// One vector of n numbers; y may be x.
void rms_norm_vector(const float* x, const float* w, std::uint32_t n, float eps, float* y) {
  double sum = 0;
  for (std::uint32_t d = 0; d < n; ++d)
    sum += double{x[d]} * x[d];
  const double factor = 1.0 / std::sqrt(sum / n + double{eps});
  for (std::uint32_t d = 0; d < n; ++d)
    y[d] = static_cast<float>(x[d] * factor * w[d]);
}

}  // namespace

void rms_norm(const Rows& x, const float* w, float eps, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    rms_norm_vector(x.row(i), w, x.width, eps, y.row(i));
}

void head_norm(const Rows& x, const Matrix& w, float eps, const Rows& y) {
  const std::uint32_t head_dim = w.n_rows;
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for (std::uint32_t first = 0; first < x.width; first += head_dim)
      rms_norm_vector(x.row(i) + first, w.values, head_dim, eps, y.row(i) + first);
}

void layer_norm(const Rows& x, const Matrix& w, const Matrix& b, float eps, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i) {
    const float* in = x.row(i);
    double mean = 0;
    for (std::uint32_t d = 0; d < x.width; ++d)
      mean += in[d];
    mean /= x.width;
    double variance = 0;
    for (std::uint32_t d = 0; d < x.width; ++d)
      variance += (in[d] - mean) * (in[d] - mean);
    const double factor = 1.0 / std::sqrt(variance / x.width + double{eps});
    for (std::uint32_t d = 0; d < x.width; ++d)
      y.row(i)[d] = static_cast<float>((in[d] - mean) * factor * w.values[d] + b.values[d]);
  }
}

namespace {

// Each lane is one row's sum, ascending over K, so more lanes change no bit. Clones let the lanes
// use wide registers; thread sanitizer cannot run the resolvers they need.
#if defined(__SANITIZE_THREAD__) || defined(__clang__)
#define LUNA_WIDE_CLONES
#else
#define LUNA_WIDE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

LUNA_WIDE_CLONES void dot_lanes(const float* w, const double* x, std::uint32_t k, double* sums) {
  double acc[kLinearLanes] = {};
  for (std::uint32_t i = 0; i < k; ++i)
    for (std::uint32_t lane = 0; lane < kLinearLanes; ++lane)
      acc[lane] += double{w[i]} * x[i * kLinearLanes + lane];
  std::copy_n(acc, kLinearLanes, sums);
}

double dot(const float* w, const float* x, std::uint32_t k) {
  double sum = 0;
  for (std::uint32_t i = 0; i < k; ++i)
    sum += double{w[i]} * double{x[i]};
  return sum;
}

float with_bias(double sum, const float* bias, std::uint32_t n) {
  return static_cast<float>(bias != nullptr ? sum + bias[n] : sum);
}

}  // namespace

void linear(
    const Rows& x, const Matrix& w, const float* bias, std::span<double> scratch, const Rows& y) {
  const std::uint32_t k = w.n_cols;
  for (std::uint32_t first = 0; first < x.n_rows; first += kLinearLanes) {
    const std::uint32_t n_lanes = std::min(kLinearLanes, x.n_rows - first);
    if (n_lanes == 1) {
      for (std::uint32_t n = 0; n < w.n_rows; ++n)
        y.row(first)[n] = with_bias(dot(w.values + std::size_t{n} * k, x.row(first), k), bias, n);
      continue;
    }
    for (std::uint32_t i = 0; i < k; ++i)  // x transposed: [k, lanes], absent rows zero
      for (std::uint32_t lane = 0; lane < kLinearLanes; ++lane)
        scratch[i * kLinearLanes + lane] = lane < n_lanes ? x.row(first + lane)[i] : 0.0F;
    for (std::uint32_t n = 0; n < w.n_rows; ++n) {
      double sums[kLinearLanes];
      dot_lanes(w.values + std::size_t{n} * k, scratch.data(), k, sums);
      for (std::uint32_t lane = 0; lane < n_lanes; ++lane)
        y.row(first + lane)[n] = with_bias(sums[lane], bias, n);
    }
  }
}

void moe_route(const Rows& scores, std::uint32_t k, bool normalizes, const Rows& routes) {
  std::vector<std::uint32_t> ids(scores.width);
  for (std::uint32_t i = 0; i < scores.n_rows; ++i) {
    const float* x = scores.row(i);
    std::iota(ids.begin(), ids.end(), 0U);
    std::stable_sort(
        ids.begin(), ids.end(), [&](std::uint32_t a, std::uint32_t b) { return x[a] > x[b]; });
    double sum = 0;
    for (std::uint32_t e = 0; e < (normalizes ? k : scores.width); ++e)
      sum += std::exp(double{x[ids[e]]} - x[ids[0]]);
    std::fill_n(routes.row(i), routes.width, 0.0F);
    for (std::uint32_t e = 0; e < k; ++e)
      routes.row(i)[ids[e]] = static_cast<float>(std::exp(double{x[ids[e]]} - x[ids[0]]) / sum);
  }
}

namespace {

/// Calls body(slot, expert) for a row's slots, ascending.
template <typename Body>
void for_slots(const float* routes, std::uint32_t n_experts, std::uint32_t n_slots, Body&& body) {
  std::uint32_t slot = 0;
  for (std::uint32_t expert = 0; expert < n_experts && slot < n_slots; ++expert)
    if (routes[expert] != 0.0F) body(slot++, expert);
}

}  // namespace

void grouped_linear(const Rows& x, const Rows& routes, const Matrix& w, const Rows& y) {
  const std::uint32_t n_expert_rows = w.n_rows / routes.width;
  const std::uint32_t k = w.n_cols;
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for_slots(routes.row(i),
              routes.width,
              y.width / n_expert_rows,
              [&](std::uint32_t slot, std::uint32_t expert) {
                const float* from = x.row(i) + (x.width == k ? 0 : std::size_t{slot} * k);
                for (std::uint32_t n = 0; n < n_expert_rows; ++n)
                  y.row(i)[slot * n_expert_rows + n] = static_cast<float>(
                      dot(w.values + (std::size_t{expert} * n_expert_rows + n) * k, from, k));
              });
}

void moe_sum(const Rows& x, const Rows& routes, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for (std::uint32_t d = 0; d < y.width; ++d) {
      double sum = 0;
      for_slots(routes.row(i),
                routes.width,
                x.width / y.width,
                [&](std::uint32_t slot, std::uint32_t expert) {
                  sum += double{routes.row(i)[expert]} * x.row(i)[slot * y.width + d];
                });
      y.row(i)[d] = static_cast<float>(sum);
    }
}

void rope(const Rows& x, const std::uint32_t* positions, const RopeParams& p, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i) {
    if (y.base != x.base) std::copy_n(x.row(i), x.width, y.row(i));
    for (std::uint32_t pair = 0; pair < p.n_rot / 2; ++pair) {
      const double angle = positions[i] * p.frequencies[pair];
      const float c = static_cast<float>(std::cos(angle)) * p.magnitude;
      const float s = static_cast<float>(std::sin(angle)) * p.magnitude;
      const std::uint32_t a = p.halves ? pair : 2 * pair;
      const std::uint32_t b = p.halves ? pair + p.n_rot / 2 : 2 * pair + 1;
      for (std::uint32_t h = 0; h < p.n_heads; ++h) {
        float* head = y.row(i) + std::size_t{h} * p.head_dim;
        const double x0 = head[a];
        const double x1 = head[b];
        head[a] = static_cast<float>(x0 * c - x1 * s);
        head[b] = static_cast<float>(x0 * s + x1 * c);
      }
    }
  }
}

void kv_write(const float* k,
              const float* v,
              const KvCache& kv,
              std::uint32_t layer,
              std::uint32_t position) {
  for (std::uint32_t h = 0; h < kv.n_kv_heads; ++h) {
    std::copy_n(k + std::size_t{h} * kv.head_dim, kv.head_dim, kv.at(layer, 0, h, position));
    std::copy_n(v + std::size_t{h} * kv.head_dim, kv.head_dim, kv.at(layer, 1, h, position));
    if (kv.has_masses) *kv.mass_at(layer, h, position) = 0.0F;
  }
}

namespace {

/// One KV head of a layer.
struct KvHead {
  const KvCache& kv;
  std::uint32_t layer;
  std::uint32_t index;

  [[nodiscard]] const float* key(std::uint32_t slot) const { return kv.at(layer, 0, index, slot); }
  [[nodiscard]] const float* value(std::uint32_t slot) const {
    return kv.at(layer, 1, index, slot);
  }
};

// As in linear(): each lane is a sum of its own in the order that it has alone, so lanes change no
// bit; but they do not wait for each other's additions.
constexpr std::uint32_t kSlotLanes = 8;
constexpr std::uint32_t kValueLanes = 16;

/// scores[i] = query . key of slot `first` + i, for at most kSlotLanes of them.
void dot_slots(const float* query,
               const KvHead& head,
               std::uint32_t first,
               std::span<double> scores) {
  const auto n = static_cast<std::uint32_t>(scores.size());
  const float* keys[kSlotLanes];
  for (std::uint32_t lane = 0; lane < kSlotLanes; ++lane)
    keys[lane] = head.key(first + std::min(lane, n - 1));
  double acc[kSlotLanes] = {};
  for (std::uint32_t d = 0; d < head.kv.head_dim; ++d)
    for (std::uint32_t lane = 0; lane < kSlotLanes; ++lane)
      acc[lane] += double{keys[lane][d]} * double{query[d]};
  std::copy_n(acc, n, scores.begin());
}

/// Dimensions `d` to `d` + kValueLanes of the sum of weights[t] * value of slot t, from `first` on.
LUNA_WIDE_CLONES void sum_values(std::span<const double> weights,
                                 const KvHead& head,
                                 std::uint32_t first,
                                 std::uint32_t d,
                                 double* sums) {
  double acc[kValueLanes] = {};
  for (std::uint32_t t = first; t < weights.size(); ++t) {
    const float* value = head.value(t) + d;
    for (std::uint32_t lane = 0; lane < kValueLanes; ++lane)
      acc[lane] += weights[t] * double{value[lane]};
  }
  std::copy_n(acc, kValueLanes, sums);
}

double sum_value(std::span<const double> weights,
                 const KvHead& head,
                 std::uint32_t first,
                 std::uint32_t d) {
  double acc = 0;
  for (std::uint32_t t = first; t < weights.size(); ++t)
    acc += weights[t] * double{head.value(t)[d]};
  return acc;
}

struct SeenSlots {
  std::uint32_t first;
  double sum;  // of their probabilities before they are divided by it
};

/// Probabilities of the slots that a head sees, not yet divided by their sum.
SeenSlots weigh(const float* query,
                const KvHead& head,
                const AttendParams& p,
                std::span<double> scores) {
  const auto n_positions = static_cast<std::uint32_t>(scores.size());
  const std::uint32_t first = p.window != 0 && p.window < n_positions ? n_positions - p.window : 0;
  for (std::uint32_t t = first; t < n_positions; t += kSlotLanes)
    dot_slots(query, head, t, scores.subspan(t, std::min(kSlotLanes, n_positions - t)));
  double max = -std::numeric_limits<double>::infinity();
  for (std::uint32_t t = first; t < n_positions; ++t) {
    scores[t] *= p.scale;
    if (p.softcap != 0.0F) scores[t] = p.softcap * std::tanh(scores[t] / p.softcap);
    max = std::max(max, scores[t]);
  }
  double sum = 0;
  for (std::uint32_t t = first; t < n_positions; ++t) {
    scores[t] = std::exp(scores[t] - max);
    sum += scores[t];
  }
  return {first, sum};
}

}  // namespace

void attend_row(const float* q,
                const KvCache& kv,
                const AttendParams& p,
                std::span<double> scores,
                float* out) {
  for (std::uint32_t h = 0; h < p.n_heads; ++h) {
    const KvHead head{kv, p.layer, h / (p.n_heads / kv.n_kv_heads)};
    const auto [first, sum] = weigh(q + std::size_t{h} * kv.head_dim, head, p, scores);
    float* to = out + std::size_t{h} * kv.head_dim;
    std::uint32_t d = 0;
    for (; d + kValueLanes <= kv.head_dim; d += kValueLanes) {
      double sums[kValueLanes];
      sum_values(scores, head, first, d, sums);
      for (std::uint32_t lane = 0; lane < kValueLanes; ++lane)
        to[d + lane] = static_cast<float>(sums[lane] / sum);
    }
    for (; d < kv.head_dim; ++d)
      to[d] = static_cast<float>(sum_value(scores, head, first, d) / sum);
  }
}

void observe_row(const float* q,
                 const KvCache& kv,
                 const AttendParams& p,
                 std::span<double> scores) {
  for (std::uint32_t h = 0; h < p.n_heads; ++h) {
    const KvHead head{kv, p.layer, h / (p.n_heads / kv.n_kv_heads)};
    const auto [first, sum] = weigh(q + std::size_t{h} * kv.head_dim, head, p, scores);
    for (std::uint32_t t = first; t < scores.size(); ++t)
      *kv.mass_at(p.layer, head.index, t) += static_cast<float>(scores[t] / sum);
  }
}

void kv_prune(const KvCache& kv,
              const PruneGroup& group,
              const PruneScratch& scratch,
              std::uint32_t n_keep) {
  const auto& [weights, ranks, kept] = scratch;
  for (std::uint32_t slot = 0; slot < weights.size(); ++slot) {
    weights[slot] = 0.0F;
    for (std::uint32_t layer = group.first_layer; layer <= group.last_layer; ++layer)
      for (std::uint32_t h = 0; h < kv.n_kv_heads; ++h)
        weights[slot] += *kv.mass_at(layer, h, slot);
  }
  select_kept_slots(weights, ranks, kept, n_keep);
  for (std::uint32_t layer = group.first_layer; layer <= group.last_layer; ++layer)
    for (std::uint32_t part = 0; part < 2; ++part)
      for (std::uint32_t h = 0; h < kv.n_kv_heads; ++h)
        for (std::uint32_t to = 0; to < n_keep; ++to)
          std::memmove(kv.at(layer, part, h, to),
                       kv.at(layer, part, h, kept[to]),
                       kv.head_dim * sizeof(float));
}

void act_mul(const Rows& gate, const Rows& up, bool gelu, const Rows& y) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588;
  for (std::uint32_t i = 0; i < gate.n_rows; ++i)
    for (std::uint32_t d = 0; d < gate.width; ++d) {
      const double g = gate.row(i)[d];
      const double act =
          gelu ? 0.5 * g * (1.0 + std::tanh(kSqrt2OverPi * (g + 0.044715 * g * g * g)))
               : g / (1.0 + std::exp(-g));
      y.row(i)[d] = static_cast<float>(act * up.row(i)[d]);
    }
}

void add(const Rows& a, const Rows& b, const Rows& y) {
  for (std::uint32_t i = 0; i < a.n_rows; ++i)
    for (std::uint32_t d = 0; d < a.width; ++d)
      y.row(i)[d] = a.row(i)[d] + b.row(i)[d];
}

void scale(const Rows& x, float factor, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for (std::uint32_t d = 0; d < x.width; ++d)
      y.row(i)[d] = x.row(i)[d] * factor;
}

void softcap(const Rows& x, float cap, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for (std::uint32_t d = 0; d < x.width; ++d)
      y.row(i)[d] = static_cast<float>(cap * std::tanh(double{x.row(i)[d]} / cap));
}

void gather_rows(const Rows& x, const std::uint32_t* row_ids, const Rows& y) {
  for (std::uint32_t i = 0; i < y.n_rows; ++i)
    std::copy_n(x.row(row_ids[i]), x.width, y.row(i));
}

namespace {

float load_element(const std::byte* row, std::uint32_t dtype, std::uint32_t i) {
  if (dtype == LUNA_DTYPE_F32) return reinterpret_cast<const float*>(row)[i];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[i];
  return dtype == LUNA_DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void store_element(std::byte* row, std::uint32_t dtype, std::uint32_t i, float x) {
  if (dtype == LUNA_DTYPE_F32) {
    reinterpret_cast<float*>(row)[i] = x;
  } else {
    reinterpret_cast<std::uint16_t*>(row)[i] =
        dtype == LUNA_DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
  }
}

}  // namespace

void convert(const Rows& x, const Rows& y) {
  for (std::uint32_t i = 0; i < x.n_rows; ++i)
    for (std::uint32_t d = 0; d < x.width; ++d)
      store_element(
          y.base + i * y.row_bytes, y.dtype, d, load_element(x.base + i * x.row_bytes, x.dtype, d));
}

void top_candidates(std::span<const float> logits,
                    std::uint32_t k,
                    std::span<std::uint32_t> ids,
                    std::uint32_t* out) {
  const auto value = [&](std::uint32_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  std::iota(ids.begin(), ids.end(), 0U);
  std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [&](std::uint32_t a, std::uint32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  for (std::size_t i = 0; i < k; ++i) {
    out[2 * i] = std::bit_cast<std::uint32_t>(logits[ids[i]]);
    out[2 * i + 1] = ids[i];
  }
  const double max = value(ids[0]);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(double{logit} - max);
  std::uint32_t* last = out + std::size_t{2} * k;
  last[0] = std::bit_cast<std::uint32_t>(static_cast<float>(max + std::log(sum)));
  last[1] = 0;
}

}  // namespace luna::reference
