#include "core/http/places.hpp"

#include <string>

namespace luna::http {

Places::Places(std::atomic<std::uint64_t>& n_taken, std::uint32_t n_max, std::uint32_t n_tenants)
    : n_taken_(n_taken), n_max_(n_max), n_by_tenant_(n_tenants > 1 ? n_tenants + 1 : 0) {}

Result<Places::Place> Places::take(std::uint32_t tenant) {
  const std::uint64_t n_before = n_taken_.fetch_add(1);
  if (n_before >= n_max_) {
    n_taken_.fetch_sub(1);
    return Error{Code::exhausted,
                 std::to_string(n_before) + " requests wait and run: at most " +
                     std::to_string(n_max_) + " at a time"};
  }
  if (tenant < n_by_tenant_.size()) {
    const std::uint32_t n_held = n_by_tenant_[tenant].fetch_add(1);
    const std::uint64_t n_free = n_max_ - n_before;
    if (n_held >= n_free) {
      give_back(tenant);
      return Error{Code::exhausted,
                   std::to_string(n_held) + " requests of this key wait and run and " +
                       std::to_string(n_free) + " places are free: they are kept for other keys"};
    }
  }
  return Place(*this, tenant);
}

void Places::give_back(std::uint32_t tenant) {
  if (tenant < n_by_tenant_.size()) n_by_tenant_[tenant].fetch_sub(1);
  n_taken_.fetch_sub(1);
}

}  // namespace luna::http
