// What the HTTP front costs: the real server on one core, a pipeline without a model, and a client
// with thousands of open event streams on another core.
#include "bench/http/paced_pipeline.hpp"
#include "bench/http/stream_client.hpp"
#include "core/base/log.hpp"
#include "core/http/server.hpp"

#include <CLI/CLI.hpp>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace luna::bench {
namespace {

using namespace std::chrono_literals;

// Streams end together, which is another load than the one that counts: not within it.
constexpr double kEndS = 1;

struct Options {
  std::uint32_t n_streams = 10'000;
  std::uint64_t tokens_per_s = 100'000;
  double seconds = 8;
  double warm_up_s = 2;
  std::uint32_t step_us = 1000;
  int server_cpu = 0;
  int client_cpu = 1;
};

/// What the server's process used while tokens flowed.
struct ServerUse {
  double bytes_per_stream = 0;
  double cpu_user_s = 0;
  double cpu_system_s = 0;
  double wall_s = 0;
};

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0)
    std::cerr << "cannot pin to core " << cpu << ": figures are not of one core\n";
}

Result<void> raise_file_limit(std::uint32_t n_streams) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < n_streams + 100)
    return Error{Code::exhausted,
                 std::to_string(n_streams) + " streams need more open files than the limit of " +
                     std::to_string(limit.rlim_cur) + ": ulimit -Hn"};
  return {};
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t n_pages = 0;
  std::uint64_t n_resident = 0;
  statm >> n_pages >> n_resident;
  return n_resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

/// The client's process: waits for the port, reads all streams, sends its report.
int run_client(const Options& options, int from_server, int to_server) {
  pin_to(options.client_cpu);
  ClientOptions client;
  client.n_streams = options.n_streams;
  client.warm_up_us = static_cast<std::uint64_t>(options.warm_up_s * 1e6);
  client.counted_us = static_cast<std::uint64_t>(options.seconds * 1e6);
  if (read(from_server, &client.port, sizeof(client.port)) != sizeof(client.port)) return 1;
  const auto report = read_streams(client);
  if (!report) {
    std::cerr << "client: " << report.error().message() << '\n';
    return 1;
  }
  return write(to_server, &*report, sizeof(*report)) == sizeof(*report) ? 0 : 1;
}

http::ServerOptions server_options(const Options& options) {
  http::ServerOptions listen;
  listen.n_connections_max = options.n_streams + 10;
  listen.n_requests_max = options.n_streams + 10;
  return listen;
}

/// The server's process: serves until every stream has ended.
Result<ServerUse> run_server(const Options& options, int to_client) {
  Pace pace;
  pace.n_streams = options.n_streams;
  pace.tokens_per_s = options.tokens_per_s;
  pace.step_us = options.step_us;
  const double n_tokens = static_cast<double>(options.tokens_per_s) *
                          (options.seconds + options.warm_up_s + kEndS) / options.n_streams;
  pace.n_tokens_each = static_cast<std::uint32_t>(n_tokens);
  PacedPipeline pipeline(pace);
  telemetry::HttpStats stats;
  telemetry::Health health;
  health.set(telemetry::State::ready);
  const telemetry::MetricsPage metrics("bench", stats);
  LUNA_TRY(auto server, http::Server::open(server_options(options), {}));
  server->start(stats, health);
  server->serve({pipeline, metrics});
  const std::uint64_t bytes_before = resident_bytes();
  const std::uint16_t port = server->port();
  if (write(to_client, &port, sizeof(port)) != sizeof(port))
    return Error{Code::io, "the client's process is gone"};
  while (!pipeline.is_producing())
    std::this_thread::sleep_for(10ms);
  ServerUse use;
  use.bytes_per_stream = static_cast<double>(resident_bytes() - bytes_before) / options.n_streams;
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_SELF, &before);
  const auto begin = std::chrono::steady_clock::now();
  pipeline.join();
  getrusage(RUSAGE_SELF, &after);
  use.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  use.cpu_user_s = seconds_of(after.ru_utime) - seconds_of(before.ru_utime);
  use.cpu_system_s = seconds_of(after.ru_stime) - seconds_of(before.ru_stime);
  const double peak = static_cast<double>(resident_bytes() - bytes_before) / options.n_streams;
  use.bytes_per_stream = std::max(use.bytes_per_stream, peak);
  server->drain(10s);
  return use;
}

void print(const Options& options, const ClientReport& report, const ServerUse& use) {
  const auto per_s = static_cast<double>(report.n_tokens) / report.counted_s;
  const auto per_event = static_cast<double>(report.n_tokens) /
                         static_cast<double>(std::max<std::uint64_t>(1, report.n_events));
  std::printf(
      "{\"streams\": %u, \"ended_well\": %llu, \"offered_tokens_per_s\": %llu, "
      "\"tokens_per_s\": %.0f, \"tokens_per_event\": %.2f, \"age_ms\": {\"p50\": %.2f, \"p99\": "
      "%.2f, \"p999\": %.2f, \"max\": %.2f}, \"tokens\": %llu, \"out_of_order\": %llu, "
      "\"server_core_share\": {\"user\": %.2f, \"system\": %.2f}, \"kib_per_stream\": %.1f}\n",
      options.n_streams,
      static_cast<unsigned long long>(report.n_ended_well),
      static_cast<unsigned long long>(options.tokens_per_s),
      per_s,
      per_event,
      report.age_us_p50 / 1e3,
      report.age_us_p99 / 1e3,
      report.age_us_p999 / 1e3,
      report.age_us_max / 1e3,
      static_cast<unsigned long long>(report.n_tokens_all),
      static_cast<unsigned long long>(report.n_out_of_order),
      use.cpu_user_s / use.wall_s,
      use.cpu_system_s / use.wall_s,
      use.bytes_per_stream / 1024);
}

Result<int> run(const Options& options) {
  LUNA_TRY(raise_file_limit(options.n_streams));
  std::array<int, 2> to_client{};
  std::array<int, 2> to_server{};
  if (pipe(to_client.data()) != 0 || pipe(to_server.data()) != 0)
    return Error{Code::io, "cannot make a pipe"};
  // Before the first thread: the client is a process of its own.
  const pid_t client = fork();
  if (client < 0) return Error{Code::io, "cannot fork"};
  if (client == 0) _exit(run_client(options, to_client[0], to_server[1]));
  close(to_server[1]);
  pin_to(options.server_cpu);  // every thread of the server inherits it
  LUNA_TRY(const ServerUse use, run_server(options, to_client[1]));
  ClientReport report;
  const bool has_report = read(to_server[0], &report, sizeof(report)) == sizeof(report);
  int status = 0;
  waitpid(client, &status, 0);
  if (!has_report) return Error{Code::io, "the client failed"};
  print(options, report, use);
  return report.n_ended_well == options.n_streams && report.n_out_of_order == 0 ? 0 : 1;
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app("Tokens through the HTTP front, from their step to the client", "bench_http");
  app.add_option("--streams", options.n_streams, "event streams open at once")
      ->capture_default_str();
  app.add_option("--rate", options.tokens_per_s, "tokens/s of all streams")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{10'000'000}))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "that count")->capture_default_str();
  app.add_option("--warm-up", options.warm_up_s, "seconds before")->capture_default_str();
  app.add_option("--step-us", options.step_us, "time between two steps")->capture_default_str();
  app.add_option("--server-cpu", options.server_cpu, "core")->capture_default_str();
  app.add_option("--client-cpu", options.client_cpu, "core")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  init_logging(spdlog::level::warn);
  const auto status = run(options);
  if (status) return *status;
  std::cerr << "bench_http: " << status.error().message() << '\n';
  return 1;
}

}  // namespace
}  // namespace luna::bench

int main(int argc, char** argv) {
  return luna::bench::main_of(argc, argv);
}
