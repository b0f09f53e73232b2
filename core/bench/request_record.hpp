// One request as the client saw it.
#pragma once

#include "core/base/clock.hpp"
#include "core/bench/completion_event.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace luna::bench {

enum class Outcome {
  done,    ///< the whole answer came
  failed,  ///< refused, broken off, or not in time; `error` says how
  cut,     ///< the user ended the run first
};

/// Times are since the start of the run.
struct RequestRecord {
  std::size_t request_idx = 0;  ///< in the order of starts
  bool is_warm_up = false;
  Nanoseconds intended{0};  ///< when it was due; latencies are counted from here
  Nanoseconds sent{0};      ///< when it was handed over
  std::vector<Nanoseconds> token_times;
  Nanoseconds end{0};
  std::optional<ServerUsage> usage;
  Outcome outcome = Outcome::cut;
  std::string error;
};

}  // namespace luna::bench
