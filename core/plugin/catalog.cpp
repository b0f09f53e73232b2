#include "core/plugin/catalog.hpp"

#include "core/base/assert.hpp"
#include "core/config/nearest_key.hpp"
#include "core/config/settings_reader.hpp"
#include "core/plugin/elf_note.hpp"
#include "core/plugin/settings_rows.hpp"
#include "core/plugin/startup_guard.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>

namespace luna::plugin {
namespace {

namespace fs = std::filesystem;

bool offers(const Candidate& candidate, std::string_view kind) {
  return candidate.note && std::ranges::count(kinds_of(*candidate.note), kind) != 0;
}

bool is_called(const Candidate& candidate, std::string_view name) {
  return candidate.note && (name == candidate.note->name || name == candidate.note->id);
}

std::string describe(const Candidate& candidate) {
  std::string line = "  " + candidate.file.string() + ": ";
  if (candidate.note)
    line += std::string(candidate.note->name) + " (" + candidate.note->id + ", " +
            candidate.note->kinds + ")";
  if (candidate.note && !candidate.reason.empty()) line += ": ";
  return line + candidate.reason + "\n";
}

/// Calls into a plugin; what it throws becomes an Error.
Result<void> call_plugin(const StartupGuard::Options& guard,
                         const std::function<luna_status(luna_err*)>& call) {
  luna_err err = make_err();
  luna_status status = LUNA_OK;
  std::optional<std::string> thrown;
  StartupGuard::run(guard, [&] {
    try {
      status = call(&err);
    } catch (const std::exception& e) {
      thrown = e.what();
    } catch (...) {
      thrown = "an exception that is not a std::exception";
    }
  });
  const std::string phase(phase_name(guard.phase));
  if (thrown) return Error{Code::internal, phase + " threw: " + *thrown};
  return to_result(status, err, phase);
}

}  // namespace

std::vector<fs::path> search_folders(const std::vector<fs::path>& from_command_line,
                                     const std::vector<fs::path>& from_settings) {
  std::vector<fs::path> folders;
  const auto add = [&folders](const fs::path& folder) {
    std::error_code error;
    fs::path absolute = fs::weakly_canonical(fs::absolute(folder, error), error);
    if (error) absolute = folder;
    if (absolute.is_absolute() && std::ranges::count(folders, absolute) == 0)
      folders.push_back(absolute);
  };
  std::ranges::for_each(from_command_line, add);
  std::ranges::for_each(from_settings, add);
  if (const char* environment = std::getenv("LUNA_PLUGIN_PATH")) {
    std::string_view rest(environment);
    while (!rest.empty()) {
      const std::size_t end = rest.find(':');
      if (end != 0) add(fs::path(rest.substr(0, end)));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
  }
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) add(executable.parent_path().parent_path() / "lib" / "luna" / "plugins");
  return folders;
}

std::unique_ptr<Catalog> Catalog::scan(Options options) {
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(options)));
  for (const fs::path& folder : catalog->options_.folders)
    catalog->scan_folder(folder);
  return catalog;
}

void Catalog::scan_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".so") files.push_back(it->path());
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    std::error_code ignored;  // a file whose links lead nowhere keeps its name, and is rejected
    const fs::path real = fs::weakly_canonical(file, ignored);
    Candidate candidate{ignored ? file : real, std::nullopt, ""};
    if (std::ranges::count(candidates_, candidate.file, &Candidate::file) != 0) continue;
    NoteReading reading = read_note(candidate.file);
    candidate.note = reading.note;
    if (reading.refusal) candidate.reason = reading.refusal->message();
    candidates_.push_back(std::move(candidate));
  }
}

Catalog::~Catalog() {
  for (auto it = started_.rbegin(); it != started_.rend(); ++it)
    if ((*it)->fini != nullptr) (*it)->fini();
}

std::vector<std::string> Catalog::names(std::string_view kind) const {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates_)
    if (candidate.reason.empty() && offers(candidate, kind))
      names.emplace_back(candidate.note->name);
  return names;
}

std::string Catalog::explain(std::string_view kind, std::string_view name) const {
  std::string lines;
  for (const Candidate& candidate : candidates_)
    if (!candidate.note || is_called(candidate, name) || kind.empty() || offers(candidate, kind))
      lines += describe(candidate);
  if (lines.empty()) lines = "  no file was found\n";
  lines += "  searched:";
  for (const fs::path& folder : options_.folders) {
    std::error_code error;
    lines += " " + folder.string() + (fs::is_directory(folder, error) ? "" : " (no such folder)");
  }
  return lines;
}

Result<Candidate*> Catalog::find(std::string_view kind, std::string_view name) {
  std::vector<Candidate*> found;
  for (Candidate& candidate : candidates_)
    if (is_called(candidate, name) && offers(candidate, kind)) found.push_back(&candidate);
  const std::string what = "plugin '" + std::string(name) + "' of kind " + std::string(kind);
  if (found.empty())
    return Error{Code::not_found,
                 what + " was not found" + config::nearest_key_hint(name, names(kind)) + "\n" +
                     explain(kind, name)};
  if (found.size() > 1)
    return Error{Code::invalid_argument,
                 what + " is there twice: " + found[0]->file.string() + " (" + found[0]->note->id +
                     ") and " + found[1]->file.string() + " (" + found[1]->note->id +
                     "); remove one, or give the full id where the ids differ\n" +
                     explain(kind, name)};
  if (!found[0]->reason.empty())
    return Error{Code::unsupported,
                 what + " cannot be used: " + found[0]->file.string() + ": " + found[0]->reason +
                     "\n" + explain(kind, name)};
  return found[0];
}

Result<const Library*> Catalog::load_candidate(Candidate& candidate,
                                               const std::string& alternatives) {
  if (const auto found = libraries_.find(candidate.file); found != libraries_.end())
    return &found->second;
  if (const auto trusted = check_trust(candidate.file, *candidate.note, options_.trust); !trusted) {
    candidate.reason = trusted.error().message();
    return trusted.error();
  }
  auto library =
      Library::load(candidate.file, *candidate.note, {alternatives, options_.startup_limit});
  if (!library) {
    candidate.reason = library.error().message();
    return library.error();
  }
  return &libraries_.emplace(candidate.file, std::move(*library)).first->second;
}

Result<const Library*> Catalog::load(std::string_view kind, std::string_view name) {
  LUNA_TRY(Candidate * candidate, find(kind, name));
  const auto library = load_candidate(*candidate, "candidates:\n" + explain(kind, name));
  if (library) return *library;
  return Error{library.error().code(),
               "plugin '" + std::string(name) + "' of kind " + std::string(kind) +
                   " cannot be used: " + candidate->file.string() + ": " +
                   library.error().message() + "\n" + explain(kind, name)};
}

Result<const Library*> Catalog::load_file(const fs::path& file) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(file, error), error);
  Candidate candidate{error ? file : real, std::nullopt, ""};
  NoteReading reading = read_note(candidate.file);
  if (reading.refusal) return reading.refusal->in(file.string());
  candidate.note = reading.note;
  const auto library = load_candidate(candidate, "");
  if (library) return *library;
  return library.error().in(file.string());
}

Result<const luna_host*> Catalog::start(const Library& library, const std::string& alternatives) {
  LUNA_VERIFY(options_.services != nullptr);
  const luna_plugin& plugin = library.descriptor();
  const luna_host* host = options_.services->host_for(plugin.name);
  if (std::ranges::count(started_, &plugin) != 0) return host;
  if (plugin.init != nullptr) {
    const StartupGuard::Options guard{
        library.file().string(), Phase::init, alternatives, options_.startup_limit};
    LUNA_TRY(call_plugin(guard, [&](luna_err* err) { return plugin.init(host, err); }));
  }
  started_.push_back(&plugin);
  return host;
}

Result<Catalog::Created> Catalog::create_untyped(const std::string& kind,
                                                 std::string_view name,
                                                 const config::RawGroup& settings) {
  LUNA_TRY(const Library* library, load(kind, name));
  LUNA_TRY(const luna_if* head, library->table(kind, table_size(kind)));
  const CheckedRows checked = check_rows(*head, settings);
  if (!checked.errors.empty()) return config::join_errors(checked.errors);
  const std::string alternatives = "candidates:\n" + explain(kind, name);
  const std::string what =
      "plugin '" + std::string(name) + "' cannot be started: " + library->file().string();
  const auto host = start(*library, alternatives);
  if (!host)
    return Error{host.error().code(), what + ": " + host.error().message() + "\n" + alternatives};
  const StartupGuard::Options guard{
      library->file().string(), Phase::create, alternatives, options_.startup_limit};
  const std::span<const luna_kv> rows = checked.rows.rows();
  void* self = nullptr;
  const auto created = call_plugin(guard, [&](luna_err* err) {
    return head->create(*host, rows.data(), static_cast<std::uint32_t>(rows.size()), &self, err);
  });
  if (!created)
    return Error{created.error().code(),
                 what + ": " + created.error().message() + "\n" + alternatives};
  return Created{head, self, library->descriptor().name};
}

}  // namespace luna::plugin
