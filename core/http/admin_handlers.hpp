// Health, models and metrics: small answers that touch nothing but counters.
#pragma once

#include "core/http/reply.hpp"
#include "core/http/service.hpp"

#include <string_view>

namespace luna::http {

/// /health/live: the process works, whatever its load.
Reply live_reply(const Service& service);
/// /health and /health/ready: a request sent now would be answered.
Reply ready_reply(const Service& service);
Reply models_reply(const Service& service);
/// /v1/models/{id}
Reply model_reply(const Service& service, std::string_view id);
Reply metrics_reply(const Service& service);
/// The last steps of every model, a line of JSON each: where their time went.
Reply steps_reply(const Service& service);

}  // namespace luna::http
