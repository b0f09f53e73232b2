// Settings of every policy whose groups are planned by GroupStep.
#pragma once

#include <luna/plugin.hpp>

namespace luna::scheduling {

// Where the defaults come from: 100 ms a token is the pace at which people read; a prompt's chunk
// of the default 512 tokens takes about that long on the machines that these models are meant for.
inline constexpr luna_param kTargetItlMs =
    param(LUNA_TYPE_INT,
          "target_itl_ms",
          "100",
          "0",
          "60000",
          nullptr,
          "time between two tokens of an answer that prompts of others may not stretch; 0: none");
inline constexpr luna_param kAgeingMs =
    param(LUNA_TYPE_INT,
          "ageing_ms",
          "1000",
          "0",
          "3600000",
          nullptr,
          "waiting that counts as much as a level of priority; 0: priority always wins");
inline constexpr luna_param kMaxQueueMs =
    param(LUNA_TYPE_INT,
          "max_queue_ms",
          "0",
          "0",
          "86400000",
          nullptr,
          "requests that wait longer, or will, are refused with 429; 0: they wait");
inline constexpr luna_param kFairTenants =
    param(LUNA_TYPE_BOOL,
          "fair_tenants",
          "true",
          nullptr,
          nullptr,
          nullptr,
          "serve the API key first that was served least; false: keys are not told apart");
inline constexpr luna_param kAdaptiveBatch =
    param(LUNA_TYPE_BOOL,
          "adaptive_batch",
          "true",
          nullptr,
          nullptr,
          nullptr,
          "long prompts and long conversations leave others half of the time");

}  // namespace luna::scheduling
