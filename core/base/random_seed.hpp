// A number that nobody can guess.
#pragma once

#include <luna/result.hpp>

#include <cstdint>

namespace luna {

/// 64 bits from the system's generator. [any]
///
/// Errors  io (the system gave none)
Result<std::uint64_t> random_seed();

}  // namespace luna
