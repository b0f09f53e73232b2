// A model that is ready to run: what the loader makes and the engine's step runner drives.
#pragma once

#include "core/model/model_config.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace luna::model {

/// One candidate of a logits row, as LUNA_OP_TOP_CANDIDATES lays it out.
struct Candidate {
  float logit;
  std::uint32_t token_id;
};

/// Bounds of one step; every array of the engine is sized by them once.
struct StepLimits {
  std::uint32_t n_rows_max = 0;       ///< token rows of a step
  std::uint32_t n_seqs_max = 0;       ///< sequences of a step
  std::uint32_t n_out_rows_max = 0;   ///< rows whose logits are wanted
  std::uint32_t n_positions_max = 0;  ///< longest sequence, prompt and output together
};

/// One device's part of a model. The handles belong to the Model that made this.
struct Shard {
  std::string device_name;  ///< as in the TOML
  const luna_backend_if* backend = nullptr;
  void* executable = nullptr;
  std::vector<luna_bind> binds;  ///< KV, LOGITS, CANDIDATES, COMM: the same every step
};

/// What the engine needs to run steps. All shards run each step; the last one fills the outputs.
struct CompiledModel {
  std::string name;  ///< of the model in the TOML: "main"
  ModelConfig config;
  StepLimits limits;
  std::vector<Shard> shards;  ///< in layer order
  std::uint32_t kv_block_tokens = 0;
  std::uint32_t n_kv_blocks = 0;           ///< the same block ids on every shard
  std::uint64_t kv_block_bytes = 0;        ///< of one block, all shards together
  std::uint32_t prune_keep_percent = 100;  ///< of a prompt's KV, once it is computed
  std::uint32_t n_candidates = 0;          ///< candidates a row
  const float* logits = nullptr;           ///< [n_out_rows_max, vocab_size], host memory
  /// [n_out_rows_max, n_candidates + 1]: the last of a row holds the log-sum-exp as its logit.
  const Candidate* candidates = nullptr;
  /// Ends every wait of one shard for another, for good: called when a shard failed while others
  /// run, so that no step hangs. Null: the shards never wait. [engine]
  void (*abort_comms)(void* context) = nullptr;
  void* abort_context = nullptr;
};

}  // namespace luna::model
