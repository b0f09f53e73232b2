// What a plugin of the zoo says of itself, where its fault lies elsewhere.
#pragma once

#include <luna/plugin.hpp>

#include <cstdint>

/// Its descriptor, in agreement with the note of note.cpp. Nothing is to be started or ended.
///
/// flags  LUNA_PLUGIN_*
constexpr luna_plugin zoo_plugin(const char* summary,
                                 const void* (*table)(const char* kind),
                                 std::uint64_t flags = 0) {
  return {sizeof(luna_plugin),
          LUNA_ABI_MAJOR,
          LUNA_ABI_MINOR,
          LUNA_ABI_MINOR_NEEDED,
          "org.luna.test.zoo",
          "zoo",
          "0.1.0",
          "Luna",
          "Apache-2.0",
          summary,
          flags,
          table,
          nullptr,
          nullptr};
}
