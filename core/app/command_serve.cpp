#include "core/app/command_serve.hpp"

#include "core/app/app.hpp"
#include "core/app/run_settings.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/log.hpp"
#include "core/config/settings_reader.hpp"
#include "core/http/server.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace luna::app {
namespace {

http::ServerOptions server_options(const config::ServerSettings& settings) {
  http::ServerOptions options;
  options.host = settings.host;
  options.port = settings.port;
  options.n_io_threads = settings.n_io_threads;
  options.n_connections_max = settings.n_connections_max;
  options.n_requests_max = settings.n_requests_max;
  options.header_bytes_max = settings.header_bytes_max;
  options.body_bytes_max = settings.body_bytes_max;
  options.header_timeout = settings.header_timeout;
  options.body_timeout = settings.body_timeout;
  options.idle_timeout = settings.idle_timeout;
  options.write_timeout = settings.write_timeout;
  options.cors_origins = settings.cors_origins;
  return options;
}

Result<config::Settings> read(const ServeOptions& options) {
  std::filesystem::path config = options.config;
  if (config.empty()) {
    LUNA_TRY(config, default_config());
  }
  LUNA_TRY(config::Settings settings, config::read_settings(config, options.overrides));
  if (options.host) settings.server.host = *options.host;
  if (options.port) settings.server.port = *options.port;
  if (options.record_plans) settings.scheduler.record = *options.record_plans;
  return settings;
}

// Beside connections: libraries, model files, the standard streams.
constexpr rlim_t kOtherFiles = 64;

/// A connection is an open file, and the limit of a shell is often 1,024.
void make_room_for(std::uint32_t n_connections) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t wanted = n_connections + kOtherFiles;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
    logger("app")->warn("fewer open files than the server's connections need limit={} wanted={}",
                        limit.rlim_max,
                        wanted);
}

bool app_is_alive(void* app) {
  return static_cast<const App*>(app)->is_alive();
}

bool app_is_ready(void* app) {
  return static_cast<const App*>(app)->is_ready();
}

std::string cluster_page(void* app) {
  return static_cast<const App*>(app)->cluster_page();
}

Result<void> drain_worker(void* app, const std::string& name) {
  return static_cast<App*>(app)->drain_worker(name);
}

std::string url_of(const std::string& host, std::uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return "http://" + (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

/// Ends the process when the end itself hangs: a device that never completes a step cannot be
/// joined.
class ExitGuard {
 public:
  explicit ExitGuard(std::chrono::milliseconds limit)
      : thread_([this, limit] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, limit, [this] { return is_done_; })) return;
          logger("app")->error("a device did not stop; the process ends limit_ms={}",
                               limit.count());
          _exit(kExitFailed);
        }) {}
  ~ExitGuard() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_done_ = false;
  std::thread thread_;
};

// What connections get to take their last bytes, however late the drain is.
constexpr std::chrono::milliseconds kFlushMin{500};
// Beyond the drain itself: joining threads, freeing memory.
constexpr std::chrono::seconds kExitLimit{10};

/// Ready, then until the signal. Whatever the outcome, no request runs afterwards.
Result<void> run_until_stopped(App& app,
                               http::Server& server,
                               const std::string& url,
                               std::chrono::milliseconds drain_timeout,
                               const CommandStreams& streams) {
  // A signal that came while the models were loaded ends this before it has begun.
  Result<void> warm = app.warm_up([] { return !StopSignal::is_set(); });
  if (warm && !StopSignal::is_set()) {
    streams.out << "ready on " << url << std::endl;
    StopSignal::wait();
  }
  logger("app")->info("draining timeout_ms={}", drain_timeout.count());
  const auto deadline = std::chrono::steady_clock::now() + drain_timeout;
  app.drain(drain_timeout);
  // Answers whose requests have ended still have to reach their clients.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  server.drain(std::max(left, kFlushMin));
  return warm;
}

Result<void> serve(const ServeOptions& options, const CommandStreams& streams) {
  LUNA_TRY(config::Settings settings, read(options));
  init_logging(to_spdlog(settings.log.level));
  const http::ServerOptions listen = server_options(settings.server);
  const auto drain_timeout = settings.server.drain_timeout;
  http::KeyRing keys;
  if (settings.server.api_keys_file) {
    LUNA_TRY(keys, http::KeyRing::open(*settings.server.api_keys_file));
  }
  make_room_for(listen.n_connections_max);
  App::Options app_options;
  app_options.plugin_folders = options.plugin_folders;
  app_options.version = kVersion;
  auto app = std::make_unique<App>(std::move(settings), std::move(app_options));
  // The port first: a taken one is known before a model is loaded, and probes are answered while
  // the models are.
  LUNA_TRY(auto server, http::Server::open(listen, std::move(keys)));
  http::ClusterPage cluster;
  if (app->has_cluster()) cluster = {cluster_page, drain_worker, app.get()};
  server->start(app->http_stats(), app->health(), cluster);
  const auto keep_going = [] { return !StopSignal::is_set(); };
  if (const auto loaded = app->load(keep_going); !loaded) {
    // Connections ask for the app's state.
    server.reset();
    const bool was_stopped = loaded.error().code() == Code::cancelled && StopSignal::is_set();
    return was_stopped ? Result<void>() : Result<void>(loaded.error());
  }
  server->serve({app->pipeline(), app->metrics(), app_is_alive, app.get(), app_is_ready});
  const std::string url = url_of(listen.host, server->port());
  Result<void> served = run_until_stopped(*app, *server, url, drain_timeout, streams);
  const ExitGuard guard(kExitLimit);
  // Connections refer to the app and may have outlived the drain: the server goes first.
  server.reset();
  app.reset();
  return served;
}

}  // namespace

int run_serve(const ServeOptions& options, const CommandStreams& streams) {
  const auto result = serve(options, streams);
  return result ? kExitFine : fail(streams, result.error());
}

}  // namespace luna::app
