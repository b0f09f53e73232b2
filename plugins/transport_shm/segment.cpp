#include "segment.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <system_error>
#include <utility>

namespace luna::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Error refused(const std::string& what) {
  const int reason = errno;
  const bool is_full = reason == ENOSPC || reason == ENOMEM || reason == EMFILE || reason == ENFILE;
  return {is_full ? Code::exhausted : Code::io,
          what + ": " + std::generic_category().message(reason)};
}

}  // namespace

Epoch Epoch::random() {
  Epoch epoch;
  // Requests of this size are answered whole once the kernel has started.
  while (::getrandom(epoch.words.data(), sizeof(epoch.words), 0) != sizeof(epoch.words)) {}
  return epoch;
}

Result<Segment> Segment::create(SegmentUse use, std::uint64_t n_bytes) {
  Segment segment;
  segment.file_ = Descriptor(::memfd_create("luna-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = segment.file_.number();
  if (!segment.file_.is_open()) return refused("shared memory");
  if (::fchmod(file, S_IRUSR | S_IWUSR) != 0 ||
      ::ftruncate(file, static_cast<off_t>(n_bytes)) != 0 ||
      ::fcntl(file, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return refused("shared memory of " + std::to_string(n_bytes) + " bytes");
  }
  LUNA_TRY(segment.map(n_bytes));
  SegmentHead head;
  head.use = use;
  head.n_bytes = n_bytes;
  head.epoch = Epoch::random();
  std::memcpy(segment.base_, &head, sizeof(head));
  segment.address_ = {own_process(), static_cast<std::uint32_t>(file), 0, head.epoch};
  return segment;
}

Result<Segment> Segment::attach(const SegmentAddress& address, SegmentUse use) {
  const std::string path =
      "/proc/" + std::to_string(address.process.pid) + "/fd/" + std::to_string(address.descriptor);
  if (start_ticks_of(address.process.pid) != address.process.start_ticks) {
    return Error{Code::unavailable,
                 "process " + std::to_string(address.process.pid) + " of the peer has ended"};
  }
  Segment segment;
  // Whatever lies behind the path by now, opening it must neither wait nor have effects.
  segment.file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!segment.file_.is_open()) {
    if (errno == ENOENT || errno == ESRCH)
      return Error{Code::unavailable, "the peer has closed " + path};
    return refused(path);
  }
  const int file = segment.file_.number();
  struct stat status {};
  if (::fstat(file, &status) != 0) return refused(path);
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || seals < 0 ||
      (seals & kSeals) != kSeals || status.st_size < static_cast<off_t>(sizeof(SegmentHead))) {
    return Error{Code::unavailable, path + " is no longer the peer's segment"};
  }
  const auto n_bytes = static_cast<std::uint64_t>(status.st_size);
  LUNA_TRY(segment.map(n_bytes));
  SegmentHead head;
  std::memcpy(&head, segment.base_, sizeof(head));
  if (head.magic != SegmentHead{}.magic || !(head.epoch == address.epoch))
    return Error{Code::unavailable, path + " is of another epoch: the peer has closed"};
  if (head.version != SegmentHead{}.version || head.use != use || head.n_bytes != n_bytes) {
    return Error{Code::corrupt,
                 path + ": a segment of version " + std::to_string(head.version) + " and " +
                     std::to_string(head.n_bytes) + " bytes, expected version " +
                     std::to_string(SegmentHead{}.version) + " and " + std::to_string(n_bytes)};
  }
  // Through this process, where the file stays open as long as the object lives.
  segment.address_ = {own_process(), static_cast<std::uint32_t>(file), 0, head.epoch};
  return segment;
}

Result<void> Segment::map(std::uint64_t n_bytes) {
  void* const base =
      ::mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (base == MAP_FAILED) return refused("mapping " + std::to_string(n_bytes) + " bytes");
  base_ = static_cast<std::byte*>(base);
  n_bytes_ = n_bytes;
  return {};
}

Segment::Segment(Segment&& other) noexcept
    : file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)),
      n_bytes_(std::exchange(other.n_bytes_, 0)),
      address_(other.address_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  file_ = std::move(other.file_);
  std::swap(base_, other.base_);
  std::swap(n_bytes_, other.n_bytes_);
  address_ = other.address_;
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, n_bytes_);
}

Result<void> Segment::reserve(std::uint64_t offset, std::uint64_t n_bytes) const {
  int result = 0;
  do {
    result =
        ::fallocate(file_.number(), 0, static_cast<off_t>(offset), static_cast<off_t>(n_bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return refused("memory for " + std::to_string(n_bytes) + " shared bytes");
  return {};
}

void Segment::give_back(std::uint64_t offset, std::uint64_t n_bytes) const {
  // A refusal keeps the memory until the segment ends, no more.
  ::fallocate(file_.number(),
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset),
              static_cast<off_t>(n_bytes));
}

}  // namespace luna::shm
