// Which of Sol's copies answers a request.
#pragma once

#include "core/base/assert.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace luna::sol_against_luna {

enum class Routing : std::uint8_t { sticky, least_outstanding, round_robin };

inline constexpr std::array<std::string_view, 3> kRoutingNames = {
    "sticky", "least outstanding", "round robin"};

constexpr std::string_view routing_name(Routing routing) {
  return kRoutingNames[static_cast<std::size_t>(routing)];
}

/// A value.
class Router {
 public:
  explicit Router(Routing routing) : routing_(routing) {}

  /// session       whose request it is; sticky: always the same copy, as many sessions on each
  /// outstanding   [n_copies] tokens, prompt and output, of requests that have not ended
  std::size_t choose(std::uint32_t session, std::span<const std::uint64_t> outstanding) {
    LUNA_ASSERT(!outstanding.empty());
    const std::size_t n_copies = outstanding.size();
    switch (routing_) {
      case Routing::sticky:
        return session % n_copies;
      case Routing::round_robin:
        return n_routed_++ % n_copies;
      case Routing::least_outstanding:
        break;
    }
    // Ties rotate: an idle fleet would otherwise wear out its first copy.
    const std::size_t first = n_routed_++ % n_copies;
    std::size_t best = first;
    for (std::size_t i = 1; i < n_copies; ++i) {
      const std::size_t copy = (first + i) % n_copies;
      if (outstanding[copy] < outstanding[best]) best = copy;
    }
    return best;
  }

 private:
  Routing routing_;
  std::size_t n_routed_ = 0;
};

}  // namespace luna::sol_against_luna
