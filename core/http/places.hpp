// Places for completions: how many wait and run at a time, and that no API key takes them all.
#pragma once

#include <luna/result.hpp>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace luna::http {

/// [any]. Outlives every place that it gave.
class Places {
 public:
  /// n_taken     the count of places taken: a gauge that outlives it, at 0
  /// n_tenants   API keys, numbered from 1; fewer than two are not told apart
  Places(std::atomic<std::uint64_t>& n_taken, std::uint32_t n_max, std::uint32_t n_tenants);

  /// Held while a completion is answered. A resource.
  class Place {
   public:
    Place(Places& places, std::uint32_t tenant) : places_(&places), tenant_(tenant) {}
    Place(Place&& other) noexcept
        : places_(std::exchange(other.places_, nullptr)), tenant_(other.tenant_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (places_ != nullptr) places_->give_back(tenant_);
    }

   private:
    Places* places_;
    std::uint32_t tenant_;
  };

  /// Takes a place for a tenant. A tenant gets one only while it holds fewer than are free: one
  /// that floods the server stops at half of it, and whoever comes next finds room.
  ///
  /// Errors  exhausted, with the numbers
  /// Source  Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
  ///         switches", 1998, with alpha = 1
  Result<Place> take(std::uint32_t tenant);

 private:
  void give_back(std::uint32_t tenant);

  std::atomic<std::uint64_t>& n_taken_;
  const std::uint32_t n_max_;
  std::vector<std::atomic<std::uint32_t>> n_by_tenant_;  // empty: tenants are not told apart
};

}  // namespace luna::http
