// Whether two devices compute the same, to the bit: the hash of what a small fixed model says.
#pragma once

#include "core/model/device.hpp"

#include <luna/result.hpp>

#include <cstdint>

namespace luna::model {

/// Runs a made-up model of two layers with 4-bit weights over a prompt that crosses a partition of
/// attention, in steps of many rows and of one, and hashes all logits. Takes some KiB of the device
/// and gives them back. [start-up]
///
/// numerics, kv_dtype  of those that the device has
/// Returns  equal on two devices: their parts of a model may be mixed; different: never
/// Errors   what the backend answers
Result<std::uint64_t> probe_arithmetic(Device& device,
                                       std::uint32_t numerics,
                                       std::uint32_t kv_dtype);

}  // namespace luna::model
