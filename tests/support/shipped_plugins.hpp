// Instances of the plugins that are built with the tests, as model/ takes them.
#pragma once

#include "core/model/device_link.hpp"
#include "core/plugin/instance.hpp"
#include "support/plugin_fixture.hpp"

#include <string>
#include <vector>

namespace luna::test {

/// From plugins/<file>.so of the build.
template <typename Table>
plugin::Instance<Table> shipped(const std::string& file,
                                const char* kind,
                                const SettingValues& settings = {}) {
  static const FakeHost host;
  const Table* table = load_table<Table>(file, kind);
  const auto self = make_instance(*table, host, settings);
  EXPECT_TRUE(self) << (self ? "" : self.error().message());
  return plugin::Instance<Table>(table, *self, file);
}

inline plugin::Instance<luna_backend_if> shipped_backend(const char* file,
                                                         const SettingValues& settings = {}) {
  return shipped<luna_backend_if>(file, LUNA_KIND_BACKEND, settings);
}
inline plugin::Instance<luna_transport_if> shipped_transport(const char* file) {
  return shipped<luna_transport_if>(file, LUNA_KIND_TRANSPORT);
}
/// All there are.
inline std::vector<plugin::Instance<luna_quant_if>> shipped_quants() {
  std::vector<plugin::Instance<luna_quant_if>> quants;
  quants.push_back(shipped<luna_quant_if>("quant_gguf", LUNA_KIND_QUANT));
  return quants;
}

/// What devices of a model talk by; the instance outlives it.
inline model::Collective collective_of(const plugin::Instance<luna_transport_if>& transport,
                                       const char* name = "inproc") {
  const auto* table = static_cast<const luna_collective_if*>(
      transport->head.ext(transport.self(), LUNA_EXT_COLLECTIVE));
  EXPECT_NE(table, nullptr);
  return {table, transport.self(), name, {}};
}

}  // namespace luna::test
