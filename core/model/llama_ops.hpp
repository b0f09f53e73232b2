// What the writers of a llama's programs share: its ops over weights known by name.
#pragma once

#include "core/base/assert.hpp"
#include "core/model/model_config.hpp"
#include "core/model/program_builder.hpp"

#include <luna/op_program.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace luna::model {

/// Base of a writer; appends to one builder. config and weights outlive it.
class LlamaOps {
 protected:
  LlamaOps(const ModelConfig& config,
           std::span<const ShardWeight> weights,
           const ProgramLimits& limits)
      : config_(config), weights_(weights), numerics_(limits.numerics), b_(limits) {}

  void rotate(ViewId x, std::uint32_t n_heads) {
    b_.rope_in_place(x,
                     frequencies_,
                     {.n_heads = n_heads,
                      .head_dim = config_.head_dim,
                      .n_rot = config_.rope.n_rot,
                      .style = static_cast<std::uint32_t>(
                          config_.rope.interleaved ? LUNA_ROPE_INTERLEAVED : LUNA_ROPE_HALVES),
                      .magnitude = static_cast<float>(config_.rope.magnitude)});
  }

  ViewId norm(ViewId x, std::string_view name) {
    const std::uint32_t index = index_of(name);
    return b_.rms_norm(x, b_.weight(index, config_.hidden_size), config_.norm_eps);
  }

  ViewId linear(ViewId x, std::string_view name) {
    const std::uint32_t index = index_of(name);
    const ViewId y = b_.linear(x, matrix(index), numerics_of(index));
    b_.set_last_op_bytes(weights_[index].file_bytes);
    return y;
  }
  /// As linear(), by the weight's place, into columns of y.
  void linear_into(ViewId x, std::uint32_t index, ViewId y) {
    b_.linear_into(x, matrix(index), numerics_of(index), std::nullopt, y);
    b_.set_last_op_bytes(weights_[index].file_bytes);
  }

  ViewId matrix(std::uint32_t index) {
    const luna_weight_desc& desc = weights_[index].desc;
    return b_.weight(
        index, static_cast<std::uint32_t>(desc.n_rows), static_cast<std::uint32_t>(desc.n_cols));
  }

  [[nodiscard]] std::uint32_t index_of(std::string_view name) const {
    const auto found = std::ranges::find(weights_, name, &ShardWeight::name);
    LUNA_VERIFY(found != weights_.end());
    return static_cast<std::uint32_t>(found - weights_.begin());
  }

  const ModelConfig& config_;
  const std::span<const ShardWeight> weights_;
  const std::uint32_t numerics_;  // LUNA_NUMERICS_*
  ProgramBuilder b_;
  ViewId frequencies_;

 private:
  /// By the rows of the whole model's weight, however few of them are here.
  [[nodiscard]] LinearNumerics numerics_of(std::uint32_t index) const {
    const ShardWeight& weight = weights_[index];
    return linear_numerics(weight.desc, weight.n_rows_total(), numerics_);
  }
};

}  // namespace luna::model
