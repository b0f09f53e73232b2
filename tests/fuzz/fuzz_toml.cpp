// Configuration files: whatever the bytes, settings or messages, never a crash.
#include "core/config/settings_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto reading = luna::config::read_settings_text(text, "fuzz.toml", "/fuzz");
  // Either the file names a device and a model, or a message says what is missing.
  if (reading.errors.empty() &&
      (reading.settings.devices.empty() || reading.settings.models.empty()))
    std::abort();
  return 0;
}
