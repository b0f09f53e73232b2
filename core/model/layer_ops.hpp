// The ops that layers are written with. The same calls write a whole layer and one device's part of
// a tensor split, whose activations are joined where the next op needs all columns.
#pragma once

#include "core/model/layer_columns.hpp"
#include "core/model/layer_weight.hpp"
#include "core/model/model_config.hpp"
#include "core/model/program_builder.hpp"

#include <luna/op_program.hpp>

#include <optional>
#include <span>
#include <string_view>

namespace luna::model {

/// Base of a program's writer, and what an Architecture's write_layer() sees of it. Weights are
/// named as the layer has them. Config, shard and weights outlive it. [start-up]
class LayerOps {
 public:
  /// RMS norm over hidden_size.
  ViewId norm(ViewId x, LayerWeight weight) { return norm_by_name(x, layer_name(weight)); }
  /// RMS norm of each head of q or k on its own, in place.
  void norm_heads(ViewId x, LayerWeight weight);
  /// x W^T (+ bias), without joining.
  ViewId linear(ViewId x, LayerWeight weight, std::optional<LayerWeight> bias = std::nullopt);
  /// Rotates q and k, keeps k and v, attends, joins: [n, n_heads * head_dim].
  ViewId attend(ViewId q, ViewId k, ViewId v);
  /// act(gate) * up, joined. kind: LUNA_ACT_*
  ViewId act_mul(ViewId gate, ViewId up, std::uint32_t kind) {
    return joined(b_.act_mul(gate, up, kind), ffn_columns(config_));
  }
  /// linear() back to [n, hidden_size], joined.
  ViewId project(ViewId x, LayerWeight weight) {
    return joined(linear(x, weight), hidden_columns(config_));
  }
  /// Which experts take each row, and with which weight: [n, n_experts].
  ViewId route(ViewId x, LayerWeight router) {
    return b_.moe_route(linear(x, router), config_.experts.n_used, config_.experts.normalizes);
  }
  /// x W^T by each row's experts, side by side. x has one slot, or one an expert.
  ViewId expert_linear(ViewId x, ViewId routes, LayerWeight weight);
  /// act(gate) * up of each row's experts; nothing is joined.
  ViewId expert_act_mul(ViewId gate, ViewId up, std::uint32_t kind) {
    return b_.act_mul(gate, up, kind);
  }
  /// What a row's experts found, weighted: [n, hidden_size].
  ViewId expert_sum(ViewId x, ViewId routes) {
    return b_.moe_sum(x, routes, config_.experts.n_used);
  }
  /// Columns [first, first + n) of an activation.
  ViewId columns(ViewId x, std::uint32_t first, std::uint32_t n) { return b_.columns(x, first, n); }
  /// x += y
  void add(ViewId x, ViewId y) { b_.add_in_place(x, y); }

  [[nodiscard]] const ModelConfig& config() const { return config_; }

 protected:
  LayerOps(const ModelConfig& config,
           const ShardSpec& shard,
           std::span<const ShardWeight> weights,
           const ProgramLimits& limits);

  /// Before the first layer.
  void write_constants();
  /// All layers of the shard, one after the other.
  void write_layers(ViewId x);
  ViewId embed();
  /// The logits of normed rows, as the model defines them. `logits` has all columns.
  void finish_logits(ViewId logits, std::uint32_t n_candidates);

  ViewId norm_by_name(ViewId x, std::string_view name);
  ViewId linear_by_name(ViewId x, std::string_view name);
  /// By the weight's place, into columns of y.
  void linear_into(ViewId x, std::uint32_t index, ViewId y);
  ViewId matrix(std::uint32_t index);
  [[nodiscard]] std::uint32_t index_of(std::string_view name) const;

  const ModelConfig& config_;
  const ShardSpec& shard_;
  const std::span<const ShardWeight> weights_;
  ProgramBuilder b_;

 private:
  [[nodiscard]] std::string layer_name(LayerWeight weight) const;
  [[nodiscard]] std::uint32_t kv_layer() const { return layer_ - shard_.layers.first; }
  void rotate(ViewId x, std::uint32_t n_heads);
  void prune(ViewId q);
  /// The columns of all ranks; of a whole layer, what it was given.
  ViewId joined(ViewId part, const Columns& columns);
  /// By the rows of the whole model's weight, however few of them are here.
  [[nodiscard]] LinearNumerics numerics_of(std::uint32_t index) const;

  const std::uint32_t numerics_;  // LUNA_NUMERICS_*
  const std::uint32_t n_positions_max_;
  const bool prunes_;
  const std::uint32_t n_heads_;  // of this device
  const std::uint32_t n_kv_heads_;
  ViewId frequencies_;
  ViewId local_frequencies_;
  std::uint32_t layer_ = 0;  // that is being written
};

}  // namespace luna::model
