// An endpoint of a transport, as core drives it.
#pragma once

#include "core/check/subject.hpp"

#include <luna/abi/transport.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace luna::check {

/// For what should take a millisecond.
inline constexpr std::chrono::seconds kTransferWaitMax(10);

/// One endpoint. Used on one thread.
class End {
 public:
  End(CaseRun& run, plugin::Instance<luna_transport_if> transport)
      : run_(run), transport_(std::move(transport)) {}
  /// nullptr: the run was told why.
  static std::unique_ptr<End> make(CaseRun& run, Subject& subject);

  std::vector<std::uint8_t> address();
  luna_status connect(const std::vector<std::uint8_t>& blob, luna_err& err);
  /// Registers memory. nullopt: the run was told why.
  std::optional<std::uint64_t> add(std::span<std::uint8_t> memory);
  void remove(std::uint64_t key) { transport_->deregister_memory(transport_.self(), key); }
  luna_status post(const luna_xfer& transfer, luna_err& err) {
    return transport_->post(transport_.self(), &transfer, 1, &err);
  }
  /// Polls once; what has ended goes to done().
  void poll();
  /// Polls until the condition holds. False: it does not within the limit.
  template <typename Condition>
  bool poll_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kTransferWaitMax;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      poll();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }
  [[nodiscard]] std::vector<luna_xfer_done>& done() { return done_; }
  [[nodiscard]] std::uint32_t peer() const { return peer_; }
  [[nodiscard]] luna_transport_caps caps() const;
  const luna_transport_if& table() const { return transport_.table(); }
  [[nodiscard]] void* self() const { return transport_.self(); }

 private:
  CaseRun& run_;
  plugin::Instance<luna_transport_if> transport_;
  std::uint32_t peer_ = 0;
  std::vector<luna_xfer_done> done_;
};

/// Turns both until the condition holds. False: it does not within the limit.
template <typename Condition>
bool turn_until(End& a, End& b, const Condition& condition) {
  return a.poll_until([&] {
    b.poll();
    return condition();
  });
}

/// A transfer with the peer of an end.
luna_xfer transfer(std::uint32_t verb, const End& end, std::uint64_t key, std::uint64_t cookie);

}  // namespace luna::check
