// Configuration files, and what is set in place of them: whatever the bytes, settings or messages,
// never a crash.
#include "core/config/settings_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kFile = R"([[device]]
name = "a0"
backend = "cpu"
memory = "1 GiB"
[[model]]
name = "main"
path = "small"
devices = ["a0"]
[[stage]]
role = "generate"
model = "main"
[scheduler]
policy = "static"
)";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto reading = luna::config::read_settings_text(text, "fuzz.toml", "/fuzz");
  // Either the file names a device and a model, or a message says what is missing.
  if (reading.errors.empty() &&
      (reading.settings.devices.empty() || reading.settings.models.empty()))
    std::abort();
  // Of a right file one key is set, and no other changes.
  const auto set =
      luna::config::read_settings_text(kFile, "fuzz.toml", "/fuzz", {std::string(text)});
  if (set.errors.empty() && (set.settings.devices.size() != 1 || set.settings.models.size() != 1))
    std::abort();
  static_cast<void>(luna::config::read_worker_settings({std::string(text)}));
  return 0;
}
