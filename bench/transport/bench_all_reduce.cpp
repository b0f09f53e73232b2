// What an all-reduce takes, over each transport of one machine.
//
//   bench_all_reduce [--values 576] [--rounds 20000]
#include "core/base/clock.hpp"
#include "core/plugin/catalog.hpp"
#include "tests/support/program_options.hpp"

#include <luna/transport.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace luna {
namespace {

struct Load {
  std::uint32_t n_ranks = 0;
  std::uint32_t n_values = 0;
  std::uint32_t n_rounds = 0;
};
constexpr std::uint32_t kWarmUpRounds = 2000;

[[noreturn]] void fail(const std::string& reason) {
  std::fprintf(stderr, "bench_all_reduce: %s\n", reason.c_str());
  std::exit(1);
}

/// A transport as core opens it.
class OpenTransport {
 public:
  OpenTransport(const std::string& name, const config::RawGroup& settings)
      : catalog_(plugin::Catalog::scan({{LUNA_PLUGIN_DIR}, &services_})) {
    auto made = catalog_->create<luna_transport_if>(name, settings);
    if (!made) fail(made.error().message());
    transport_ = std::move(*made);
    collective_ = static_cast<const luna_collective_if*>(
        transport_->head.ext(transport_.self(), LUNA_EXT_COLLECTIVE));
    if (collective_ == nullptr) fail(name + " has no collectives");
  }
  const luna_comm* open(std::uint32_t rank, const Load& load) {
    luna_comm_open options{};
    options.struct_size = sizeof(options);
    options.rank = rank;
    options.n_ranks = load.n_ranks;
    options.message_bytes_max = 4 * load.n_values;
    options.group = to_abi("bench");
    const luna_comm* comm = nullptr;
    luna_err err = make_err();
    if (collective_->open(transport_.self(), &options, &comm, &err) != LUNA_OK) fail(err.text);
    return comm;
  }
  void close(const luna_comm* comm) { collective_->close(transport_.self(), comm); }

 private:
  RealClock clock_;
  plugin::HostServices services_{{.clock = &clock_, .seed = 0, .parallel_for = {}}};
  std::unique_ptr<plugin::Catalog> catalog_;
  plugin::Instance<luna_transport_if> transport_;
  const luna_collective_if* collective_ = nullptr;
};

void bind_to_core(std::uint32_t rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank % std::thread::hardware_concurrency(), &cores);
  ::sched_setaffinity(0, sizeof(cores), &cores);
}

/// Microseconds of each round.
std::vector<double> run_rank(const luna_comm* comm, const Load& load) {
  bind_to_core(comm->rank);
  std::vector<float> in(load.n_values, 1.5F), out(load.n_values);
  std::vector<double> times_us;
  times_us.reserve(load.n_rounds);
  for (std::uint32_t round = 0; round < kWarmUpRounds + load.n_rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const luna_status status =
        comm->all_reduce(comm->self, in.data(), out.data(), in.size(), LUNA_REDUCE_SUM_F32);
    const auto took = std::chrono::steady_clock::now() - start;
    if (status != LUNA_OK || out.back() != 1.5F * static_cast<float>(load.n_ranks))
      fail("an all-reduce failed");
    if (round >= kWarmUpRounds)
      times_us.push_back(std::chrono::duration<double, std::micro>(took).count());
  }
  return times_us;
}

std::vector<double> over_threads(const Load& load) {
  OpenTransport transport("inproc", {});
  std::vector<const luna_comm*> comms;
  for (std::uint32_t rank = 0; rank < load.n_ranks; ++rank)
    comms.push_back(transport.open(rank, load));
  std::vector<std::thread> threads;
  std::vector<double> times_us;
  for (const luna_comm* comm : comms) {
    threads.emplace_back([&, comm] {
      auto own = run_rank(comm, load);
      if (comm->rank == 0) times_us = std::move(own);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const luna_comm* comm : comms)
    transport.close(comm);
  return times_us;
}

std::vector<double> over_processes(const Load& load, const std::string& folder) {
  config::RawGroup settings;
  settings.table = "transport.shm";
  settings.rows = {{"run", std::string("bench"), {}, {}}, {"directory", folder, {}, {}}};
  std::vector<pid_t> children;
  for (std::uint32_t rank = 1; rank < load.n_ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      OpenTransport transport("shm", settings);
      run_rank(transport.open(rank, load), load);
      ::_exit(0);
    }
    children.push_back(child);
  }
  std::vector<double> times_us;
  // A thread of its own, since it binds itself to a core.
  std::thread([&] {
    OpenTransport transport("shm", settings);
    times_us = run_rank(transport.open(0, load), load);
    for (const pid_t child : children) {
      int status = 0;
      if (::waitpid(child, &status, 0) != child || status != 0) fail("a rank's process failed");
    }
  }).join();
  return times_us;
}

void print(const char* transport, const Load& load, std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  const auto percentile = [&](std::size_t percent) {
    return times_us[(times_us.size() - 1) * percent / 100];
  };
  std::printf("%-8s %7u %8u %10.2f %10.2f\n",
              transport,
              load.n_ranks,
              load.n_values,
              percentile(50),
              percentile(99));
  std::fflush(stdout);
}

int run(std::span<char*> arguments) {
  const auto options =
      ProgramOptions::read(arguments, {{"--values", "576"}, {"--rounds", "20000"}}, {});
  if (!options) fail(options.error().message());
  const auto n_values = options->number("--values");
  const auto n_rounds = options->number("--rounds");
  if (!n_values) fail(n_values.error().message());
  if (!n_rounds) fail(n_rounds.error().message());
  std::string folder = (std::filesystem::temp_directory_path() / "luna-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail("no folder for the ranks to meet in");
  std::printf("%-8s %7s %8s %10s %10s\n", "over", "ranks", "values", "p50 us", "p99 us");
  for (const std::uint32_t n_ranks : {2U, 4U}) {
    const Load load{n_ranks, *n_values, *n_rounds};
    print("inproc", load, over_threads(load));
    print("shm", load, over_processes(load, folder));
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace luna

int main(int argc, char** argv) {
  return luna::run({argv, static_cast<std::size_t>(argc)});
}
