#include "core/http/router.hpp"

#include "core/http/admin_handlers.hpp"
#include "core/http/completion_handlers.hpp"

#include <boost/beast/http/field.hpp>
#include <boost/beast/http/verb.hpp>

#include <optional>
#include <string_view>
#include <utility>

namespace luna::http {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;

enum class Handler {
  chat,
  completion,
  models,
  model,
  live,
  ready,
  metrics,
  steps,
  groups,
  checks,
  roles,
  cluster,
  drain
};

struct Route {
  std::string_view path;
  Handler handler;
  std::string_view methods;  // for the header Allow
  bool open;                 // answered without a key
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", Handler::chat, "POST", false},
    {"/v1/completions", Handler::completion, "POST", false},
    {"/v1/models", Handler::models, "GET, HEAD", false},
    {"/health", Handler::ready, "GET, HEAD", true},
    {"/health/ready", Handler::ready, "GET, HEAD", true},
    {"/health/live", Handler::live, "GET, HEAD", true},
    {"/metrics", Handler::metrics, "GET, HEAD", false},
    {"/admin/steps", Handler::steps, "GET, HEAD", false},
    {"/admin/groups", Handler::groups, "GET, HEAD", false},
    {"/admin/checks", Handler::checks, "GET, HEAD", false},
    {"/admin/roles", Handler::roles, "GET, HEAD", false},
    {"/admin/cluster", Handler::cluster, "GET, HEAD", false},
    {"/admin/drain", Handler::drain, "POST", false},
};
constexpr Route kModelRoute = {"/v1/models/", Handler::model, "GET, HEAD", false};

std::string_view field(const HttpRequest& request, bhttp::field name) {
  const auto value = request[name];
  return {value.data(), value.size()};
}

std::string_view path_of(const HttpRequest& request) {
  const auto target = request.target();
  const std::string_view path(target.data(), target.size());
  return path.substr(0, path.find('?'));
}

bool is_of_cluster(const Route& route) {
  return route.handler == Handler::cluster || route.handler == Handler::drain;
}

const Route* find_route(std::string_view path, const Service& service) {
  for (const Route& route : kRoutes)
    if (route.path == path) {
      return !is_of_cluster(route) || service.cluster.render != nullptr ? &route : nullptr;
    }
  return path.starts_with(kModelRoute.path) ? &kModelRoute : nullptr;
}

bool is_allowed(const Route& route, bhttp::verb method) {
  if (method == bhttp::verb::post) return route.methods == "POST";
  return (method == bhttp::verb::get || method == bhttp::verb::head) && route.methods != "POST";
}

/// An answer to a browser's question before a cross-origin request.
Reply preflight_reply() {
  Reply reply;
  reply.status = 204;
  reply.headers = {
      {"access-control-allow-methods", "GET, POST, OPTIONS"},
      {"access-control-allow-headers", "authorization, content-type, x-api-key, x-request-id"},
      {"access-control-max-age", "600"}};
  return reply;
}

ApiError not_found(std::string_view method, std::string_view path) {
  ApiError error = invalid_request(
      "",
      "no such page: " + std::string(method) + " " + std::string(path.substr(0, 200)),
      "not_found");
  error.status = 404;
  return error;
}

std::optional<Reply> refuse(Exchange& exchange, const Route* route) {
  const HttpRequest& request = exchange.request();
  const Service& service = exchange.service();
  const auto method = request.method_string();
  const std::string_view method_name(method.data(), method.size());
  if (request.method() == bhttp::verb::options && !field(request, bhttp::field::origin).empty())
    return preflight_reply();
  if (!service.keys.empty() && (route == nullptr || !route->open)) {
    const auto tenant =
        service.keys.tenant_of(field(request, bhttp::field::authorization), request["x-api-key"]);
    if (!tenant)
      return error_reply({401,
                          "authentication_error",
                          "invalid_api_key",
                          "",
                          "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                          {}});
    exchange.set_tenant(*tenant);
  }
  if (route == nullptr) return error_reply(not_found(method_name, path_of(request)));
  const bool needs_models = !route->open && !is_of_cluster(*route);
  if (exchange.models() == nullptr && needs_models)
    return error_reply(to_api_error(Error{Code::unavailable, "the models are being loaded"}));
  if (is_allowed(*route, request.method())) {
    // A page of another site can have a browser post this, without a question before.
    if (route->handler != Handler::drain || field(request, bhttp::field::origin).empty())
      return std::nullopt;
    return error_reply(
        {403, "permission_error", "origin_not_allowed", "", "not for pages of browsers", {}});
  }
  ApiError error = invalid_request(
      "",
      std::string(method_name) + " is not allowed here, only " + std::string(route->methods),
      "method_not_allowed");
  error.status = 405;
  Reply reply = error_reply(error);
  reply.headers.emplace_back("allow", route->methods);
  return reply;
}

/// refuse() has seen to it that there are models where the handler needs them.
Reply simple_reply(Handler handler, Exchange& exchange, std::string_view path) {
  const auto target = exchange.request().target();
  switch (handler) {
    case Handler::models:
      return models_reply(*exchange.models());
    case Handler::model:
      return model_reply(*exchange.models(), path.substr(kModelRoute.path.size()));
    case Handler::live:
      return live_reply(exchange.service(), exchange.models());
    case Handler::ready:
      return ready_reply(exchange.service(), exchange.models());
    case Handler::metrics:
      return metrics_reply(*exchange.models());
    case Handler::steps:
      return steps_reply(*exchange.models());
    case Handler::groups:
      return groups_reply(*exchange.models());
    case Handler::checks:
      return checks_reply(*exchange.models());
    case Handler::roles:
      return roles_reply(*exchange.models());
    case Handler::cluster:
      return cluster_reply(exchange.service());
    case Handler::drain:
      return drain_reply(exchange.service(), {target.data(), target.size()});
    case Handler::chat:
    case Handler::completion:
      break;
  }
  return error_reply({500, "server_error", "server_error", "", "no handler", {}});
}

}  // namespace

asio::awaitable<void> route(Exchange& exchange) {
  const std::string_view path = path_of(exchange.request());
  const Route* found = find_route(path, exchange.service());
  std::optional<Reply> reply = refuse(exchange, found);
  if (!reply && (found->handler == Handler::chat || found->handler == Handler::completion)) {
    const auto endpoint =
        found->handler == Handler::chat ? pipeline::Endpoint::chat : pipeline::Endpoint::completion;
    co_await handle_completion(exchange, endpoint);
    co_return;
  }
  if (!reply) reply = simple_reply(found->handler, exchange, path);
  Reply answer = std::move(*reply);
  const bool sent = co_await exchange.send(std::move(answer));
  if (!sent) exchange.close_after();
}

}  // namespace luna::http
