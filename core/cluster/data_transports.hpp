// The transports that carry hidden states and slices between the processes of a cluster.
#pragma once

#include "core/cluster/messages.hpp"
#include "core/config/settings.hpp"
#include "core/model/device_link.hpp"
#include "core/plugin/catalog.hpp"

#include <luna/abi/transport.h>
#include <luna/result.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

/// What transports are told about the cluster, where their own settings do not say it.
struct TransportTerms {
  std::string run;   ///< a name that its processes share
  std::string host;  ///< where others reach this process
  std::optional<std::filesystem::path> token_file;
};

/// Opens a transport when it is first used; owns them until clear(). Owned by App or Worker,
/// outlives the shards. [start-up]
class DataTransports {
 public:
  /// catalog, settings  outlive it
  DataTransports(plugin::Catalog& catalog, const config::TransportSettings& settings)
      : catalog_(catalog), settings_(settings) {}

  /// Those that can be opened and carry collectives, with how far they reach.
  std::vector<TransportOffer> offers();
  /// From now on they are opened with these terms; those that are open were opened with others and
  /// are closed. Nothing uses them.
  void set_terms(TransportTerms terms);
  /// Errors  those of the plugin; unsupported: it carries no collectives
  Result<model::Collective> open(const std::string& name);

 private:
  struct Open {
    plugin::Instance<luna_transport_if> transport;
    model::Collective collective;
  };
  Result<Open> create(const std::string& name);
  Result<config::RawGroup> settings_of(const std::string& name);

  plugin::Catalog& catalog_;
  const config::TransportSettings& settings_;
  TransportTerms terms_;
  std::map<std::string, Open> open_;
};

/// One process with devices, as the choice of a transport sees it.
struct DataEndpoint {
  std::string name;  ///< for messages
  std::string host;  ///< host_identity()
  std::uint64_t process_id = 0;
  std::vector<TransportOffer> transports;
};

/// The nearest transport that all of them have and that reaches from each to each.
///
/// wanted  "auto", or the transport's name
/// Errors  not_found: who lacks what
Result<std::string> choose_transport(const std::string& wanted,
                                     const std::vector<DataEndpoint>& endpoints);

}  // namespace luna::cluster
