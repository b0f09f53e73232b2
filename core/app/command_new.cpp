#include "core/app/command_new.hpp"

#include <luna/abi/plugin.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <ostream>
#include <system_error>
#include <utility>
#include <vector>

namespace luna::app {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kKinds = {
    "scheduler", "role", "quant", "transport", "backend"};

using Words = std::vector<std::pair<std::string_view, std::string>>;

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

Result<void> check_kind(const std::string& kind) {
  if (std::ranges::count(kKinds, kind) != 0) return {};
  std::string text = "'" + kind + "' is no kind of plugin; there are:";
  for (const std::string_view one : kKinds)
    text += " " + std::string(one);
  return Error{Code::invalid_argument, text};
}

Result<void> check_name(const std::string& name) {
  const auto fits = [](char c) { return is_lower_or_digit(c) || c == '_'; };
  const bool is_word = !name.empty() && name.front() >= 'a' && name.front() <= 'z' &&
                       name.back() != '_' && std::ranges::all_of(name, fits);
  if (is_word && name.size() < sizeof(luna_note::name)) return {};
  return Error{Code::invalid_argument,
               "name '" + name + "': must be small letters, digits and '_', begin with a letter, " +
                   "and have fewer than " + std::to_string(sizeof(luna_note::name)) +
                   " characters"};
}

Result<void> check_id(const std::string& id) {
  const auto fits = [](char c) { return is_lower_or_digit(c) || c == '_' || c == '-' || c == '.'; };
  if (id.size() < sizeof(luna_note::id) && std::ranges::all_of(id, fits) &&
      id.find('.') != std::string::npos)
    return {};
  return Error{Code::invalid_argument,
               "id '" + id + "': must be reverse DNS in small letters (com.example.name) with " +
                   "fewer than " + std::to_string(sizeof(luna_note::id)) + " characters"};
}

/// "weighted_fair" as a class: "WeightedFair".
std::string class_name(const std::string& name) {
  std::string out;
  bool starts_word = true;
  for (const char c : name) {
    if (c != '_') out += starts_word && c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c;
    starts_word = c == '_';
  }
  return out;
}

std::string filled(std::string text, const Words& words) {
  for (const auto& [word, value] : words)
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += value.size())
      text.replace(at, word.size(), value);
  return text;
}

Result<void> write_filled(const fs::path& from, const fs::path& to, const Words& words) {
  std::ifstream in(from, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in.good() && !in.eof()) return Error{Code::io, from.string() + ": cannot be read"};
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  std::ofstream out(to, std::ios::binary);
  out << filled(text, words);
  out.close();
  if (!out) return Error{Code::io, to.string() + ": cannot be written"};
  fs::permissions(to, fs::status(from, error).permissions(), error);
  return {};
}

/// The files below a folder of templates, in order.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    if (it->is_regular_file()) files.push_back(fs::relative(it->path(), folder, error));
  std::ranges::sort(files);
  return files;
}

fs::path installed_templates() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share" / "luna" / "templates";
}

Result<std::vector<fs::path>> write_plugin(const NewPluginOptions& options) {
  LUNA_TRY(check_kind(options.kind));
  LUNA_TRY(check_name(options.name));
  const std::string id =
      options.id.empty() ? "org.example." + options.kind + "." + options.name : options.id;
  LUNA_TRY(check_id(id));
  const fs::path templates = options.templates.empty() ? installed_templates() : options.templates;
  const fs::path folder = options.folder.empty() ? fs::path(options.name) : options.folder;
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error))
    return Error{Code::invalid_argument, folder.string() + ": is there and not empty"};
  const Words words = {{"@NAME@", options.name},
                       {"@CLASS@", class_name(options.name)},
                       {"@ID@", id},
                       {"@KIND@", options.kind}};
  std::vector<fs::path> written;
  for (const fs::path& part : {templates / "common", templates / options.kind}) {
    const std::vector<fs::path> files = files_below(part);
    if (files.empty())
      return Error{Code::not_found,
                   part.string() + ": no templates there; they come with the component sdk"};
    for (const fs::path& file : files) {
      const fs::path to = folder / filled(file.string(), words);
      LUNA_TRY(write_filled(part / file, to, words));
      written.push_back(to);
    }
  }
  return written;
}

}  // namespace

int run_plugins_new(const NewPluginOptions& options, const CommandStreams& streams) {
  const auto written = write_plugin(options);
  if (!written) return fail(streams, written.error());
  for (const fs::path& file : *written)
    streams.out << "wrote  " << file.string() << "\n";
  const fs::path folder = options.folder.empty() ? fs::path(options.name) : options.folder;
  streams.out << "next   cmake -S " << folder.string() << " -B " << (folder / "build").string()
              << " -DCMAKE_PREFIX_PATH=<where Luna is installed>, then build and run ctest; "
              << (folder / "README.md").string() << " says more\n";
  return kExitFine;
}

}  // namespace luna::app
