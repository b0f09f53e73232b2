// A file mapped for reading.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <filesystem>
#include <span>

namespace luna {

/// Owns a read-only mapping. Spans into it live as long as it. A resource: moved, never copied.
class MappedFile {
 public:
  /// Maps a regular file. [start-up]
  /// Errors  not_found; invalid_argument (a folder or device); io
  /// Cost    touches no page
  static Result<MappedFile> open(const std::filesystem::path& path);

  /// The same for a file that others may have laid there: a symbolic link is refused, because it
  /// could lead anywhere. Links on the way to its folder are followed.
  static Result<MappedFile> open_no_link(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Lets the pages of a part that was read go; reading it again brings them back. Memory stays
  /// small where a file is read once from end to end.
  static void let_go(std::span<const std::byte> part);

 private:
  static Result<MappedFile> open_with(const std::filesystem::path& path, int flags);
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace luna
