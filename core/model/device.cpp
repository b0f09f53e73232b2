#include "core/model/device.hpp"

#include "core/base/assert.hpp"

#include <luna/plugin.hpp>

#include <utility>

namespace luna::model {

Result<std::unique_ptr<Device>> Device::open(const plugin::Instance<luna_backend_if>& backend,
                                             const DeviceOptions& options) {
  const std::string where = "device " + options.name;
  auto device = std::unique_ptr<Device>(new Device);
  device->options_ = options;
  device->backend_name_ = backend.name();
  device->backend_ = &backend.table();
  device->backend_self_ = backend.self();
  device->memory_bytes_left_ = options.memory_bytes;
  device->info_.struct_size = sizeof(luna_device_info);
  const luna_status found = backend->device_info(backend.self(), options.index, &device->info_);
  if (found != LUNA_OK) {
    return Error{
        Code::not_found,
        where + ": backend " + backend.name() + " has no device " + std::to_string(options.index)};
  }
  luna_device_open request{};
  request.struct_size = sizeof(request);
  request.index = options.index;
  request.memory_bytes = options.memory_bytes;
  request.n_threads = options.n_threads;
  request.first_cpu = options.first_cpu;
  luna_err err = make_err();
  const luna_status status = backend->open(backend.self(), &request, &device->handle_, &err);
  LUNA_TRY(to_result(status, err, where + ": open"));
  return device;
}

std::unique_ptr<Device> Device::remote(const DeviceOptions& options,
                                       std::string backend_name,
                                       const luna_device_info& info,
                                       bool can_slice,
                                       ShardPlanner& planner) {
  auto device = std::unique_ptr<Device>(new Device);
  device->options_ = options;
  device->backend_name_ = std::move(backend_name);
  device->planner_ = &planner;
  device->can_slice_there_ = can_slice;
  device->info_ = info;
  device->memory_bytes_left_ = options.memory_bytes;
  return device;
}

Device::~Device() {
  if (handle_ != nullptr) backend_->close(handle_);
}

void Device::take_memory(std::uint64_t bytes) {
  LUNA_VERIFY(bytes <= memory_bytes_left_);
  memory_bytes_left_ -= bytes;
}

void Device::give_memory_back(std::uint64_t bytes) {
  memory_bytes_left_ += bytes;
  LUNA_VERIFY(memory_bytes_left_ <= options_.memory_bytes);
}

std::string numerics_name(std::uint32_t numerics) {
  switch (numerics) {
    case LUNA_NUMERICS_F32:
      return "f32";
    case LUNA_NUMERICS_I12:
      return "i12";
    case LUNA_NUMERICS_I8:
      return "i8";
    case LUNA_NUMERICS_BF16:
      return "bf16";
    default:
      return std::to_string(numerics);
  }
}

std::string dtype_name(std::uint32_t dtype) {
  switch (dtype) {
    case LUNA_DTYPE_F32:
      return "f32";
    case LUNA_DTYPE_F16:
      return "f16";
    case LUNA_DTYPE_BF16:
      return "bf16";
    case LUNA_DTYPE_I8:
      return "int8";
    default:
      return std::to_string(dtype);
  }
}

}  // namespace luna::model
