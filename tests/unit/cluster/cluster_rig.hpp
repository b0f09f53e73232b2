// A controller and workers with real plugins, in one process.
#pragma once

#include "core/cluster/controller.hpp"
#include "core/cluster/process_identity.hpp"
#include "core/cluster/worker.hpp"
#include "core/model/model_loader.hpp"
#include "core/plugin/host_services.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <latch>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

namespace luna::cluster {

inline constexpr std::chrono::seconds kPatience{20};  // of a test that would otherwise never end

/// Values that depend on the tensor's name alone.
inline std::vector<float> values_by_name(const std::string& name, std::size_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(std::hash<std::string>{}(name)));
  const bool is_norm = name.find("norm") != std::string::npos;
  std::vector<float> values(n);
  for (float& value : values) {
    const float unit = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    value = is_norm ? 1.0F + 0.1F * unit : 0.3F * unit;
  }
  return values;
}

/// Plugins, devices and formats of one process; several live in this one.
struct ProcessParts {
  explicit ProcessParts(const std::string& backend) {
    plugin::Catalog::Options search;
    search.folders = {LUNA_PLUGIN_DIR};
    search.services = &services;
    catalog = plugin::Catalog::scan(std::move(search));
    quants.push_back(*catalog->create<luna_quant_if>("gguf", {}));
    backends.push_back(*catalog->create<luna_backend_if>(backend, {}));
    transports.emplace(*catalog, transport_settings);
  }
  model::Device* add_device(const std::string& name,
                            std::uint64_t memory_bytes = std::uint64_t{16} << 20U) {
    auto device = model::Device::open(backends.front(),
                                      {.name = name, .memory_bytes = memory_bytes, .n_threads = 1});
    EXPECT_TRUE(device) << device.error().message();
    devices.push_back(std::move(*device));
    return devices.back().get();
  }

  RealClock clock;
  plugin::HostServices services{{&clock, 0, {}}};
  std::unique_ptr<plugin::Catalog> catalog;
  std::vector<plugin::Instance<luna_quant_if>> quants;
  std::vector<plugin::Instance<luna_backend_if>> backends;
  config::TransportSettings transport_settings;
  std::optional<DataTransports> transports;
  std::vector<std::unique_ptr<model::Device>> devices;
};

struct TestWorkerOptions {
  std::string name = "w0";
  std::uint16_t port = 0;
  std::optional<std::filesystem::path> token_file;
  std::filesystem::path model;
  std::string backend = "cpu";
  std::string host;  // as if on another host; empty: on this one
  std::string version = "1";
  std::chrono::milliseconds drain_timeout{0};
  std::filesystem::path speed_cache;
  std::uint64_t memory_bytes = std::uint64_t{16} << 20U;
};

/// What a worker with one device says of itself.
inline Join join_of(ProcessParts& parts, model::Device& device, const TestWorkerOptions& options) {
  Join join;
  join.name = options.name;
  join.version = options.version;
  join.host = options.host.empty() ? host_identity() : options.host;
  join.process_id = std::hash<std::string>{}(options.name);
  join.plugins = plugin_identities(*parts.catalog);
  parts.transports->set_terms({"", "", options.token_file});
  join.transports = parts.transports->offers();
  DeviceOffer& offer = join.devices.emplace_back();
  offer.name = device.name();
  offer.backend = device.backend_name();
  offer.info = device.info();
  offer.memory_bytes = device.memory_bytes();
  offer.can_slice = device.can_slice();
  auto fingerprints = take_fingerprints(device);
  EXPECT_TRUE(fingerprints) << fingerprints.error().message();
  offer.fingerprints = *fingerprints;
  return join;
}

/// A worker on a thread of its own, as if in another process.
class TestWorker {
 public:
  using Options = TestWorkerOptions;
  explicit TestWorker(const Options& options) : parts_(options.backend) {
    model::Device* device = parts_.add_device(options.name + "/0", options.memory_bytes);
    WorkerOptions worker;
    worker.host = "127.0.0.1";
    worker.port = options.port;
    worker.token_file = options.token_file;
    worker.drain_timeout = options.drain_timeout;
    worker.speed_cache = options.speed_cache;
    worker.join = join_of(parts_, *device, options);
    WorkerParts parts;
    parts.devices = {device};
    parts.quants = parts_.quants;
    parts.transports = &*parts_.transports;
    parts.find_model = [path = options.model](const std::string&) {
      return Result<std::filesystem::path>(path);
    };
    parts.say = [](const std::string&) {};
    auto made = Worker::create(std::move(worker), std::move(parts));
    EXPECT_TRUE(made) << made.error().message();
    worker_ = std::move(*made);
    thread_ =
        std::thread([this] { farewell_ = worker_->run([this] { return !stopped_.load(); }); });
  }
  ~TestWorker() { stop(); }
  void tell_to_end() { stopped_ = true; }
  void stop() {
    tell_to_end();
    if (thread_.joinable()) thread_.join();
  }
  /// Waits for its end.
  std::optional<Farewell> farewell() {
    if (thread_.joinable()) thread_.join();
    return farewell_;
  }

 private:
  ProcessParts parts_;
  std::unique_ptr<Worker> worker_;
  std::atomic<bool> stopped_{false};
  std::optional<Farewell> farewell_;  // of the thread
  std::thread thread_;
};

class Cluster : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("cluster-" + name);
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "tiny.gguf";
    write_model(path_, 4);
    token_ = folder_ / "token";
    std::ofstream(token_) << "a secret of more than sixteen bytes";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void write_model(const std::filesystem::path& path, std::uint32_t n_layers) {
    const auto bytes =
        test::tiny_llama({.n_layers = n_layers, .hidden_size = 64, .vocab_size = 100},
                         values_by_name)
            .write();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  void open_controller() {
    ControllerOptions options;
    options.host = "127.0.0.1";
    options.token_file = token_;
    options.heartbeat = std::chrono::milliseconds(50);
    options.timeout = std::chrono::milliseconds(5000);
    options.version = "1";
    options.plugins = plugin_identities(*gateway_.catalog);
    auto opened = Controller::open(std::move(options));
    ASSERT_TRUE(opened) << opened.error().message();
    controller_ = std::move(*opened);
    controller_->on_change([this] { changed_.notify_all(); });
  }
  TestWorker::Options worker(const std::string& name) const {
    TestWorker::Options options;
    options.name = name;
    options.port = controller_->port();
    options.token_file = token_;
    options.model = path_;
    return options;
  }
  /// Waits until something about the cluster is so.
  bool comes(const std::function<bool()>& is_so) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    std::unique_lock lock(mutex_);
    while (!is_so() && std::chrono::steady_clock::now() < end)
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    return is_so();
  }
  bool has_devices(std::size_t n) {
    return comes([this, n] { return controller_->devices().size() == n; });
  }
  [[nodiscard]] model::ModelOptions model_options() const {
    model::ModelOptions options;
    options.name = "main";
    options.path = path_;
    options.source = "./tiny.gguf";
    options.numerics = LUNA_NUMERICS_I12;
    options.limits = {.n_rows_max = 16, .n_seqs_max = 2, .n_out_rows_max = 4, .n_positions_max = 0};
    options.kv_block_tokens = kv_block_tokens_;
    options.kv_blocks_max = kv_blocks_max_;
    options.speed.probe = is_timed_;
    return options;
  }
  Result<std::unique_ptr<model::Model>> load(
      const std::vector<std::shared_ptr<model::Device>>& devices) {
    LUNA_TRY(const std::string transport,
             choose_transport("auto", controller_->endpoints_of(devices)));
    model::Collective collective;
    collective.transport = transport;
    std::vector<model::Device*> raw;
    for (const auto& device : devices)
      raw.push_back(device.get());
    return model::Model::load(model_options(), {gateway_.quants, raw, collective});
  }
  /// Of one device of this process.
  std::vector<float> expected_logits(const std::vector<std::uint32_t>& prompt);

  std::filesystem::path folder_;
  std::filesystem::path path_;
  std::filesystem::path token_;
  std::uint32_t kv_block_tokens_ = 32;
  std::uint32_t kv_blocks_max_ = 8;
  bool is_timed_ = false;
  ProcessParts gateway_{"cpu"};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Controller> controller_;  // goes first: its thread tells of changes
};

struct Ran {
  std::vector<float> logits;  // of the last row; empty where a device failed
  std::vector<std::string> failures;
};

/// Where a prompt runs and lies.
struct PromptPlace {
  std::size_t lane = 0;
  std::uint32_t first_position = 0;
  std::array<std::uint32_t, 2> blocks = {3, 1};
};

/// Runs a prompt in one step of one sequence.
inline Ran run_prompt(const model::CompiledModel& compiled,
                      const std::vector<std::uint32_t>& ids,
                      const PromptPlace& place = {}) {
  const std::size_t lane = place.lane;
  const auto n = static_cast<std::uint32_t>(ids.size());
  std::vector<std::uint32_t> positions(n);
  for (std::uint32_t i = 0; i < n; ++i)
    positions[i] = place.first_position + i;
  const std::vector<std::uint32_t> seq_first_row = {0, n};
  const std::uint32_t out_row = n - 1;
  const std::uint32_t out_flags = LUNA_OUT_LOGITS | LUNA_OUT_CANDIDATES;
  struct Ending {
    std::mutex mutex;
    std::vector<std::string> failures;
    std::latch left;
  } ending{{}, {}, std::latch(static_cast<std::ptrdiff_t>(compiled.shards.size()))};
  std::vector<luna_step> steps(compiled.shards.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    luna_step& step = steps[i];
    step.struct_size = sizeof(step);
    step.n_rows = n;
    step.n_seqs = 1;
    step.n_out_rows = 1;
    step.token_ids = ids.data();
    step.positions = positions.data();
    step.seq_first_row = seq_first_row.data();
    step.block_tables = place.blocks.data();
    step.block_table_stride = 2;
    step.out_rows = &out_row;
    step.out_flags = &out_flags;
    step.binds = compiled.shards[i].binds[lane].data();
    step.n_binds = static_cast<std::uint32_t>(compiled.shards[i].binds[lane].size());
    step.done_context = &ending;
    step.done = [](void* context, const luna_step_result* result) {
      auto& end = *static_cast<Ending*>(context);
      if (result->status < 0) {
        const std::lock_guard lock(end.mutex);
        end.failures.emplace_back(result->message);
      }
      end.left.count_down();
    };
    luna_err err = make_err();
    const luna_status status =
        compiled.shards[i].backend->submit(compiled.shards[i].executable, &step, &err);
    if (status >= 0) continue;
    const std::lock_guard lock(ending.mutex);
    ending.failures.emplace_back(text_of(err));
    ending.left.count_down();
  }
  ending.left.wait();
  Ran ran;
  ran.failures = ending.failures;
  const float* logits = compiled.outputs[lane].logits;
  if (ran.failures.empty()) ran.logits.assign(logits, logits + compiled.config.vocab_size);
  return ran;
}

inline std::vector<float> Cluster::expected_logits(const std::vector<std::uint32_t>& prompt) {
  model::Device* device = gateway_.add_device("local");
  const auto model =
      model::Model::load(model_options(), {gateway_.quants, std::span(&device, 1), std::nullopt});
  EXPECT_TRUE(model) << model.error().message();
  if (!model) return {};
  return run_prompt((*model)->compiled(), prompt).logits;
}

inline const std::vector<std::uint32_t> kPrompt = {1, 2, 3, 50, 99};

}  // namespace luna::cluster
