#include "core/http/admin_handlers.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;

// Some seconds of a small model, and a page that one can still read.
constexpr std::size_t kStepsShown = 512;

json::object model_object(const Service& service, const std::string& name) {
  json::object object;
  object["id"] = name;
  object["object"] = "model";
  object["created"] = 0;
  object["owned_by"] = "luna";
  object["max_model_len"] = service.pipeline.context_length(name);
  return object;
}

bool is_alive(const Service& service) {
  return service.is_alive == nullptr || service.is_alive(service.is_alive_context);
}

Reply state_reply(unsigned status, telemetry::State state) {
  Reply reply;
  reply.status = status;
  json::object object;
  object["status"] = telemetry::state_name(state);
  reply.body = json::serialize(object);
  return reply;
}

}  // namespace

Reply live_reply(const Service& service) {
  return state_reply(is_alive(service) ? 200 : 503, service.health.state());
}

Reply ready_reply(const Service& service) {
  const bool ready = service.health.is_ready() && is_alive(service);
  Reply reply = state_reply(ready ? 200 : 503, service.health.state());
  if (reply.status != 200) reply.headers.emplace_back("retry-after", "1");
  return reply;
}

Reply models_reply(const Service& service) {
  json::array list;
  for (const std::string& name : service.pipeline.model_names())
    list.push_back(model_object(service, name));
  json::object root;
  root["object"] = "list";
  root["data"] = std::move(list);
  Reply reply;
  reply.body = json::serialize(root);
  return reply;
}

Reply model_reply(const Service& service, std::string_view id) {
  const auto names = service.pipeline.model_names();
  const auto found = std::find(names.begin(), names.end(), id);
  if (found == names.end())
    return error_reply(
        to_api_error(Error{Code::not_found, "no model of this name is served", "model_not_found"}));
  Reply reply;
  reply.body = json::serialize(model_object(service, *found));
  return reply;
}

Reply metrics_reply(const Service& service) {
  Reply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = service.metrics.render();
  return reply;
}

Reply steps_reply(const Service& service) {
  Reply reply;
  reply.content_type = "application/jsonl; charset=utf-8";
  reply.body = service.metrics.render_steps(kStepsShown);
  return reply;
}

}  // namespace luna::http
