#include "core/model/awq_scales.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace luna::model {
namespace {

constexpr std::uint64_t kTokensMax = 128;  // that judge a scale; more change it little
constexpr int kExponents = 20;
constexpr float kScaleMin = 1e-4F;  // of the reference: a column is not scaled away

std::vector<float>& of(LayerValues& weights, LayerWeight weight) {
  return weights[static_cast<std::size_t>(weight)];
}

/// Tokens at even distances.
Activations sample(const Activations& x) {
  const std::uint64_t n = std::min(x.n_tokens, kTokensMax);
  Activations some(x.n_features, n);
  for (std::uint64_t f = 0; f < x.n_features; ++f)
    for (std::uint64_t t = 0; t < n; ++t)
      some.of(f)[t] = x.of(f)[t * x.n_tokens / n];
  return some;
}

std::vector<float> mean_sizes(const Activations& x) {
  std::vector<float> means(x.n_features);
  for (std::uint64_t f = 0; f < x.n_features; ++f) {
    double sum = 0.0;
    for (const float value : x.of(f))
      sum += std::abs(value);
    means[f] = static_cast<float>(sum / static_cast<double>(x.n_tokens));
  }
  return means;
}

/// mean|x|^exponent, with 1 in the middle of the smallest and the largest.
std::vector<float> scales_of(const std::vector<float>& means, float exponent) {
  std::vector<float> scales(means.size());
  for (std::size_t i = 0; i < means.size(); ++i)
    scales[i] = std::max(std::pow(means[i], exponent), kScaleMin);
  const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
  const float middle = std::sqrt(*low * *high);
  for (float& scale : scales)
    scale /= middle;
  return scales;
}

void multiply_columns(std::vector<float>& weight, const std::vector<float>& scales) {
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] *= scales[i % scales.size()];
}

class ScaleSearch {
 public:
  ScaleSearch(const Activations& inputs, const Rounding& rounding, std::uint32_t n_threads)
      : inputs_(sample(inputs)), rounding_(rounding), n_threads_(n_threads) {}

  /// The best scales of the weights that read the inputs.
  /// means  [n_features] sizes of the inputs
  [[nodiscard]] std::vector<float> run(std::initializer_list<const std::vector<float>*> weights,
                                       const std::vector<float>& means) const {
    std::vector<float> best_scales;
    double best = 0.0;
    for (int i = 0; i < kExponents; ++i) {
      const std::vector<float> scales =
          scales_of(means, static_cast<float>(i) / static_cast<float>(kExponents));
      double error = 0.0;
      for (const std::vector<float>* weight : weights)
        error += error_of(*weight, scales);
      if (!best_scales.empty() && !(error < best)) continue;
      best = error;
      best_scales = scales;
    }
    return best_scales;
  }

 private:
  /// The square of what rounding changes of the products.
  [[nodiscard]] double error_of(const std::vector<float>& weight,
                                const std::vector<float>& scales) const {
    const std::uint64_t n_cols = scales.size();
    const std::uint64_t n_rows = weight.size() / n_cols;
    std::vector<float> scaled = weight;
    multiply_columns(scaled, scales);
    std::vector<float> miss = rounding_(scaled, n_rows, n_cols);
    for (std::size_t i = 0; i < miss.size(); ++i)
      miss[i] = miss[i] / scales[i % n_cols] - weight[i];
    double error = 0.0;
    for (const float value : times(miss, n_rows, inputs_, n_threads_).values)
      error += double{value} * value;
    return error;
  }

  const Activations inputs_;
  const Rounding& rounding_;
  const std::uint32_t n_threads_;
};

void divide_rows(std::vector<float>& weight, const std::vector<float>& scales) {
  const std::size_t n_cols = weight.size() / scales.size();
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] /= scales[i / n_cols];
}

/// Features of values are shared by the heads of a group: their mean, by value feature.
std::vector<float> by_value_feature(const ModelConfig& config, const std::vector<float>& means) {
  std::vector<float> shared(std::size_t{config.n_kv_heads} * config.head_dim);
  const std::uint32_t n_sharing = config.n_heads / config.n_kv_heads;
  for (std::size_t i = 0; i < means.size(); ++i) {
    const std::size_t head = i / config.head_dim / n_sharing;
    shared[head * config.head_dim + i % config.head_dim] +=
        means[i] / static_cast<float>(n_sharing);
  }
  return shared;
}
std::vector<float> by_head_feature(const ModelConfig& config, const std::vector<float>& shared) {
  std::vector<float> each(std::size_t{config.n_heads} * config.head_dim);
  const std::uint32_t n_sharing = config.n_heads / config.n_kv_heads;
  for (std::size_t i = 0; i < each.size(); ++i) {
    const std::size_t head = i / config.head_dim / n_sharing;
    each[i] = shared[head * config.head_dim + i % config.head_dim];
  }
  return each;
}

}  // namespace

void scale_layer(const ModelConfig& config,
                 const LayerInputs& inputs,
                 const Rounding& rounding,
                 std::uint32_t n_threads,
                 LayerValues& weights) {
  const auto get = [&](LayerWeight weight) -> std::vector<float>& { return of(weights, weight); };
  // From the last op to the first: what a scale divides is then not yet judged as a weight.
  std::vector<float> scales = ScaleSearch(inputs.gated, rounding, n_threads)
                                  .run({&get(LayerWeight::down)}, mean_sizes(inputs.gated));
  multiply_columns(get(LayerWeight::down), scales);
  divide_rows(get(LayerWeight::up), scales);

  scales = ScaleSearch(inputs.ffn, rounding, n_threads)
               .run({&get(LayerWeight::gate), &get(LayerWeight::up)}, mean_sizes(inputs.ffn));
  multiply_columns(get(LayerWeight::gate), scales);
  multiply_columns(get(LayerWeight::up), scales);
  divide_rows(get(LayerWeight::ffn_norm), scales);

  const std::vector<float> means =
      by_head_feature(config, by_value_feature(config, mean_sizes(inputs.heads)));
  scales =
      ScaleSearch(inputs.heads, rounding, n_threads).run({&get(LayerWeight::attention_out)}, means);
  multiply_columns(get(LayerWeight::attention_out), scales);
  divide_rows(get(LayerWeight::value), by_value_feature(config, scales));

  scales = ScaleSearch(inputs.attention, rounding, n_threads)
               .run({&get(LayerWeight::query), &get(LayerWeight::key), &get(LayerWeight::value)},
                    mean_sizes(inputs.attention));
  multiply_columns(get(LayerWeight::query), scales);
  multiply_columns(get(LayerWeight::key), scales);
  multiply_columns(get(LayerWeight::value), scales);
  divide_rows(get(LayerWeight::attention_norm), scales);
}

}  // namespace luna::model
