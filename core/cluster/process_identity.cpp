#include "core/cluster/process_identity.hpp"

#include "core/base/log.hpp"
#include "core/model/arithmetic_probe.hpp"

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>
#include <unistd.h>

namespace luna::cluster {
namespace {

std::string name_space(const char* name) {
  std::error_code unknown;
  return std::filesystem::read_symlink(std::string("/proc/self/ns/") + name, unknown).string();
}

std::string text_of(const PluginIdentity& plugin) {
  return plugin.version + " (built for ABI minor " + std::to_string(plugin.abi_minor_built) + ")";
}

}  // namespace

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot + "/" + std::to_string(geteuid()) + "/" + name_space("pid") + "/" + name_space("mnt");
}

std::vector<PluginIdentity> plugin_identities(plugin::Catalog& catalog) {
  std::vector<PluginIdentity> identities;
  std::set<std::string> seen;
  for (const char* kind : {LUNA_KIND_BACKEND, LUNA_KIND_QUANT, LUNA_KIND_TRANSPORT}) {
    for (const std::string& name : catalog.names(kind)) {
      const auto library = catalog.load(kind, name);
      if (!library) {
        logger("cluster")->warn("plugin left out reason=\"{}\"", library.error().message());
        continue;
      }
      const luna_plugin& plugin = (*library)->descriptor();
      if (seen.insert(plugin.id).second)
        identities.push_back({plugin.id, plugin.version, plugin.abi_minor_built});
    }
  }
  std::ranges::sort(identities, {}, &PluginIdentity::id);
  return identities;
}

Result<void> check_same_plugins(const std::vector<PluginIdentity>& ours,
                                const std::vector<PluginIdentity>& theirs) {
  std::string different;
  for (const PluginIdentity& their : theirs) {
    const auto own = std::ranges::find(ours, their.id, &PluginIdentity::id);
    if (own == ours.end() || *own == their) continue;
    different += (different.empty() ? "" : "; ") + their.id + " is " + text_of(their) +
                 ", the controller's " + text_of(*own);
  }
  if (different.empty()) return {};
  return Error{Code::unsupported, "other plugins: " + different};
}

Result<std::vector<Fingerprint>> take_fingerprints(model::Device& device) {
  std::vector<Fingerprint> fingerprints;
  const luna_device_info& info = device.info();
  for (std::uint32_t numerics = 0; numerics < 32; ++numerics) {
    if ((info.numerics >> numerics & 1U) == 0) continue;
    for (std::uint32_t kv_dtype = 0; kv_dtype < 32; ++kv_dtype) {
      if ((info.kv_dtypes >> kv_dtype & 1U) == 0) continue;
      LUNA_TRY(const std::uint64_t hash, model::probe_arithmetic(device, numerics, kv_dtype));
      fingerprints.push_back({numerics, kv_dtype, hash});
    }
  }
  return fingerprints;
}

Result<void> check_same_arithmetic(const DeviceOffer& known, const DeviceOffer& offered) {
  std::string different;
  for (const Fingerprint& theirs : offered.fingerprints) {
    const auto ours = std::ranges::find_if(known.fingerprints, [&](const Fingerprint& f) {
      return f.numerics == theirs.numerics && f.kv_dtype == theirs.kv_dtype;
    });
    if (ours == known.fingerprints.end() || ours->hash == theirs.hash) continue;
    different += (different.empty() ? "" : ", ") + model::numerics_name(theirs.numerics) +
                 " with a KV cache of " + model::dtype_name(theirs.kv_dtype);
  }
  const bool has_common = std::ranges::any_of(offered.fingerprints, [&](const Fingerprint& theirs) {
    return std::ranges::any_of(known.fingerprints, [&](const Fingerprint& ours) {
      return ours.numerics == theirs.numerics && ours.kv_dtype == theirs.kv_dtype;
    });
  });
  if (different.empty() && has_common) return {};
  const std::string both = "device " + offered.name + " (" + offered.backend + ", " +
                           std::string(offered.info.detail) + ") and device " + known.name + " (" +
                           known.backend + ", " + std::string(known.info.detail) + ")";
  if (!has_common) return Error{Code::unsupported, both + " compute in no way that both have"};
  return Error{Code::unsupported,
               both + " compute different numbers in " + different +
                   "; a model's devices must compute the same"};
}

}  // namespace luna::cluster
