#include "core/engine/group_check.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace luna::engine {

Result<void> check_model(const model::CompiledModel& model, const model::StepLimits& limits) {
  if (limits.n_seqs_max == 0 || limits.n_positions_max == 0 || model.kv_block_tokens == 0 ||
      model.n_kv_blocks == 0 || model.shards.empty()) {
    return Error{Code::invalid_argument,
                 "model " + model.name +
                     ": its limits leave no room for a step: " + std::to_string(limits.n_rows_max) +
                     " rows, " + std::to_string(limits.n_seqs_max) + " sequences, " +
                     std::to_string(limits.n_positions_max) + " positions, " +
                     std::to_string(model.n_kv_blocks) + " KV blocks of " +
                     std::to_string(model.kv_block_tokens) + " tokens, " +
                     std::to_string(model.shards.size()) + " devices"};
  }
  const auto lacks = [](const model::StepOutputs& outputs) {
    return outputs.logits == nullptr || outputs.candidates == nullptr;
  };
  if (model.outputs.empty() || std::ranges::any_of(model.outputs, lacks) ||
      model.n_candidates == 0) {
    return Error{Code::invalid_argument,
                 "model " + model.name + ": it gives no logits or no candidates"};
  }
  return {};
}

Result<void> check_copy(const model::CompiledModel& first, const model::CompiledModel& other) {
  const auto differs = [&](const char* what, std::uint64_t a, std::uint64_t b) {
    return Error{Code::invalid_argument,
                 "model " + first.name + ": two groups of devices differ in " + what + ": " +
                     std::to_string(a) + " and " + std::to_string(b)};
  };
  const auto same = [&](const char* what, std::uint64_t a, std::uint64_t b) -> Result<void> {
    if (a == b) return {};
    return differs(what, a, b);
  };
  LUNA_TRY(same("layers", first.config.n_layers, other.config.n_layers));
  LUNA_TRY(same("vocabulary", first.config.vocab_size, other.config.vocab_size));
  LUNA_TRY(same("rows a step", first.limits.n_rows_max, other.limits.n_rows_max));
  LUNA_TRY(same("sequences a step", first.limits.n_seqs_max, other.limits.n_seqs_max));
  LUNA_TRY(same("logits a step", first.limits.n_out_rows_max, other.limits.n_out_rows_max));
  LUNA_TRY(same("context", first.limits.n_positions_max, other.limits.n_positions_max));
  LUNA_TRY(same("tokens of a KV block", first.kv_block_tokens, other.kv_block_tokens));
  LUNA_TRY(same("candidates a row", first.n_candidates, other.n_candidates));
  return same("share of a pruned prompt", first.prune_keep_percent, other.prune_keep_percent);
}

}  // namespace luna::engine
