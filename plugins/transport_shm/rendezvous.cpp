#include "rendezvous.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace luna::shm {

/// What a file holds.
struct Rendezvous::Record {
  std::array<char, 8> magic{'l', 'u', 'n', 'a', '-', 'g', 'r', 'p'};
  SegmentAddress group;
  std::uint64_t name_size = 0;
  std::array<char, kNameBytesMax> name{};

  /// nullopt: empty, or its writer was killed while writing.
  static std::optional<Record> read(const Descriptor& file) {
    Record record;
    if (::pread(file.number(), &record, sizeof(record), 0) != sizeof(record) ||
        record.magic != Record{}.magic || record.name_size > kNameBytesMax) {
      return std::nullopt;
    }
    return record;
  }
  [[nodiscard]] bool write(const Descriptor& file) const {
    return ::pwrite(file.number(), this, sizeof(*this), 0) == sizeof(*this);
  }
  [[nodiscard]] std::string_view name_text() const { return {name.data(), name_size}; }
};

namespace {

constexpr std::string_view kFilePrefix = "group-";
/// Joining takes well under a millisecond; who holds the lock longer was stopped.
constexpr std::chrono::seconds kLockPatience{5};

Error refused(const std::string& what) {
  return {Code::io, what + ": " + std::generic_category().message(errno)};
}

/// FNV-1a, twice from different starts: a name for a file, whose content decides.
std::string file_name_of(std::string_view group) {
  std::array<std::uint64_t, 2> hashes{0xcbf29ce484222325U, 0x6c62272e07bb0142U};
  for (std::uint64_t& hash : hashes) {
    for (const char byte : group)
      hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  std::array<char, 33> digits{};
  std::snprintf(digits.data(),
                digits.size(),
                "%016llx%016llx",
                static_cast<unsigned long long>(hashes[0]),
                static_cast<unsigned long long>(hashes[1]));
  return std::string(kFilePrefix) + digits.data();
}

bool belongs_to_user_alone(const struct stat& status) {
  return status.st_uid == ::geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

}  // namespace

Result<Rendezvous> Rendezvous::open(const std::string& path) {
  const std::string folder = path.empty() ? "/dev/shm/luna-" + std::to_string(::geteuid()) : path;
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) return refused(folder);
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.is_open()) return refused(folder);
  struct stat status {};
  if (::fstat(opened.number(), &status) != 0) return refused(folder);
  if (!belongs_to_user_alone(status)) {
    return Error{Code::unavailable,
                 folder + ": must belong to user " + std::to_string(::geteuid()) +
                     " and be closed to all others (mode 0700); or name another folder in "
                     "transport.shm.directory"};
  }
  Rendezvous rendezvous(std::move(opened), folder);
  rendezvous.remove_orphans();
  return rendezvous;
}

// A file that was removed between opening and locking it is nobody's any more: once again then.
Result<Rendezvous::LockedFile> Rendezvous::lock(const std::string& file_name,
                                                int open_flags) const {
  const std::string path = path_ + "/" + file_name;
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  for (;;) {
    Descriptor file(::openat(folder_.number(),
                             file_name.c_str(),
                             O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | open_flags,
                             S_IRUSR | S_IWUSR));
    if (!file.is_open()) {
      if (errno == ENOENT) return Error{Code::not_found, path};
      return refused(path);
    }
    while (::flock(file.number(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return refused(path);
      if (std::chrono::steady_clock::now() > end) {
        return Error{Code::timeout,
                     path + ": another process has held it for " +
                         std::to_string(kLockPatience.count()) + " s"};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    struct stat status {};
    if (::fstat(file.number(), &status) != 0) return refused(path);
    if (!S_ISREG(status.st_mode) || !belongs_to_user_alone(status))
      return Error{Code::unavailable, path + ": not a file of this user alone"};
    if (status.st_nlink > 0) return LockedFile{std::move(file), file_name};
  }
}

Result<Group> Rendezvous::join(const std::string& name,
                               const GroupTerms& terms,
                               const CommunicatorOptions& options) const {
  if (name.size() > kNameBytesMax) {
    return Error{Code::invalid_argument,
                 "a group's name of " + std::to_string(name.size()) +
                     " bytes with its run's: at most " + std::to_string(kNameBytesMax)};
  }
  LUNA_TRY(const auto locked, lock(file_name_of(name), O_CREAT));
  std::optional<Group> group;
  if (const auto record = Record::read(locked.file); record && record->name_text() == name) {
    auto attached = Group::attach(record->group, terms);
    if (attached && !attached->is_over())
      group = std::move(*attached);
    else if (!attached && attached.error().code() != Code::unavailable)
      return attached.error().in(name);
  }
  if (!group) {
    LUNA_TRY(group, Group::create(terms));
    Record record;
    record.group = group->address();
    record.name_size = name.size();
    std::memcpy(record.name.data(), name.data(), name.size());
    if (!record.write(locked.file)) return refused(path_ + "/" + locked.name);
  }
  if (auto joined = group->join(options); !joined) return joined.error().in(name);
  if (group->is_complete()) ::unlinkat(folder_.number(), locked.name.c_str(), 0);
  return std::move(*group);
}

void Rendezvous::forget(const std::string& name, const Epoch& epoch) const {
  const auto locked = lock(file_name_of(name), 0);
  if (!locked) return;  // it is not there, or was made anew by ranks that are joining
  const auto record = Record::read(locked->file);
  if (record && record->group.epoch == epoch) ::unlinkat(folder_.number(), locked->name.c_str(), 0);
}

void Rendezvous::remove_orphans() const {
  const int again = ::openat(folder_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = again >= 0 ? ::fdopendir(again) : nullptr;
  if (entries == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(entries)) {
    if (std::string_view(entry->d_name).starts_with(kFilePrefix)) names.emplace_back(entry->d_name);
  }
  ::closedir(entries);
  for (const std::string& name : names)
    remove_if_orphan(name);
}

void Rendezvous::remove_if_orphan(const std::string& file_name) const {
  const Descriptor file(
      ::openat(folder_.number(), file_name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // Whoever holds the lock lives.
  if (!file.is_open() || ::flock(file.number(), LOCK_EX | LOCK_NB) != 0) return;
  struct stat status {};
  if (::fstat(file.number(), &status) != 0 || status.st_nlink == 0) return;
  const auto record = Record::read(file);
  if (record && start_ticks_of(record->group.process.pid) == record->group.process.start_ticks)
    return;
  ::unlinkat(folder_.number(), file_name.c_str(), 0);
}

}  // namespace luna::shm
