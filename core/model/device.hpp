// A device that is open: a backend's handle, its budget, and who closes it.
#pragma once

#include "core/plugin/instance.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

namespace luna::model {

class ShardPlanner;

/// How a device shall be opened.
struct DeviceOptions {
  std::string name;                // as in the TOML: "a0"
  std::uint32_t index = 0;         // of the backend's devices
  std::uint64_t memory_bytes = 0;  // budget for weights, scratch and KV of all its models
  std::uint32_t n_threads = 0;     // 0: the backend decides
  std::uint32_t first_cpu = 0;     // position in the process's affinity mask
};

/// Owns an open device, or stands for one of another process. The backend's instance outlives it,
/// it outlives the models that use it. A resource: kept behind a pointer, so that models may refer
/// to it. [start-up]
class Device {
 public:
  /// Errors  not_found: the backend has no device of that index; what the backend answers
  static Result<std::unique_ptr<Device>> open(const plugin::Instance<luna_backend_if>& backend,
                                              const DeviceOptions& options);
  /// A device of another process: shards on it are made by `planner`, which outlives it.
  static std::unique_ptr<Device> remote(const DeviceOptions& options,
                                        std::string backend_name,
                                        const luna_device_info& info,
                                        bool can_slice,
                                        ShardPlanner& planner);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] const std::string& backend_name() const { return backend_name_; }
  /// Who makes shards on it; null: a device of this process, which has the two below.
  [[nodiscard]] ShardPlanner* planner() const { return planner_; }
  [[nodiscard]] const luna_backend_if& backend() const { return *backend_; }
  [[nodiscard]] void* handle() const { return handle_; }
  /// An extension of its backend; null where that has none, or is in another process.
  [[nodiscard]] const void* extension(const char* id) const {
    if (backend_ == nullptr || backend_->head.ext == nullptr) return nullptr;
    return backend_->head.ext(backend_self_, id);
  }
  /// How KV blocks get out of it and into it; null: the backend cannot copy them.
  [[nodiscard]] const luna_kv_blocks_if* kv_blocks() const {
    return static_cast<const luna_kv_blocks_if*>(extension(LUNA_EXT_KV_BLOCKS));
  }
  /// Whether copies of a model on it and on devices that compute alike may hold slices of each
  /// other's sequences.
  [[nodiscard]] bool can_slice() const {
    if (planner_ != nullptr) return can_slice_there_;
    return extension(LUNA_EXT_SLICES) != nullptr && extension(LUNA_EXT_KV_BLOCKS) != nullptr;
  }
  /// What the backend said of the device before it was opened.
  [[nodiscard]] const luna_device_info& info() const { return info_; }

  /// As it was asked for; 0: as many as the backend likes.
  [[nodiscard]] std::uint32_t n_threads() const { return options_.n_threads; }
  /// Position of its first thread's core; beyond the last one comes the first.
  [[nodiscard]] std::uint32_t first_cpu() const { return options_.first_cpu; }

  /// The budget, and what of it no model has taken yet and is not held back.
  [[nodiscard]] std::uint64_t memory_bytes() const { return options_.memory_bytes; }
  [[nodiscard]] std::uint64_t memory_bytes_left() const {
    return memory_bytes_left_ - std::min(memory_bytes_left_, held_back_bytes_);
  }
  /// So much of what is left is for models that will be loaded later; replaces what was said
  /// before.
  void hold_back(std::uint64_t bytes) { held_back_bytes_ = bytes; }
  /// A model takes bytes, or gives them back when it ends.
  void take_memory(std::uint64_t bytes);
  void give_memory_back(std::uint64_t bytes);

 private:
  Device() = default;

  DeviceOptions options_;
  std::string backend_name_;
  const luna_backend_if* backend_ = nullptr;
  void* backend_self_ = nullptr;
  void* handle_ = nullptr;
  ShardPlanner* planner_ = nullptr;
  bool can_slice_there_ = false;
  luna_device_info info_{};
  std::uint64_t memory_bytes_left_ = 0;  // held back or not
  std::uint64_t held_back_bytes_ = 0;
};

/// "i12", "bf16" ... of a LUNA_NUMERICS_* or LUNA_DTYPE_* number, for messages.
std::string numerics_name(std::uint32_t numerics);
std::string dtype_name(std::uint32_t dtype);

}  // namespace luna::model
