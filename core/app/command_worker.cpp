#include "core/app/command_worker.hpp"

#include "core/app/devices.hpp"
#include "core/app/known_models.hpp"
#include "core/app/run_settings.hpp"
#include "core/app/stop_signal.hpp"
#include "core/app/version.hpp"
#include "core/base/clock.hpp"
#include "core/base/log.hpp"
#include "core/base/units.hpp"
#include "core/cluster/data_transports.hpp"
#include "core/cluster/process_identity.hpp"
#include "core/cluster/worker.hpp"
#include "core/config/settings_reader.hpp"
#include "core/config/settings_value.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/host_services.hpp"
#include "core/plugin/settings_check.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <ostream>
#include <thread>
#include <unistd.h>
#include <utility>

namespace luna::app {
namespace {

/// "4 GiB", as the TOML takes it.
Result<std::uint64_t> parse_memory(const std::string& text) {
  static constexpr config::KeyRow kRow{"worker",
                                       "memory",
                                       config::ValueType::bytes,
                                       static_cast<std::int64_t>(kMiB),
                                       static_cast<std::int64_t>(kMiB * kGiB),
                                       "",
                                       std::nullopt,
                                       "",
                                       nullptr};
  config::TomlNode node{{1, 1}, text};
  const auto value = config::convert(kRow, node, {});
  if (!value) {
    return Error{Code::invalid_argument,
                 "--memory " + text + ": must be " + config::describe_key(kRow)};
  }
  return static_cast<std::uint64_t>(std::get<std::int64_t>(*value));
}

struct Address {
  std::string host;
  std::uint16_t port = 0;
};

/// "HOST:PORT" or "[::1]:PORT".
Result<Address> parse_join(const std::string& text) {
  const auto colon = text.rfind(':');
  Address address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    const char* const begin = text.data() + colon + 1;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, address.port);
    if (error != std::errc() || rest != end) address.port = 0;
  }
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || address.port == 0)
    return Error{Code::invalid_argument,
                 "--join " + text + ": must be HOST:PORT with a port of 1 to 65535"};
  return address;
}

/// "cpu:0" or "cpu".
Result<config::DeviceSettings> parse_device(const std::string& text,
                                            const std::string& worker,
                                            std::size_t place) {
  config::DeviceSettings device;
  const auto colon = text.find(':');
  device.backend = text.substr(0, colon);
  bool is_right = !device.backend.empty();
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, device.index);
    is_right = is_right && error == std::errc() && rest == end;
  }
  if (!is_right)
    return Error{Code::invalid_argument,
                 "--devices " + text + ": must be BACKEND or BACKEND:INDEX, such as cpu:0"};
  // The place tells devices apart that are the same processor.
  device.name = worker + "/" + std::to_string(place);
  device.own.table = "device";
  return device;
}

std::string host_name() {
  std::array<char, 128> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Everything that a worker works with, in the order in which it is built.
class WorkerProcess {
 public:
  WorkerProcess(const WorkerCommand& command, const CommandStreams& streams)
      : command_(command),
        streams_(streams),
        name_(command.name.empty() ? host_name() : command.name),
        services_({&clock_, 0, {}}) {}

  Result<int> run() {
    LUNA_TRY(said_, config::read_worker_settings(command_.overrides));
    init_logging(to_spdlog(said_.log.level));
    LUNA_TRY(const Address address, parse_join(command_.join));
    LUNA_TRY(open_plugins());
    LUNA_TRY(open_devices());
    cluster::WorkerOptions options;
    options.host = address.host;
    options.port = address.port;
    if (!command_.token_file.empty()) options.token_file = command_.token_file;
    options.data_host = command_.data_host;
    options.drain_timeout = std::chrono::milliseconds(command_.drain_timeout_ms);
    options.speed_cache = speed_cache();
    cluster::TransportTerms terms;
    terms.token_file = options.token_file;
    terms.host = options.data_host;
    transports_->set_terms(std::move(terms));
    LUNA_TRY(options.join, describe());
    LUNA_TRY(auto worker, cluster::Worker::create(std::move(options), parts()));
    const auto farewell = worker->run([] { return !StopSignal::is_set(); });
    return farewell == cluster::Farewell::restart ? kExitRestart : kExitFine;
  }

 private:
  Result<void> open_plugins() {
    plugin::Catalog::Options search;
    search.folders = plugin::search_folders(command_.plugin_folders, said_.plugins.paths);
    search.services = &services_;
    search.trust = plugin::trust_of(said_.plugins);
    catalog_ = plugin::Catalog::scan(std::move(search));
    if (const auto wrong = plugin::check_pins(said_.plugins, "--set", *catalog_); !wrong.empty())
      return config::join_errors(wrong);
    for (const std::string& name : catalog_->names(LUNA_KIND_QUANT)) {
      LUNA_TRY(auto quant, catalog_->create<luna_quant_if>(name, config::RawGroup{}));
      quants_.push_back(std::move(quant));
    }
    transports_.emplace(*catalog_, said_.transport);
    return {};
  }

  Result<void> open_devices() {
    LUNA_TRY(const std::uint64_t memory_bytes, parse_memory(command_.memory));
    const auto n_devices = static_cast<std::uint32_t>(command_.devices.size());
    const std::uint32_t n_threads =
        command_.n_threads != 0
            ? command_.n_threads
            : std::max(1U, std::thread::hardware_concurrency() / std::max(1U, n_devices));
    for (std::uint32_t i = 0; i < n_devices; ++i) {
      LUNA_TRY(config::DeviceSettings wanted, parse_device(command_.devices[i], name_, i));
      wanted.memory_bytes = memory_bytes;
      wanted.n_threads = n_threads;
      LUNA_TRY(OpenDevice opened,
               open_device(*catalog_, wanted, command_.first_cpu + i * n_threads));
      devices_.push_back(std::move(opened));
      settings_.push_back(std::move(wanted));
    }
    return {};
  }

  Result<cluster::Join> describe() {
    cluster::Join join;
    join.name = name_;
    join.version = kVersion;
    join.host = cluster::host_identity();
    join.process_id = static_cast<std::uint64_t>(getpid());
    join.plugins = cluster::plugin_identities(*catalog_);
    join.transports = transports_->offers();
    join.roles = command_.roles;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      model::Device& device = *devices_[i].device;
      cluster::DeviceOffer& offer = join.devices.emplace_back();
      offer.name = device.name();
      offer.backend = device.backend_name();
      offer.info = device.info();
      offer.memory_bytes = device.memory_bytes();
      offer.n_threads = settings_[i].n_threads;
      offer.can_slice = device.can_slice();
      LUNA_TRY(offer.fingerprints, cluster::take_fingerprints(device));
    }
    return join;
  }

  cluster::WorkerParts parts() {
    cluster::WorkerParts parts;
    for (const OpenDevice& open : devices_)
      parts.devices.push_back(open.device.get());
    parts.quants = quants_;
    parts.transports = &*transports_;
    parts.find_model = [this](const std::string& source) -> Result<std::filesystem::path> {
      if (!command_.shard_path.empty()) return std::filesystem::path(command_.shard_path);
      if (is_model_path(source))
        return Error{Code::not_found,
                     "the server's model is the file " + source +
                         ": where it or its shards lie here is said by --shard-path"};
      return find_model(source);
    };
    parts.say = [this](const std::string& line) { streams_.out << line << std::endl; };
    return parts;
  }

  const WorkerCommand& command_;
  const CommandStreams& streams_;
  const std::string name_;
  config::WorkerSettings said_;
  RealClock clock_;
  plugin::HostServices services_;
  std::unique_ptr<plugin::Catalog> catalog_;
  std::vector<plugin::Instance<luna_quant_if>> quants_;
  std::optional<cluster::DataTransports> transports_;
  std::deque<OpenDevice> devices_;
  std::vector<config::DeviceSettings> settings_;  // as devices_
};

}  // namespace

int run_worker(const WorkerCommand& command, const CommandStreams& streams) {
  WorkerProcess process(command, streams);
  const auto result = process.run();
  return result ? *result : fail(streams, result.error());
}

}  // namespace luna::app
