// What a device says that it computes, asked through its table.
#pragma once

#include "core/check/open_device.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::check {

/// Of devices that compute: programs of the check are small.
inline constexpr std::uint64_t kOpBudgetBytes = std::uint64_t{128} << 20U;

/// Of what is drawn for number n of a kind.
constexpr std::uint64_t mixed_seed(std::uint64_t seed, std::uint64_t kind, std::uint64_t n) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U + kind * 0xBF58476D1CE4E5B9U + n;
  x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
  return x ^ x >> 27U;
}

/// "f32", "i12", "i8", "bf16".
std::string class_name(std::uint32_t numerics);

/// Every class with every type of KV, and the forms of weights that it takes in each.
std::vector<DeviceOffer> offers_of(OpenDevice& device, std::uint64_t seed);
/// Offers of a class.
std::uint32_t n_kv_types(const OpenDevice& device);
/// Whether the offer is the first of its class: what has no KV is tried once.
bool is_first_kv(const OpenDevice& device, const DeviceOffer& offer);

/// supports(), for the whole program.
bool is_supported(OpenDevice& device, const luna_program& program);

/// Rows whose ops it has, of those that are wanted.
std::vector<const OpRow*> rows_offered(OpenDevice& device,
                                       const DeviceOffer& offer,
                                       bool (*is_wanted)(const OpRow&));

}  // namespace luna::check
