// The transports that the tests of this folder run over, and what they differ in.
#pragma once

#include "support/plugin_fixture.hpp"

#include <luna/transport.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace luna::test {

struct TransportCase {
  std::string file;  ///< the plugin's, without suffix
  SettingValues settings;
  std::uint64_t lane_bytes = 0;    ///< what a lane for messages of 1000 bytes counts for
  std::uint64_t n_unread_max = 0;  ///< messages of 8 bytes that a sender can be ahead

  friend std::ostream& operator<<(std::ostream& out, const TransportCase& tested) {
    return out << tested.file;
  }
};

/// A folder of this process's tests, closed to other users.
inline std::string private_folder() {
  static const std::string folder = [] {
    std::string path = ::testing::TempDir() + "luna-transport-XXXXXX";
    return std::string(::mkdtemp(path.data()));
  }();
  return folder;
}

inline std::vector<TransportCase> transport_cases() {
  return {
      {"transport_inproc", {}, 4 * 1000, 4},
      // Rings that most messages of the tests have to stream through.
      {"transport_shm",
       {{"directory", private_folder()}, {"ring_bytes_max", std::int64_t{65536}}},
       4096,
       4096 / 16},
      {"transport_tcp", {}, 4 * 1000, 4},
  };
}

inline std::string case_name(const ::testing::TestParamInfo<TransportCase>& info) {
  return info.param.file;
}

/// Bytes that differ from place to place and from seed to seed.
inline std::vector<std::uint8_t> pattern(std::size_t n, std::uint32_t seed) {
  std::vector<std::uint8_t> bytes(n);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::uint8_t& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24U);
  }
  return bytes;
}

}  // namespace luna::test
