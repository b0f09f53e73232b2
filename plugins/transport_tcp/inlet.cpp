#include "inlet.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace luna::tcp {
namespace {

// What the lanes of a step's communicators can hold at once; more only allocates.
constexpr std::size_t kFramesReserved = 256;

}  // namespace

Result<std::unique_ptr<Inlet>> Inlet::open(asio::io_context& context) {
  const int event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0)
    return Error{Code::io, std::string("no event descriptor: ") + std::strerror(errno)};
  auto inlet = std::make_unique<Inlet>(context, event);
  inlet->pushed_.reserve(kFramesReserved);
  inlet->drained_.reserve(kFramesReserved);
  return inlet;
}

void Inlet::push(std::shared_ptr<Peer> peer, Outgoing frame) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = pushed_.empty();
    pushed_.push_back({std::move(peer), std::move(frame)});
  }
  if (!was_empty) return;  // the I/O thread has been told
  const std::uint64_t one = 1;
  // Cannot fail: the counter is read back to 0 long before it is full.
  [[maybe_unused]] const auto n = ::write(event_.native_handle(), &one, sizeof(one));
}

void Inlet::drain() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(pushed_, drained_);
  }
  for (Entry& entry : drained_)
    entry.peer->send(std::move(entry.frame));
  drained_.clear();
}

asio::awaitable<void> Inlet::run() {
  while (event_.is_open()) {
    const auto [error] =
        co_await event_.async_wait(asio::posix::descriptor_base::wait_read, kAwait);
    if (error) co_return;
    std::uint64_t n_pushed = 0;
    [[maybe_unused]] const auto n = ::read(event_.native_handle(), &n_pushed, sizeof(n_pushed));
    drain();
  }
}

}  // namespace luna::tcp
