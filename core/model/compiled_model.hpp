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

/// Steps of a model that may be in flight at most: more than devices in a row would only make each
/// of them smaller and each answer slower.
inline constexpr std::uint32_t kLanesMax = 8;

/// How the KV blocks of a shard get out of their device and into it.
struct KvAccess {
  const luna_kv_blocks_if* table = nullptr;  ///< null: they cannot
  void* device = nullptr;
  std::uint64_t buffer = 0;
  luna_kv_layout layout{};
  std::uint64_t block_bytes = 0;  ///< of one block, all layers of the shard
  std::uint32_t first_layer = 0;  ///< of the model
};

/// One device's part of a model. The handles belong to the Model that made this.
struct Shard {
  std::string device_name;  ///< as in the TOML
  /// Devices with equal texts attend with equal bits over KV of equal layout.
  std::string attention;
  const luna_backend_if* backend = nullptr;
  void* executable = nullptr;
  KvAccess kv;
  /// By lane: KV, LOGITS, CANDIDATES, COMM, SLICES. The outputs are the lane's own.
  std::vector<std::vector<luna_bind>> binds;
};

/// Where the outputs of a lane's steps lie, in host memory.
struct StepOutputs {
  const float* logits = nullptr;  ///< [n_out_rows_max, vocab_size]
  /// [n_out_rows_max, n_candidates + 1]: the last of a row holds the log-sum-exp as its logit.
  const Candidate* candidates = nullptr;
};

/// What the engine needs to run steps. All shards run each step; the last one fills the outputs.
/// A lane is what one step in flight has for itself: with as many as there are devices, each device
/// can work on another step.
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
  std::vector<StepOutputs> outputs;        ///< by lane
  /// Copies of the model whose devices hold slices of each other's sequences have the same set;
  /// null: they hold none. SliceLinks makes it, before anything runs the copy.
  const void* slice_set = nullptr;
  std::uint32_t slice_place = 0;  ///< in the set: luna_slice.peer
  /// Ends every wait of one shard for another, for good: called when a shard failed while others
  /// run, so that no step hangs. Null: the shards never wait. [engine]
  void (*abort_comms)(void* context) = nullptr;
  void* abort_context = nullptr;
  /// Whether a device is gone for good, so that every step fails. Null: none can go. [engine]
  bool (*has_lost_device)(const void* context) = nullptr;
  const void* device_context = nullptr;

  [[nodiscard]] bool is_lost() const {
    return has_lost_device != nullptr && has_lost_device(device_context);
  }

  [[nodiscard]] std::uint32_t n_lanes() const { return static_cast<std::uint32_t>(outputs.size()); }
};

}  // namespace luna::model
