#include "core/check/transport_end.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace luna::check {

std::unique_ptr<End> End::make(CaseRun& run, Subject& subject) {
  auto made = subject.make<luna_transport_if>(LUNA_KIND_TRANSPORT);
  if (!made) return nullptr;
  run.phase("transfers");
  return std::make_unique<End>(run, std::move(made));
}

std::vector<std::uint8_t> End::address() {
  std::vector<std::uint8_t> blob(LUNA_ADDRESS_BYTES_MAX);
  std::uint32_t n = 0;
  const luna_status status = transport_->address(transport_.self(), blob.data(), &n);
  if (status < 0 || n == 0 || n > LUNA_ADDRESS_BYTES_MAX)
    run_.fail("X2",
              "address() gives status " + std::to_string(status) + " and " + std::to_string(n) +
                  " bytes");
  blob.resize(std::min<std::uint32_t>(n, LUNA_ADDRESS_BYTES_MAX));
  return blob;
}

luna_status End::connect(const std::vector<std::uint8_t>& blob, luna_err& err) {
  return transport_->connect(
      transport_.self(), blob.data(), static_cast<std::uint32_t>(blob.size()), &peer_, &err);
}

std::optional<std::uint64_t> End::add(std::span<std::uint8_t> memory) {
  const luna_mem range{LUNA_MEM_HOST, 0, memory.data(), memory.size(), -1, 0};
  std::uint64_t key = 0;
  luna_err err = make_err();
  if (transport_->register_memory(transport_.self(), &range, &key, &err) >= 0) return key;
  run_.fail("X2", "host memory cannot be registered: " + std::string(text_of(err)));
  return std::nullopt;
}

void End::poll() {
  std::array<luna_xfer_done, 16> some{};
  std::uint32_t n = 0;
  if (transport_->poll(transport_.self(), some.data(), some.size(), &n) < 0) return;
  if (n > some.size()) return run_.fail("O3", "poll() says more than there is room for");
  done_.insert(done_.end(), some.begin(), some.begin() + n);
}

luna_transport_caps End::caps() const {
  luna_transport_caps caps{};
  caps.struct_size = sizeof(caps);
  transport_->caps(transport_.self(), &caps);
  return caps;
}

luna_xfer transfer(std::uint32_t verb, const End& end, std::uint64_t key, std::uint64_t cookie) {
  luna_xfer made{};
  made.verb = verb;
  made.peer = end.peer();
  made.key = key;
  made.cookie = cookie;
  return made;
}

}  // namespace luna::check
