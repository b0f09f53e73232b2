#include "core/base/mapped_file.hpp"

#include "core/base/units.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace luna {
namespace {

Error system_error(const std::filesystem::path& path, int error) {
  const Code code = error == ENOENT ? Code::not_found : Code::io;
  return Error{code, path.string() + ": " + std::strerror(error)};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  return open_with(path, 0);
}

Result<MappedFile> MappedFile::open_no_link(const std::filesystem::path& path) {
  return open_with(path, O_NOFOLLOW);
}

Result<MappedFile> MappedFile::open_with(const std::filesystem::path& path, int flags) {
  // O_NONBLOCK: a pipe is refused below; without it, opening one would wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
  if (fd < 0 && errno == ELOOP && flags != 0) {
    return Error{Code::invalid_argument,
                 path.string() + ": a symbolic link; only plain files are read here"};
  }
  if (fd < 0) return system_error(path, errno);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return system_error(path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{Code::invalid_argument, path.string() + ": not a regular file"};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) {
    ::close(fd);
    return MappedFile(nullptr, 0);
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return system_error(path, error);
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::let_go(std::span<const std::byte> part) {
  static const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  // Whole pages only: the one at each end may be read by somebody else.
  const auto address = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = round_up(address, page_bytes);
  const std::uintptr_t end = (address + part.size()) / page_bytes * page_bytes;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace luna
