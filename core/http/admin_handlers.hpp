// Health, models and metrics: small answers that touch nothing but counters.
#pragma once

#include "core/http/reply.hpp"
#include "core/http/service.hpp"

#include <string_view>

namespace luna::http {

/// /health/live: the process works, whatever its load. `models`: none while they are loaded.
Reply live_reply(const Service& service, const ModelService* models);
/// /health and /health/ready: a request sent now would be answered.
Reply ready_reply(const Service& service, const ModelService* models);
/// Of the models, once they are loaded.
Reply models_reply(const ModelService& models);
/// /v1/models/{id}
Reply model_reply(const ModelService& models, std::string_view id);
Reply metrics_reply(const ModelService& models);
/// Workers and their devices, as JSON; there must be a cluster.
Reply cluster_reply(const Service& service);
/// Has the worker leave that the query names; there must be a cluster.
///
/// target  of the request: "/admin/drain?worker=w0"
Reply drain_reply(const Service& service, std::string_view target);
/// The last steps of every model, a line of JSON each: where their time went.
Reply steps_reply(const ModelService& models);
/// How the groups of devices stand: a line of JSON each.
Reply groups_reply(const ModelService& models);
/// The weights of roles whose models share devices: a line of JSON each.
Reply roles_reply(const ModelService& models);
/// What the check of outputs found, of every model: a line of JSON each.
Reply checks_reply(const ModelService& models);

}  // namespace luna::http
