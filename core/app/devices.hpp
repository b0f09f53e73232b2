// Devices and transports as the settings name them.
#pragma once

#include "core/config/settings.hpp"
#include "core/model/device.hpp"
#include "core/model/model_loader.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/instance.hpp"

#include <luna/abi/backend.h>
#include <luna/abi/transport.h>
#include <luna/result.hpp>

#include <cstdint>
#include <memory>

namespace luna::app {

/// A device and the backend's instance it came from, which outlives it.
struct OpenDevice {
  plugin::Instance<luna_backend_if> backend;
  std::unique_ptr<model::Device> device;
};

/// Makes the backend and opens the device. [start-up]
///
/// first_cpu   position of its first thread's core: devices of one process share no core while
/// there
///             are enough
Result<OpenDevice> open_device(plugin::Catalog& catalog,
                               const config::DeviceSettings& wanted,
                               std::uint32_t first_cpu);

/// A transport and its communicators for programs.
struct DataTransport {
  plugin::Instance<luna_transport_if> transport;
  model::Collective collective;
};

/// The transport that the settings name; for "auto" the one with the least latency among those that
/// have communicators. [start-up]
/// Errors  those of the catalog; unsupported (no communicators); not_found (auto: none is
/// installed)
Result<DataTransport> choose_transport(plugin::Catalog& catalog,
                                       const config::TransportSettings& settings);

}  // namespace luna::app
