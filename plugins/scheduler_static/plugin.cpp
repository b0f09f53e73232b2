#include "plugins/scheduler_rules/group_settings.hpp"
#include "plugins/scheduler_static/static_policy.hpp"

LUNA_SCHEDULER(
    luna::scheduler_static::StaticPolicy,
    "org.luna.scheduler.static",
    "static",
    "0.2.0",
    "First come, first served within priorities, deadlines and tenants; decoding rows first, "
    "prompts in chunks that keep the gaps between tokens to a target.",
    luna::scheduling::kTargetItlMs,
    luna::scheduling::kAgeingMs,
    luna::scheduling::kMaxQueueMs,
    luna::scheduling::kFairTenants,
    luna::scheduling::kAdaptiveBatch,
    luna::param(
        LUNA_TYPE_STRING,
        "router",
        "least_outstanding",
        nullptr,
        nullptr,
        "round_robin|least_outstanding|sticky",
        "where several groups of devices hold the model, which one a request goes to: each in "
        "its turn; the one with least work left; the one that has most of the prompt in its "
        "prefix cache"),
    luna::param(LUNA_TYPE_INT,
                "sticky_lead_tokens",
                "4096",
                "0",
                "100000000",
                nullptr,
                "sticky: tokens of work that a group may have more left than the least loaded one"))
