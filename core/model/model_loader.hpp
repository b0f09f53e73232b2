// From a model file to a model that runs: placed, decoded, packed, compiled, with its KV.
#pragma once

#include "core/model/compiled_model.hpp"
#include "core/model/device.hpp"
#include "core/model/device_link.hpp"
#include "core/model/device_shard.hpp"
#include "core/model/layout_survey.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/placement.hpp"
#include "core/model/weight_loader.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::model {

/// What to load, and how it shall compute.
struct ModelOptions {
  std::string name;                               // in the TOML: "main"
  std::filesystem::path path;                     // a GGUF file, or a folder of shards
  std::string source;                             // the path or name in the TOML, for workers
  std::uint32_t numerics = LUNA_NUMERICS_I12;     // LUNA_NUMERICS_*
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;       // LUNA_DTYPE_*
  std::uint32_t kv_block_tokens = 32;             // a power of two in 32..256
  std::uint32_t prune_keep_percent = 100;         // of a prompt's KV, once it is computed
  std::optional<std::uint32_t> kv_blocks_max;     // none: all memory that is left
  StepLimits limits;                              // n_positions_max 0: the trained length
  std::optional<std::vector<LayerRange>> layers;  // a range a device; none: by speed or bytes
  SpeedOptions speed;                             // where there are no ranges and several devices
  bool is_tensor_split = false;     // a part of every layer on each device, instead of ranges
  std::uint32_t n_candidates = 64;  // of a row; at most the vocabulary
  std::uint32_t n_lanes = 0;  // steps in flight; 0: one a device, at most 8; of a tensor split one
  std::uint32_t n_slice_peers = 0;   // copies of it that hold slices for each other
  std::uint32_t n_load_threads = 0;  // 0: one per usable hardware thread
  LoadProgress progress;             // may be empty
};

/// What a model is loaded with. Everything outlives the model, but for the quantization plugins,
/// which are used while it loads.
struct ModelResources {
  QuantInstances quants;
  /// Each named once; in layer order, but for those of other processes that hold a part of the
  /// layers: these stand where it lies.
  std::span<Device* const> devices;
  std::optional<Collective> collective;  // needed for two devices or more
  /// With n_slice_peers: between devices of copies. None: `collective`.
  std::optional<Collective> slices = std::nullopt;
};

/// Owns a loaded model: weights, programs, KV and outputs on its devices. App owns it; it outlives
/// the engine that runs it. [start-up]
class Model {
 public:
  /// Opens the file, places layers, describes the weights, plans memory, packs the weights in
  /// parallel, compiles, allocates KV and outputs, and connects the devices. The file is closed
  /// again. Nothing stays behind when it fails.
  ///
  /// Errors  not_found, corrupt, unsupported: of the file; unsupported: what a device cannot
  ///         compute, by name; exhausted: a device's budget, with the numbers; invalid_argument
  /// Cost    reads every weight once
  static Result<std::unique_ptr<Model>> load(const ModelOptions& options,
                                             const ModelResources& resources);
  /// Has devices of other processes answer what load() will ask of them before it places layers, so
  /// that one that was never timed is timed now. Loads nothing.
  ///
  /// Errors  as load()
  static Result<void> survey_devices(const ModelOptions& options, const ModelResources& resources);
  /// What choose_layout() judges by: the model and these devices, weighed and timed, and the link
  /// between them; with n_slice_peers, what slices take of a device. Loads nothing.
  ///
  /// Errors  of the file, as load(); of a probe; unsupported: a device of another process
  static Result<LayoutProblem> describe_layout(const ModelOptions& options,
                                               const ModelResources& resources);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  /// No step is running.
  ~Model();

  [[nodiscard]] const CompiledModel& compiled() const { return compiled_; }
  /// For SliceLinks, before anything runs it.
  [[nodiscard]] CompiledModel& linkable() { return compiled_; }
  /// In the order of compiled().shards.
  [[nodiscard]] std::vector<DeviceShard*> shards() const;
  /// Whether a device is gone for good, with its process. [any]
  [[nodiscard]] bool is_lost() const;
  [[nodiscard]] const MemoryPlan& memory() const { return memory_; }
  /// The layers of each shard, in the order of compiled().shards; of a tensor split all in each.
  [[nodiscard]] std::span<const LayerRange> layers() const { return layers_; }

  /// Wakes devices that wait for each other inside a step, now and later: a step has failed on one
  /// of them. The model computes nothing after it. [any]
  void abort_steps();

 private:
  friend class ModelLoader;
  /// What the model holds on one device.
  struct Holding {
    Device* device = nullptr;
    std::uint64_t memory_bytes = 0;  // of the device's budget
    std::unique_ptr<DeviceShard> shard;
  };
  Model() = default;

  CompiledModel compiled_;
  MemoryPlan memory_;
  std::vector<LayerRange> layers_;
  std::vector<Holding> holdings_;  // in layer order
};

}  // namespace luna::model
