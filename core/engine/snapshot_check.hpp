// What core promises of every snapshot, as a check: for those that come from outside.
#pragma once

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

namespace luna::engine {

/// No engine has more; memory and loops over tables that come from outside stay bounded.
inline constexpr std::uint32_t kSnapshotReqsMax = 1U << 20U;
inline constexpr std::uint32_t kSnapshotDevicesMax = 1U << 12U;
inline constexpr std::uint32_t kSnapshotRowsMax = 1U << 22U;  ///< of any other table, and actions

/// Whether a plan may be asked for it. Rows are read with the sizes of this build.
/// Errors  corrupt: the table, row and field that cannot be
Result<void> check_snapshot(const luna_snapshot& snapshot);

}  // namespace luna::engine
