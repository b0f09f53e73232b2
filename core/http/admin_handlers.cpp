#include "core/http/admin_handlers.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;

// Some seconds of a small model, and a page that one can still read.
constexpr std::size_t kStepsShown = 512;

json::object model_object(const ModelService& models, const std::string& name) {
  json::object object;
  object["id"] = name;
  object["object"] = "model";
  object["created"] = 0;
  object["owned_by"] = "luna";
  object["max_model_len"] = models.pipeline.context_length(name);
  return object;
}

bool is_alive(const ModelService& models) {
  return models.is_alive == nullptr || models.is_alive(models.is_alive_context);
}

/// What %-escapes of a query's value stand for; none: there is a broken one, or another value
/// follows.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  while (!text.empty()) {
    unsigned value = static_cast<unsigned char>(text.front());
    std::size_t n = 1;
    if (text.front() == '&' || text.front() == '#') return std::nullopt;
    if (text.front() == '%') {
      n = 3;
      if (text.size() < n) return std::nullopt;
      const auto [rest, error] = std::from_chars(text.data() + 1, text.data() + n, value, 16);
      if (error != std::errc() || rest != text.data() + n) return std::nullopt;
    }
    decoded.push_back(static_cast<char>(value));
    text.remove_prefix(n);
  }
  return decoded;
}

Reply state_reply(unsigned status, const telemetry::Health& health) {
  Reply reply;
  reply.status = status;
  json::object object;
  object["status"] = telemetry::state_name(health.state());
  if (const std::string detail = health.detail(); !detail.empty()) object["detail"] = detail;
  reply.body = json::serialize(object);
  return reply;
}

Reply lines_reply(std::string lines) {
  Reply reply;
  reply.content_type = "application/jsonl; charset=utf-8";
  reply.body = std::move(lines);
  return reply;
}

}  // namespace

Reply live_reply(const Service& service, const ModelService* models) {
  const bool is_live = models == nullptr || is_alive(*models);
  return state_reply(is_live ? 200 : 503, service.health);
}

Reply ready_reply(const Service& service, const ModelService* models) {
  const bool is_ready = models != nullptr && service.health.is_ready() && is_alive(*models) &&
                        (models->is_ready == nullptr || models->is_ready(models->is_alive_context));
  Reply reply = state_reply(is_ready ? 200 : 503, service.health);
  if (!is_ready) reply.headers.emplace_back("retry-after", "1");
  return reply;
}

Reply models_reply(const ModelService& models) {
  json::array list;
  for (const std::string& name : models.pipeline.model_names())
    list.push_back(model_object(models, name));
  json::object root;
  root["object"] = "list";
  root["data"] = std::move(list);
  Reply reply;
  reply.body = json::serialize(root);
  return reply;
}

Reply model_reply(const ModelService& models, std::string_view id) {
  const auto names = models.pipeline.model_names();
  const auto found = std::find(names.begin(), names.end(), id);
  if (found == names.end())
    return error_reply(
        to_api_error(Error{Code::not_found, "no model of this name is served", "model_not_found"}));
  Reply reply;
  reply.body = json::serialize(model_object(models, *found));
  return reply;
}

Reply metrics_reply(const ModelService& models) {
  Reply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = models.metrics.render();
  return reply;
}

Reply cluster_reply(const Service& service) {
  Reply reply;
  reply.body = service.cluster.render(service.cluster.context);
  return reply;
}

Reply drain_reply(const Service& service, std::string_view target) {
  constexpr std::string_view kQuery = "?worker=";
  const auto query = target.find(kQuery);
  const auto worker = query == std::string_view::npos
                          ? std::nullopt
                          : percent_decoded(target.substr(query + kQuery.size()));
  if (!worker || worker->empty())
    return error_reply(invalid_request(
        "worker", "the query must name the worker: /admin/drain?worker=NAME", "missing_worker"));
  if (const auto told = service.cluster.drain(service.cluster.context, *worker); !told)
    return error_reply(to_api_error(told.error()));
  Reply reply;
  reply.status = 202;
  json::object object;
  object["worker"] = *worker;
  object["status"] = "draining";
  reply.body = json::serialize(object);
  return reply;
}

Reply steps_reply(const ModelService& models) {
  return lines_reply(models.metrics.render_steps(kStepsShown));
}

Reply groups_reply(const ModelService& models) {
  return lines_reply(models.metrics.render_groups());
}

Reply roles_reply(const ModelService& models) {
  return lines_reply(models.metrics.render_roles());
}

Reply checks_reply(const ModelService& models) {
  return lines_reply(models.metrics.render_checks());
}

}  // namespace luna::http
