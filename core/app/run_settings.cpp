#include "core/app/run_settings.hpp"

#include "core/config/settings_reader.hpp"

#include <array>
#include <system_error>

namespace luna::app {
namespace {

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

/// A TOML basic string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) continue;  // no path that can be opened holds these
    out += c;
  }
  return out + '"';
}

}  // namespace

Result<std::filesystem::path> default_config() {
  const auto program = program_folder();
  const std::array<std::filesystem::path, 2> places = {
      program / "../share/luna/configs/luna.toml",  // an installation: PREFIX/bin
      program / "../../../configs/luna.toml",       // a source tree: build/<preset>/bin
  };
  std::error_code ignored;
  for (const auto& place : places)
    if (std::filesystem::exists(place, ignored))
      return std::filesystem::weakly_canonical(place, ignored);
  return Error{Code::not_found,
               "no --config given, and neither " + places[0].lexically_normal().string() + " nor " +
                   places[1].lexically_normal().string() + " is there"};
}

Result<config::Settings> settings_for_model(const std::string& model) {
  const std::string text = R"([[device]]
name = "cpu"
backend = "cpu"
memory = "4 GiB"
threads = 0
[[model]]
name = "main"
path = )" + quoted(model) + R"(
devices = ["cpu"]
[[stage]]
role = "generate"
model = "main"
[scheduler]
policy = "static"
)";
  std::error_code ignored;
  auto reading =
      config::read_settings_text(text, "--model", std::filesystem::current_path(ignored));
  if (!reading.errors.empty()) return config::join_errors(reading.errors);
  return std::move(reading.settings);
}

}  // namespace luna::app
