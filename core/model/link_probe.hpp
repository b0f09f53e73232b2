// How fast devices of one process reach each other: measured on a communicator as steps use them.
#pragma once

#include "core/model/device_link.hpp"
#include "core/model/layout_cost.hpp"

#include <luna/result.hpp>

namespace luna::model {

/// Sends a row and a large message there and back, some dozens of times, between two threads. The
/// least time counts: what comes on top is whatever else the machine does. [start-up]
///
/// Errors  what the transport answers
/// Cost    some 10 ms
Result<LayoutLink> measure_link(const Collective& collective);

}  // namespace luna::model
