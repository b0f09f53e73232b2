// A file that gets its name when it is whole.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace luna {

/// What a file is called until it is whole: its name with this behind it.
inline constexpr std::string_view kPartialSuffix = ".partial";

/// Writes `path` under a temporary name. Until commit() nothing has the name, and destroying the
/// object removes what was written. A resource: moved, never copied.
class OutputFile {
 public:
  /// Creates the temporary file beside `path`. It must not be there: another writer is at work, or
  /// one was killed.
  /// Errors  io, with the path and the system's reason
  static Result<OutputFile> create(const std::filesystem::path& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Errors  io: the disk is full, a limit of the process, the medium
  Result<void> append(std::span<const std::byte> bytes);
  /// Waits until the bytes are on the medium, and closes. Nothing is appended after it.
  Result<void> close();
  /// Gives the file its name, replacing what has it. After close().
  Result<void> commit();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  OutputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  [[nodiscard]] std::filesystem::path partial_path() const;

  std::filesystem::path path_;  // empty where there is nothing to remove
  int fd_ = -1;
};

/// Waits until the names in a folder are on the medium.
Result<void> sync_folder(const std::filesystem::path& folder);

}  // namespace luna
