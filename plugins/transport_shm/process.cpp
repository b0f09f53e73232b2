#include "process.hpp"

#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <string_view>

namespace luna::shm {

ProcessId own_process() {
  const auto pid = static_cast<std::uint32_t>(::getpid());
  return {pid, 0, start_ticks_of(pid).value_or(0)};
}

// /proc/PID/stat: the number, the program's name in brackets (which may hold brackets itself), the
// state as field 3, the start time as field 22.
std::optional<std::uint64_t> start_ticks_of(std::uint32_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::array<char, 1024> text{};
  const ssize_t n_read = ::read(file.number(), text.data(), text.size());
  if (n_read <= 0) return std::nullopt;
  std::string_view rest(text.data(), static_cast<std::size_t>(n_read));
  const std::size_t name_end = rest.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= rest.size()) return std::nullopt;
  rest.remove_prefix(name_end + 2);
  if (rest.front() == 'Z' || rest.front() == 'X') return std::nullopt;
  for (int field = 3; field < 22; ++field) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(space + 1);
  }
  std::uint64_t ticks = 0;
  const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), ticks);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return ticks;
}

ProcessWatch::ProcessWatch(const ProcessId& process) : process_(process) {
  if (process == own_process()) {
    kind_ = Kind::own;
    return;
  }
  // The descriptor first: if the start time is right after it, the descriptor is that process's.
  pidfd_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (start_ticks_of(process.pid) != process.start_ticks) return;
  kind_ = pidfd_.is_open() ? Kind::by_descriptor : Kind::by_start;
}

bool ProcessWatch::is_alive() const {
  switch (kind_) {
    case Kind::own:
      return true;
    case Kind::by_descriptor: {
      pollfd ended{pidfd_.number(), POLLIN, 0};
      return ::poll(&ended, 1, 0) == 0;
    }
    case Kind::by_start:  // no descriptor was free, or the kernel has none
      return start_ticks_of(process_.pid) == process_.start_ticks;
    case Kind::dead:
      break;
  }
  return false;
}

}  // namespace luna::shm
