#include "core/plugin/trust.hpp"

#include "core/base/mapped_file.hpp"
#include "core/plugin/check_record.hpp"

#include <algorithm>
#include <string_view>

namespace luna::plugin {
namespace {

bool is_pin_of(const config::PluginPin& pin, const luna_note& note) {
  return pin.plugin == note.name || pin.plugin == note.id;
}

std::string how_to_check(const std::filesystem::path& file) {
  return "; `luna plugins check --record " + file.string() + "` checks it and writes one";
}

std::string this_abi() {
  return std::to_string(LUNA_ABI_MAJOR) + "." + std::to_string(LUNA_ABI_MINOR);
}

/// What speaks against the record of a file with this digest; empty: nothing.
std::string objection_to(const CheckRecord& record,
                         const luna_note& note,
                         const std::string& sha256) {
  if (record.sha256 != sha256)
    return "is of another file: it has sha256 " + record.sha256 + ", the plugin " + sha256;
  if (record.id != note.id) return "is of the plugin " + record.id;
  if (record.verdict != kCheckPassed) return "says that the check was " + record.verdict;
  if (record.checker != program_version())
    return "was written by version " + record.checker + ", this is version " +
           std::string(program_version());
  if (record.abi_major != LUNA_ABI_MAJOR || record.abi_minor != LUNA_ABI_MINOR)
    return "is about ABI " + std::to_string(record.abi_major) + "." +
           std::to_string(record.abi_minor) + ", this program has " + this_abi();
  return "";
}

Result<void> check_record(const std::filesystem::path& file,
                          const luna_note& note,
                          const std::string& sha256) {
  const std::filesystem::path path = record_path(file);
  const std::string what = "plugins.require_checked = true: ";
  const auto mapped = MappedFile::open(path);
  if (!mapped && mapped.error().code() == Code::not_found)
    return Error{Code::unsupported,
                 what + "there is no record " + path.string() + how_to_check(file)};
  if (!mapped)
    return Error{Code::unsupported, what + mapped.error().message() + how_to_check(file)};
  const auto bytes = mapped->bytes();
  const auto record = parse_record({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const std::string objection =
      record ? objection_to(*record, note, sha256) : record.error().message();
  if (objection.empty()) return {};
  return Error{Code::unsupported,
               what + "the record " + path.string() + " " + objection + how_to_check(file)};
}

}  // namespace

Trust trust_of(const config::PluginSettings& settings) {
  return {settings.require_checked, settings.pins};
}

Result<void> check_trust(const std::filesystem::path& file,
                         const luna_note& note,
                         const Trust& trust) {
  const auto is_own = [&note](const config::PluginPin& pin) { return is_pin_of(pin, note); };
  if (!trust.require_checked && std::ranges::none_of(trust.pins, is_own)) return {};
  LUNA_TRY(const MappedFile mapped, MappedFile::open(file));
  const std::string sha256 = sha256_text(mapped.bytes());
  for (const config::PluginPin& pin : trust.pins)
    if (is_own(pin) && pin.sha256 != sha256)
      return Error{Code::unsupported,
                   "plugins.sha256." + pin.plugin + " = \"" + pin.sha256 + "\", the file has " +
                       sha256 +
                       "; put back the file that was pinned, or pin this one if it is the one that "
                       "you mean"};
  if (trust.require_checked) return check_record(file, note, sha256);
  return {};
}

std::string describe_trust(const luna_note& note, const Trust& trust) {
  const bool is_pinned = std::ranges::any_of(
      trust.pins, [&note](const config::PluginPin& pin) { return is_pin_of(pin, note); });
  std::string text = is_pinned ? "pinned" : "";
  if (trust.require_checked) text += text.empty() ? "checked" : ", checked";
  return text;
}

}  // namespace luna::plugin
