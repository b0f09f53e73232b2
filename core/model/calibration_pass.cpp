#include "core/model/calibration_pass.hpp"

#include "core/base/parallel_for.hpp"

#include <algorithm>
#include <cmath>

namespace luna::model {
namespace {

const std::vector<float>& of(const LayerValues& weights, LayerWeight weight) {
  return weights[static_cast<std::size_t>(weight)];
}

/// x / sqrt(mean(x^2) + eps) * weight, each token by itself.
Activations rms_norm(const Activations& x, const std::vector<float>& weight, float eps) {
  std::vector<double> squares(x.n_tokens);
  for (std::uint64_t f = 0; f < x.n_features; ++f) {
    const auto values = x.of(f);
    for (std::uint64_t t = 0; t < x.n_tokens; ++t)
      squares[t] += double{values[t]} * values[t];
  }
  std::vector<float> factors(x.n_tokens);
  for (std::uint64_t t = 0; t < x.n_tokens; ++t)
    factors[t] =
        static_cast<float>(1.0 / std::sqrt(squares[t] / static_cast<double>(x.n_features) + eps));
  Activations out(x.n_features, x.n_tokens);
  for (std::uint64_t f = 0; f < x.n_features; ++f)
    for (std::uint64_t t = 0; t < x.n_tokens; ++t)
      out.of(f)[t] = x.of(f)[t] * factors[t] * weight[f];
  return out;
}

void rotate(const ModelConfig& config, std::uint32_t n_heads, Activations& x) {
  const RopeConfig& rope = config.rope;
  for (std::uint32_t head = 0; head < n_heads; ++head) {
    for (std::uint32_t pair = 0; pair < rope.n_rot / 2; ++pair) {
      const std::uint64_t base = std::uint64_t{head} * config.head_dim;
      const std::uint64_t a = base + (rope.interleaved ? 2 * pair : pair);
      const std::uint64_t b = base + (rope.interleaved ? 2 * pair + 1 : pair + rope.n_rot / 2);
      for (std::uint64_t t = 0; t < x.n_tokens; ++t) {
        const double angle = static_cast<double>(t) * rope.frequencies[pair];
        const auto cosine = static_cast<float>(std::cos(angle) * rope.magnitude);
        const auto sine = static_cast<float>(std::sin(angle) * rope.magnitude);
        const float first = x.of(a)[t];
        const float second = x.of(b)[t];
        x.of(a)[t] = first * cosine - second * sine;
        x.of(b)[t] = first * sine + second * cosine;
      }
    }
  }
}

/// Causal attention of one head over the whole sequence, into its features of `out`.
void attend(const ModelConfig& config,
            std::uint32_t head,
            const Activations& q,
            const Activations& k,
            const Activations& v,
            Activations& out) {
  const std::uint64_t n = q.n_tokens;
  const std::uint64_t own = std::uint64_t{head} * config.head_dim;
  const std::uint64_t kv =
      std::uint64_t{head} * config.n_kv_heads / config.n_heads * config.head_dim;
  std::vector<float> scores(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    std::fill(scores.begin(), scores.end(), 0.0F);
    for (std::uint64_t d = 0; d < config.head_dim; ++d) {
      const float query = q.of(own + d)[i] * config.attention_scale;
      const auto keys = k.of(kv + d);
      for (std::uint64_t j = 0; j <= i; ++j)
        scores[j] += query * keys[j];
    }
    const float largest = *std::max_element(scores.begin(), scores.begin() + std::ptrdiff_t(i) + 1);
    float sum = 0.0F;
    for (std::uint64_t j = 0; j <= i; ++j)
      sum += scores[j] = std::exp(scores[j] - largest);
    for (std::uint64_t d = 0; d < config.head_dim; ++d) {
      const auto values = v.of(kv + d);
      float total = 0.0F;
      for (std::uint64_t j = 0; j <= i; ++j)
        total += scores[j] * values[j];
      out.of(own + d)[i] = total / sum;
    }
  }
}

void add(const Activations& what, Activations& x) {
  for (std::uint64_t i = 0; i < x.values.size(); ++i)
    x.values[i] += what.values[i];
}

}  // namespace

Activations times(std::span<const float> weight,
                  std::uint64_t n_rows,
                  const Activations& x,
                  std::uint32_t n_threads) {
  constexpr std::uint64_t kRows = 16;  // of a piece of work
  Activations out(n_rows, x.n_tokens);
  parallel_for(n_threads,
               (n_rows + kRows - 1) / kRows,
               [&](std::uint32_t /*thread_idx*/, std::uint64_t piece) {
                 const std::uint64_t end = std::min(n_rows, (piece + 1) * kRows);
                 for (std::uint64_t row = piece * kRows; row < end; ++row) {
                   float* const sums = out.of(row).data();
                   const float* const w = weight.data() + row * x.n_features;
                   for (std::uint64_t f = 0; f < x.n_features; ++f) {
                     const float* const values = x.of(f).data();
                     for (std::uint64_t t = 0; t < x.n_tokens; ++t)
                       sums[t] += w[f] * values[t];
                   }
                 }
               });
  return out;
}

LayerInputs run_layer(const ModelConfig& config,
                      const LayerValues& weights,
                      std::uint32_t n_threads,
                      Activations& x) {
  const auto linear = [&](LayerWeight weight, const Activations& input) {
    return times(of(weights, weight), layer_weight_shape(config, weight).n_rows, input, n_threads);
  };
  LayerInputs inputs;
  inputs.attention = rms_norm(x, of(weights, LayerWeight::attention_norm), config.norm_eps);
  Activations q = linear(LayerWeight::query, inputs.attention);
  Activations k = linear(LayerWeight::key, inputs.attention);
  const Activations v = linear(LayerWeight::value, inputs.attention);
  rotate(config, config.n_heads, q);
  rotate(config, config.n_kv_heads, k);
  inputs.heads = Activations(q.n_features, q.n_tokens);
  parallel_for(n_threads, config.n_heads, [&](std::uint32_t /*thread_idx*/, std::uint64_t head) {
    attend(config, static_cast<std::uint32_t>(head), q, k, v, inputs.heads);
  });
  add(linear(LayerWeight::attention_out, inputs.heads), x);
  inputs.ffn = rms_norm(x, of(weights, LayerWeight::ffn_norm), config.norm_eps);
  inputs.gated = linear(LayerWeight::gate, inputs.ffn);
  const Activations up = linear(LayerWeight::up, inputs.ffn);
  for (std::uint64_t i = 0; i < up.values.size(); ++i) {
    const float gate = inputs.gated.values[i];
    inputs.gated.values[i] = gate / (1.0F + std::exp(-gate)) * up.values[i];
  }
  add(linear(LayerWeight::down, inputs.gated), x);
  return inputs;
}

}  // namespace luna::model
