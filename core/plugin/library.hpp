// One shared library that is a plugin: loaded, asked for its descriptor, held to its note.
#pragma once

#include <luna/plugin.h>
#include <luna/result.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

namespace luna::plugin {

/// A loaded plugin. Its code stays resident until the process ends, so a Library may be copied and
/// what it points to is never freed. A value.
class Library {
 public:
  /// candidates  what else could have been used, printed when the plugin's code ends the process
  /// limit       as StartupGuard takes it
  struct LoadOptions {
    std::string candidates;
    std::chrono::milliseconds limit = std::chrono::seconds(10);
  };

  /// Loads (RTLD_NOW | RTLD_LOCAL), queries and compares the descriptor with the note. [start-up]
  ///
  /// file    absolute path
  /// Errors  io (the dynamic linker's reason); not_found (no entry symbol); corrupt (descriptor and
  ///         note differ, or a table is not usable); unsupported (the plugin refuses this host);
  ///         internal (query threw). Their reason is the number of the rule in
  ///         docs/plugin-rules.md
  static Result<Library> load(const std::filesystem::path& file,
                              const luna_note& note,
                              const LoadOptions& options);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  [[nodiscard]] const luna_plugin& descriptor() const { return *descriptor_; }

  /// The head of a kind's table, at least `size_min` bytes, every function there.
  /// Errors  not_found (kind not offered); corrupt (too small, or a function is missing)
  [[nodiscard]] Result<const luna_if*> table(const std::string& kind, std::size_t size_min) const;

 private:
  Library(std::filesystem::path file, const luna_plugin* descriptor)
      : file_(std::move(file)), descriptor_(descriptor) {}

  std::filesystem::path file_;
  const luna_plugin* descriptor_;
};

/// Bytes that a kind's table must have: those of its first minor version, for which every plugin is
/// taken. 0 for a kind that this host does not know.
std::size_t table_size(std::string_view kind);

}  // namespace luna::plugin
