// The plugins that are there: found by kind and name, loaded when they are asked for.
#pragma once

#include "core/config/settings.hpp"
#include "core/plugin/host_services.hpp"
#include "core/plugin/instance.hpp"
#include "core/plugin/library.hpp"
#include "core/plugin/trust.hpp"

#include <luna/plugin.hpp>
#include <luna/result.hpp>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::plugin {

/// The id of the kind whose table is `Table`.
template <typename Table>
inline constexpr const char* kKindOf = nullptr;
template <>
inline constexpr const char* kKindOf<luna_scheduler_if> = LUNA_KIND_SCHEDULER;
template <>
inline constexpr const char* kKindOf<luna_role_if> = LUNA_KIND_ROLE;
template <>
inline constexpr const char* kKindOf<luna_quant_if> = LUNA_KIND_QUANT;
template <>
inline constexpr const char* kKindOf<luna_transport_if> = LUNA_KIND_TRANSPORT;
template <>
inline constexpr const char* kKindOf<luna_backend_if> = LUNA_KIND_BACKEND;

/// A file that might be a plugin.
struct Candidate {
  std::filesystem::path file;     ///< absolute
  std::optional<luna_note> note;  ///< read without running code
  std::string reason;             ///< why it was rejected; empty: nothing speaks against it
};

/// The folders that are searched, in their order: those of the command line, those of the TOML,
/// LUNA_PLUGIN_PATH (separated by ':'), then lib/luna/plugins beside the executable's folder.
/// The current folder is never searched. [start-up]
std::vector<std::filesystem::path> search_folders(
    const std::vector<std::filesystem::path>& from_command_line,
    const std::vector<std::filesystem::path>& from_settings);

/// Owned by App and destroyed after every instance: then fini() of each plugin that was started is
/// called, in reverse order. Libraries stay resident. [start-up]
class Catalog {
 public:
  /// services       outlives the catalog
  /// startup_limit  for one call into a plugin; beyond it the process ends with the reason
  /// trust          what files are held to before they are loaded
  struct Options {
    std::vector<std::filesystem::path> folders;
    HostServices* services = nullptr;
    std::chrono::milliseconds startup_limit = std::chrono::seconds(10);
    Trust trust{};
  };

  /// Reads the note of every *.so in the folders, in order of name; runs no plugin code.
  static std::unique_ptr<Catalog> scan(Options options);

  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();

  [[nodiscard]] const std::vector<Candidate>& candidates() const { return candidates_; }
  [[nodiscard]] const std::vector<std::filesystem::path>& folders() const {
    return options_.folders;
  }
  [[nodiscard]] const Trust& trust() const { return options_.trust; }

  /// Short names of the kind's candidates that were not rejected, in the order they were found.
  [[nodiscard]] std::vector<std::string> names(std::string_view kind) const;

  /// Loads and queries; starts nothing. Loading twice gives the same library.
  ///
  /// name    short name ("cpu") or full id ("org.luna.backend.cpu")
  /// Errors  not_found; invalid_argument (two files for one name); unsupported (a file that is not
  ///         trusted: nothing of it is run); what Library::load answers. The message lists every
  ///         candidate with its reason, and the folders that were searched
  Result<const Library*> load(std::string_view kind, std::string_view name);

  /// Loads one file, wherever it lies. The message names the file.
  Result<const Library*> load_file(const std::filesystem::path& file);

  /// Loads, checks the settings, calls init on first use, and makes an instance.
  /// Errors  as load(); invalid_argument, one line for each wrong setting; what the plugin answers
  template <typename Table>
  Result<Instance<Table>> create(std::string_view name, const config::RawGroup& settings) {
    LUNA_TRY(const Created made, create_untyped(kKindOf<Table>, name, settings));
    return Instance<Table>(reinterpret_cast<const Table*>(made.head), made.self, made.name);
  }

  /// Everything there is to know about why a name or file can or cannot be used: one line a
  /// candidate, then the folders.
  [[nodiscard]] std::string explain(std::string_view kind, std::string_view name) const;

 private:
  struct Created {
    const luna_if* head;
    void* self;
    std::string name;
  };

  explicit Catalog(Options options) : options_(std::move(options)) {}
  void scan_folder(const std::filesystem::path& folder);
  Result<Candidate*> find(std::string_view kind, std::string_view name);
  Result<const Library*> load_candidate(Candidate& candidate, const std::string& alternatives);
  Result<const luna_host*> start(const Library& library, const std::string& alternatives);
  Result<Created> create_untyped(const std::string& kind,
                                 std::string_view name,
                                 const config::RawGroup& settings);

  Options options_;
  std::vector<Candidate> candidates_;
  std::map<std::filesystem::path, Library> libraries_;
  std::vector<const luna_plugin*> started_;  // in order of init
};

}  // namespace luna::plugin
