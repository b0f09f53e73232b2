// What one process of a cluster says of itself, so that others know whether they fit it.
#pragma once

#include "core/cluster/messages.hpp"
#include "core/plugin/catalog.hpp"

#include <luna/result.hpp>

#include <string>
#include <vector>

namespace luna::cluster {

/// Equal for two processes that may share memory: the same boot of one kernel, user, and name
/// spaces of processes and files. [start-up]
std::string host_identity();

/// The plugins of a process whose results depend on them: backends, formats, transports. Loads
/// each; those that do not load are left out. [start-up]
std::vector<PluginIdentity> plugin_identities(plugin::Catalog& catalog);

/// Whether two sets fit: what both have must be the same.
/// Errors  unsupported: each plugin that differs, with both versions
Result<void> check_same_plugins(const std::vector<PluginIdentity>& ours,
                                const std::vector<PluginIdentity>& theirs);

/// What a device computes of the probe, in every way it has. [start-up]
/// Errors  what the backend answers
Result<std::vector<Fingerprint>> take_fingerprints(model::Device& device);

/// Whether two devices compute alike, as far as both compute.
/// Errors  unsupported: the ways in which they differ
Result<void> check_same_arithmetic(const DeviceOffer& known, const DeviceOffer& offered);

}  // namespace luna::cluster
