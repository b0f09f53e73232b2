// A shard on a device of this process.
#pragma once

#include "core/model/device_link.hpp"
#include "core/model/device_shard.hpp"
#include "core/model/slice_ends.hpp"
#include "core/model/weight_source.hpp"
#include "core/model/weight_store.hpp"

#include <luna/result.hpp>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::model {

/// An open model file with what it says of the model, for all shards that this process makes of it.
struct ModelFile {
  std::unique_ptr<WeightFile> file;
  ModelConfig config;

  /// Opens and checks; reads no weight. [start-up]
  /// Errors  not_found, corrupt, unsupported: of the file, which they name
  static Result<ModelFile> open(const std::filesystem::path& path);
};

/// What a local shard is made with. Everything pointed to outlives it, but for the plugins of
/// `quants`, which are used until it is packed.
struct LocalShardParts {
  Device* device = nullptr;
  std::shared_ptr<const ModelFile> file;  ///< shared by the shards that are not packed yet
  QuantInstances quants;
  std::optional<Collective> collective;  ///< needed where the order has several ranks
  std::optional<Collective> slices;      ///< and where it has n_slice_peers
  std::uint32_t n_load_threads = 0;      ///< 0: one per usable hardware thread
  /// Weights that are packed already, and where this shard's go at its end; null: none. For models
  /// with an identity. What of it the shard does not want stays as far as spare_bytes_max() goes.
  WeightStore* store = nullptr;
};

/// Owns weights, program, KV, outputs and the communicator of one rank on one device.
class LocalShard final : public DeviceShard {
 public:
  /// Opens the parts of the file that it needs, describes the weights, writes the program and asks
  /// the backend what all of it takes.
  ///
  /// Errors  of the file; unsupported: what the device cannot compute, by name; what the backend
  ///         or the transport answers
  static Result<std::unique_ptr<LocalShard>> plan(const ShardOrder& order, LocalShardParts parts);
  ~LocalShard() override;

  [[nodiscard]] const ShardMemory& memory() const override { return memory_; }
  [[nodiscard]] const std::string& address() const override;
  Result<void> pack(const LoadProgress& progress) override;
  Result<void> bind(std::uint32_t n_kv_blocks, const LinkTerms& terms) override;
  [[nodiscard]] const Shard& shard() const override { return shard_; }
  [[nodiscard]] std::span<const StepOutputs> outputs() const override { return outputs_; }
  void abort() override;
  [[nodiscard]] std::uint64_t slice_message_bytes() const override;
  [[nodiscard]] const std::string& slice_address() const override;
  Result<void> open_slices(const SliceTerms& terms) override;
  void abort_slices(std::uint32_t place) override;
  void close_slices(std::uint32_t place) override;
  /// Ends every wait for other ranks and copies: its process forgets it. [any]
  void abort_all();

  /// The device's models are about to take so much more: of what no shard uses, the rest goes.
  void limit_spares(std::uint64_t n_bytes_coming);

  [[nodiscard]] Device& device() const { return *parts_.device; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }

 private:
  struct Buffer {
    std::uint64_t handle = 0;
    void* host = nullptr;
  };

  LocalShard(const ShardOrder& order, LocalShardParts parts);
  [[nodiscard]] Result<ShardSpec> make_spec() const;
  Result<void> open_weights();
  Result<void> write_program();
  [[nodiscard]] Result<void> check_support() const;
  Result<void> plan_memory();
  Result<void> load_missing(const LoadProgress& progress);
  [[nodiscard]] std::string key_of(const std::string& weight) const {
    return WeightStore::key(order_.identity, order_.program.numerics, weight);
  }
  Result<void> compile();
  Result<Buffer> alloc(std::uint32_t kind, std::uint64_t bytes);
  Result<void> bind_outputs(StepOutputs& outputs, std::vector<luna_bind>& binds);

  const ShardOrder order_;
  LocalShardParts parts_;
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;  // until it is packed
  std::optional<ShardDraft> draft_;
  std::optional<DeviceLink> link_;     // where there are several ranks
  std::unique_ptr<SliceEnds> slices_;  // where there are other copies
  ShardMemory memory_;

  std::vector<std::uint64_t> weights_;  // handles; what follows is empty until it is there
  bool is_packed_ = false;              // all of them are whole
  void* executable_ = nullptr;
  std::atomic<const luna_comm*> comm_{nullptr};  // for abort()
  std::atomic<bool> is_aborted_{false};
  std::vector<std::uint64_t> buffers_;
  Shard shard_;
  std::vector<StepOutputs> outputs_;  // by lane
};

/// The terms of a rank's link, but for group and addresses.
LinkTerms link_terms(const ShardOrder& order, const ModelConfig& config);

}  // namespace luna::model
