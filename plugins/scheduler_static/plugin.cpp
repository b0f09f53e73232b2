#include "plugins/scheduler_static/static_policy.hpp"

// Where the defaults come from: 100 ms a token is the pace at which people read; a prompt's chunk
// of the default 512 tokens takes about that long on the machines that these models are meant for.
LUNA_SCHEDULER(
    luna::scheduler_static::StaticPolicy,
    "org.luna.scheduler.static",
    "static",
    "0.2.0",
    "First come, first served within priorities, deadlines and tenants; decoding rows first, "
    "prompts "
    "in chunks that keep the gaps between tokens to a target.",
    luna::param(
        LUNA_TYPE_INT,
        "target_itl_ms",
        "100",
        "0",
        "60000",
        nullptr,
        "time between two tokens of an answer that prompts of others may not stretch; 0: none"),
    luna::param(LUNA_TYPE_INT,
                "ageing_ms",
                "1000",
                "0",
                "3600000",
                nullptr,
                "waiting that counts as much as a level of priority; 0: priority always wins"),
    luna::param(LUNA_TYPE_INT,
                "max_queue_ms",
                "0",
                "0",
                "86400000",
                nullptr,
                "requests that wait longer, or will, are refused with 429; 0: they wait"),
    luna::param(LUNA_TYPE_BOOL,
                "fair_tenants",
                "true",
                nullptr,
                nullptr,
                nullptr,
                "serve the API key first that was served least; false: keys are not told apart"),
    luna::param(LUNA_TYPE_BOOL,
                "adaptive_batch",
                "true",
                nullptr,
                nullptr,
                nullptr,
                "long prompts and long conversations leave others half of the time"))
