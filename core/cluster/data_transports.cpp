#include "core/cluster/data_transports.hpp"

#include "core/base/log.hpp"
#include "core/plugin/settings_rows.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace luna::cluster {
namespace {

std::string_view reach_text(std::uint32_t reach) {
  if (reach <= LUNA_REACH_PROCESS) return "within one process";
  return reach == LUNA_REACH_HOST ? "within one host" : "between hosts";
}

/// What carries collectives, or null.
const luna_collective_if* collective_of(const plugin::Instance<luna_transport_if>& transport) {
  return static_cast<const luna_collective_if*>(
      transport->head.ext(transport.self(), LUNA_EXT_COLLECTIVE));
}

const TransportOffer* find(const DataEndpoint& endpoint, const std::string& name) {
  const auto found = std::ranges::find(endpoint.transports, name, &TransportOffer::name);
  return found == endpoint.transports.end() ? nullptr : &*found;
}

std::uint32_t needed_reach(const std::vector<DataEndpoint>& endpoints) {
  const auto differ = [&](auto member) {
    return std::ranges::any_of(endpoints, [&](const DataEndpoint& endpoint) {
      return endpoint.*member != endpoints.front().*member;
    });
  };
  if (differ(&DataEndpoint::host)) return LUNA_REACH_NETWORK;
  return differ(&DataEndpoint::process_id) ? LUNA_REACH_HOST : LUNA_REACH_PROCESS;
}

/// Why a transport does not join the endpoints; empty: it does.
std::string objection(const std::string& name,
                      const std::vector<DataEndpoint>& endpoints,
                      std::uint32_t needed) {
  for (const DataEndpoint& endpoint : endpoints) {
    const TransportOffer* offer = find(endpoint, name);
    if (offer == nullptr) return name + ": " + endpoint.name + " does not have it";
    if (offer->reach < needed)
      return name + ": it reaches " + std::string(reach_text(offer->reach));
  }
  return {};
}

}  // namespace

std::vector<TransportOffer> DataTransports::offers() {
  std::vector<TransportOffer> offers;
  for (const std::string& name : catalog_.names(LUNA_KIND_TRANSPORT)) {
    const auto library = catalog_.load(LUNA_KIND_TRANSPORT, name);
    if (!library) continue;
    // Its reach is asked of an instance, which is not used any further.
    auto made = create(name);
    if (!made) {
      logger("cluster")->info("transport not offered reason=\"{}\"", made.error().message());
      continue;
    }
    luna_transport_caps caps{};
    caps.struct_size = sizeof(caps);
    if (made->transport->caps(made->transport.self(), &caps) < 0) continue;
    offers.push_back({name, std::max<std::uint32_t>(caps.reach, LUNA_REACH_PROCESS)});
  }
  return offers;
}

void DataTransports::set_terms(TransportTerms terms) {
  open_.clear();
  terms_ = std::move(terms);
}

Result<config::RawGroup> DataTransports::settings_of(const std::string& name) {
  config::RawGroup own;
  own.table = "transport." + name;
  if (const auto found = settings_.transports.find(name); found != settings_.transports.end())
    own = found->second;
  LUNA_TRY(const plugin::Library* library, catalog_.load(LUNA_KIND_TRANSPORT, name));
  LUNA_TRY(const luna_if* table,
           library->table(LUNA_KIND_TRANSPORT, plugin::table_size(LUNA_KIND_TRANSPORT)));
  const std::array<std::pair<std::string_view, std::string>, 3> shared = {{
      {"run", terms_.run},
      {"host", terms_.host},
      {"token_file", terms_.token_file ? terms_.token_file->string() : std::string()},
  }};
  const std::vector<const luna_param*> params = plugin::params_of(*table);
  for (const auto& setting : shared) {
    const std::string_view key = setting.first;
    const std::string& value = setting.second;
    const bool is_declared =
        std::ranges::any_of(params, [&](const luna_param* param) { return param->key == key; });
    const bool is_set =
        std::ranges::find(own.rows, key, &config::RawSetting::key) != own.rows.end();
    if (is_declared && !is_set && !value.empty())
      own.rows.push_back({std::string(key), value, {}, {}});
  }
  return own;
}

Result<DataTransports::Open> DataTransports::create(const std::string& name) {
  LUNA_TRY(const config::RawGroup own, settings_of(name));
  Open made;
  LUNA_TRY(made.transport, catalog_.create<luna_transport_if>(name, own));
  made.collective.table = collective_of(made.transport);
  if (made.collective.table == nullptr) {
    return Error{Code::unsupported,
                 "transport '" + name + "' has no " + LUNA_EXT_COLLECTIVE +
                     ": it cannot carry activations between devices"};
  }
  made.collective.self = made.transport.self();
  made.collective.transport = name;
  std::array<std::uint8_t, LUNA_ADDRESS_BYTES_MAX> blob{};
  std::uint32_t n_bytes = 0;
  if (made.transport->address(made.transport.self(), blob.data(), &n_bytes) >= 0)
    made.collective.address.assign(blob.begin(), blob.begin() + n_bytes);
  return made;
}

Result<model::Collective> DataTransports::open(const std::string& name) {
  const auto found = open_.find(name);
  if (found != open_.end()) return found->second.collective;
  LUNA_TRY(Open made, create(name));
  model::Collective collective = made.collective;
  open_.emplace(name, std::move(made));
  return collective;
}

Result<std::string> choose_transport(const std::string& wanted,
                                     const std::vector<DataEndpoint>& endpoints) {
  const std::uint32_t needed = needed_reach(endpoints);
  std::vector<TransportOffer> candidates = endpoints.front().transports;
  if (wanted != "auto") candidates = {{wanted, LUNA_REACH_NETWORK}};
  // The nearest first: what needs not to go further is faster.
  std::ranges::stable_sort(candidates, {}, &TransportOffer::reach);
  std::string reasons;
  for (const TransportOffer& candidate : candidates) {
    const std::string reason = objection(candidate.name, endpoints, needed);
    if (reason.empty()) return candidate.name;
    reasons += "\n  " + reason;
  }
  return Error{Code::not_found,
               "transport.data = \"" + wanted + "\": no transport joins the devices, which lie " +
                   (needed == LUNA_REACH_PROCESS ? "in one process"
                    : needed == LUNA_REACH_HOST  ? "in several processes of one host"
                                                 : "on several hosts") +
                   reasons};
}

}  // namespace luna::cluster
