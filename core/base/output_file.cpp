#include "core/base/output_file.hpp"

#include "core/base/units.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>

namespace luna {
namespace {

Error failed(const std::filesystem::path& path, std::string_view action, int error) {
  return Error{Code::io, path.string() + ": " + std::string(action) + ": " + std::strerror(error)};
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  OutputFile file(path, -1);
  const std::filesystem::path partial = file.partial_path();
  // O_EXCL also refuses a symbolic link that somebody laid there.
  file.fd_ = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file.fd_ >= 0) return file;
  const int error = errno;
  file.path_.clear();  // not ours to remove
  return failed(partial, "cannot be created", error);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), fd_(std::exchange(other.fd_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!path_.empty()) ::unlink(partial_path().c_str());
}

std::filesystem::path OutputFile::partial_path() const {
  std::filesystem::path partial = path_;
  partial += kPartialSuffix;
  return partial;
}

Result<void> OutputFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), kGiB));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(partial_path(), "cannot be written", n < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> OutputFile::close() {
  const int fd = std::exchange(fd_, -1);
  const int sync_error = ::fsync(fd) == 0 ? 0 : errno;
  const int close_error = ::close(fd) == 0 ? 0 : errno;
  if (sync_error != 0) return failed(partial_path(), "cannot be brought to the disk", sync_error);
  if (close_error != 0) return failed(partial_path(), "cannot be closed", close_error);
  return {};
}

Result<void> OutputFile::commit() {
  if (::rename(partial_path().c_str(), path_.c_str()) != 0)
    return failed(path_, "cannot be given its name", errno);
  path_.clear();
  return {};
}

Result<void> sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed(folder, "cannot be opened", errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some network file systems know no such thing and keep their own promise.
  if (error != 0 && error != EINVAL) return failed(folder, "cannot be brought to the disk", error);
  return {};
}

}  // namespace luna
