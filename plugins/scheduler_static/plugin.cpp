#include "plugins/scheduler_static/static_policy.hpp"

LUNA_SCHEDULER(luna::scheduler_static::StaticPolicy,
               "org.luna.scheduler.static",
               "static",
               "0.1.0",
               "First come, first served; decoding rows first, newest pre-empted first.")
