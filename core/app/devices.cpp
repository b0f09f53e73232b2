#include "core/app/devices.hpp"

#include <optional>
#include <string>
#include <utility>

namespace luna::app {
namespace {

Result<DataTransport> open_transport(plugin::Catalog& catalog,
                                     const std::string& name,
                                     const config::TransportSettings& settings) {
  config::RawGroup own;
  own.table = "transport." + name;
  if (const auto found = settings.transports.find(name); found != settings.transports.end())
    own = found->second;
  LUNA_TRY(auto transport, catalog.create<luna_transport_if>(name, own));
  const void* table = transport->head.ext(transport.self(), LUNA_EXT_COLLECTIVE);
  if (table == nullptr)
    return Error{Code::unsupported,
                 "transport '" + name + "' has no " + LUNA_EXT_COLLECTIVE +
                     ": it cannot carry activations between devices"};
  model::Collective collective;
  collective.table = static_cast<const luna_collective_if*>(table);
  collective.self = transport.self();
  collective.transport = name;
  return DataTransport{std::move(transport), std::move(collective)};
}

}  // namespace

Result<OpenDevice> open_device(plugin::Catalog& catalog,
                               const config::DeviceSettings& wanted,
                               std::uint32_t first_cpu) {
  LUNA_TRY(auto backend, catalog.create<luna_backend_if>(wanted.backend, wanted.own));
  model::DeviceOptions options;
  options.name = wanted.name;
  options.index = wanted.index;
  options.memory_bytes = wanted.memory_bytes;
  options.n_threads = wanted.n_threads;
  options.first_cpu = first_cpu;
  auto device = model::Device::open(backend, options);
  if (!device) return device.error().in("device '" + wanted.name + "'");
  return OpenDevice{std::move(backend), std::move(*device)};
}

Result<DataTransport> choose_transport(plugin::Catalog& catalog,
                                       const config::TransportSettings& settings) {
  if (settings.data != "auto") return open_transport(catalog, settings.data, settings);
  std::optional<DataTransport> best;
  std::uint64_t best_latency_ns = 0;
  std::string reasons;
  for (const std::string& name : catalog.names(LUNA_KIND_TRANSPORT)) {
    auto opened = open_transport(catalog, name, settings);
    if (!opened) {
      reasons += "\n  " + opened.error().message();
      continue;
    }
    luna_transport_caps caps{};
    caps.struct_size = sizeof(caps);
    if (opened->transport->caps(opened->transport.self(), &caps) < 0) continue;
    if (best && caps.latency_ns >= best_latency_ns) continue;
    best_latency_ns = caps.latency_ns;
    best = std::move(*opened);
  }
  if (!best)
    return Error{
        Code::not_found,
        "transport.data = \"auto\": no installed transport connects devices of one process" +
            reasons};
  return std::move(*best);
}

}  // namespace luna::app
