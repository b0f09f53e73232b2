#include "core/cluster/controller.hpp"

#include "core/base/log.hpp"
#include "core/base/random_seed.hpp"
#include "core/cluster/link.hpp"
#include "core/cluster/member.hpp"
#include "core/cluster/process_identity.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace luna::cluster {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Who has not proved to know the token: so many at a time, each for so long.
constexpr std::size_t kStrangersMax = 32;
constexpr std::chrono::seconds kGreetingLimit{5};
// Out of descriptors or memory: accepting again at once would only spin.
constexpr std::chrono::milliseconds kAcceptPause{50};

/// A worker that has joined.
struct Seat {
  std::shared_ptr<Member> member;
  std::optional<Farewell> leaves_as;
  bool wants_to_leave = false;  // it said so, whether it could or not
  bool is_dismissed = false;
  std::optional<MemoryReport> memory;
};

std::vector<std::shared_ptr<model::Device>> devices_of(const std::shared_ptr<Member>& member) {
  std::vector<std::shared_ptr<model::Device>> devices;
  for (std::size_t i = 0; i < member->n_devices(); ++i)
    devices.push_back(std::shared_ptr<model::Device>(member, &member->device(i)));
  return devices;
}

}  // namespace

struct Controller::Impl final : Membership {
  explicit Impl(ControllerOptions o, Token t) : options(std::move(o)), token(std::move(t)) {}

  Result<void> listen();
  void accept();
  void adopt(tcp::socket socket);
  Result<void> admit(const std::shared_ptr<Member>& member) override;
  void wants_to_leave(const Member& member) override;
  void note_memory(const Member& member, const MemoryReport& report) override;
  void part(const std::shared_ptr<Member>& member, const Error& why) override;
  Result<void> check(const Join& join) const;
  bool begin_leaving(const std::string& name, Farewell farewell);
  void tell_change();

  const ControllerOptions options;
  const Token token;
  std::string run;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
  std::map<const Member*, std::shared_ptr<Member>> strangers;  // [io] connected, not joined

  mutable std::mutex mutex;             // guards what follows
  std::map<std::string, Seat> members;  // joined, by name
  ClusterStatus last;                   // refusal and loss, without the workers
  std::function<void()> changed;

  telemetry::ClusterStats stats;
  std::thread thread;
};

Result<void> Controller::Impl::listen() {
  const std::string where =
      "cluster.host = \"" + options.host + "\", port = " + std::to_string(options.port) + ": ";
  error_code error;
  const auto address = asio::ip::make_address(options.host, error);
  if (error)
    return Error{Code::invalid_argument,
                 where + "must be an IP address, for example 127.0.0.1 or 0.0.0.0"};
  if (!address.is_loopback() && !options.token_file)
    return Error{Code::invalid_argument,
                 where + "without cluster.token_file only a loopback address is served"};
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return Error{Code::io, where + error.message()};
  return {};
}

void Controller::Impl::accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      // One too many is closed at once: it comes again.
      if (strangers.size() < kStrangersMax) adopt(std::move(socket));
      return accept();
    }
    logger("cluster")->warn("accept failed reason=\"{}\"", error.message());
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](const error_code& stopped) {
      if (!stopped) accept();
    });
  });
}

void Controller::Impl::adopt(tcp::socket socket) {
  const auto link = std::make_shared<Link>(std::move(socket));
  const Terms terms{run, options.heartbeat, options.timeout};
  const auto member = std::make_shared<Member>(link, token, terms, *this);
  strangers.emplace(member.get(), member);
  link->start(member);
  const auto limit = std::make_shared<asio::steady_timer>(context, kGreetingLimit);
  limit->async_wait([this, limit, link, key = member.get()](const error_code& stopped) {
    // The pointer is compared, not used: the member may be gone.
    if (!stopped && link->is_open() && strangers.contains(key))
      link->close({Code::timeout, "it did not join in time"});
  });
}

Result<void> Controller::Impl::check(const Join& join) const {
  if (join.version != options.version) {
    return Error{Code::unsupported,
                 "it is luna " + join.version + ", the controller " + options.version};
  }
  LUNA_TRY(check_same_plugins(options.plugins, join.plugins));
  const std::lock_guard lock(mutex);
  if (const auto same = members.find(join.name); same != members.end()) {
    return Error{Code::invalid_argument,
                 "another worker has the name " + join.name + ", at " +
                     same->second.member->link().peer() + "; choose another one with --name"};
  }
  const DeviceOffer* known = nullptr;
  if (!options.devices.empty()) known = &options.devices.front();
  if (known == nullptr && !members.empty())
    known = &members.begin()->second.member->join().devices.front();
  if (known == nullptr) known = &join.devices.front();
  for (const DeviceOffer& device : join.devices)
    LUNA_TRY(check_same_arithmetic(*known, device));
  return {};
}

Result<void> Controller::Impl::admit(const std::shared_ptr<Member>& member) {
  const Join& join = member->join();
  LUNA_TRY(check(join));
  strangers.erase(member.get());
  for (const DeviceOffer& device : join.devices)
    logger("cluster")->info(
        "device joined worker={} device={} backend={} detail=\"{}\" threads={} "
        "memory={}",
        join.name,
        device.name,
        device.backend,
        device.info.detail,
        device.n_threads,
        device.memory_bytes);
  // Before anybody knows it: nothing may be asked of a worker ahead of its welcome.
  member->welcome();
  {
    const std::lock_guard lock(mutex);
    members[join.name].member = member;
    ++stats.n_joined;
    // Perhaps the new one can take over for those that had to stay.
    for (auto& [name, seat] : members)
      if (seat.wants_to_leave && !seat.leaves_as) seat.leaves_as = Farewell::asked;
  }
  tell_change();
  return {};
}

void Controller::Impl::part(const std::shared_ptr<Member>& member, const Error& why) {
  if (strangers.erase(member.get()) != 0) {
    logger("cluster")->warn(
        "connection refused peer={} reason=\"{}\"", member->link().peer(), why.message());
    const std::lock_guard lock(mutex);
    ++stats.n_refused;
    last.last_refusal = member->link().peer() + ": " + why.message();
    return;
  }
  bool is_expected = false;
  {
    const std::lock_guard lock(mutex);
    const auto found = members.find(member->name());
    if (found == members.end() || found->second.member != member) return;
    is_expected = found->second.is_dismissed;
    members.erase(found);
    ++(is_expected ? stats.n_drained : stats.n_lost);
    if (!is_expected) last.last_loss = why.message();
  }
  if (is_expected)
    logger("cluster")->info("worker has left name={}", member->name());
  else
    logger("cluster")->warn("worker lost name={} reason=\"{}\"", member->name(), why.message());
  tell_change();
}

void Controller::Impl::wants_to_leave(const Member& member) {
  begin_leaving(member.name(), Farewell::asked);
}

void Controller::Impl::note_memory(const Member& member, const MemoryReport& report) {
  const std::lock_guard lock(mutex);
  const auto found = members.find(member.name());
  if (found != members.end()) found->second.memory = report;
}

bool Controller::Impl::begin_leaving(const std::string& name, Farewell farewell) {
  {
    const std::lock_guard lock(mutex);
    const auto found = members.find(name);
    if (found == members.end()) return false;
    // One that ends anyhow needs no other reason.
    if (found->second.leaves_as == Farewell::asked) return true;
    found->second.leaves_as = farewell;
    found->second.wants_to_leave |= farewell == Farewell::asked;
  }
  logger("cluster")->info("worker is drained name={}", name);
  tell_change();
  return true;
}

void Controller::Impl::tell_change() {
  std::function<void()> tell;
  {
    const std::lock_guard lock(mutex);
    std::uint64_t n_devices = 0;
    for (const auto& [name, seat] : members)
      n_devices += seat.member->n_devices();
    stats.n_workers = members.size();
    stats.n_devices = n_devices;
    tell = changed;
  }
  if (tell) tell();
}

Controller::Controller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Controller::~Controller() {
  on_change({});
  asio::post(impl_->context, [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->pause.cancel();
    for (const auto& [key, member] : impl->strangers)
      member->link().close({Code::cancelled, "the controller ends"});
    const std::lock_guard lock(impl->mutex);
    for (const auto& [name, seat] : impl->members)
      seat.member->link().close({Code::cancelled, "the controller ends"});
  });
  // The closes above were posted behind this; what is left then is timers of strangers.
  asio::post(impl_->context, [impl = impl_.get()] {
    asio::post(impl->context, [impl] {
      impl->work.reset();
      impl->context.stop();
    });
  });
  if (impl_->thread.joinable()) impl_->thread.join();
}

Result<std::unique_ptr<Controller>> Controller::open(ControllerOptions options) {
  Token token = Token::none();
  if (options.token_file) {
    LUNA_TRY(token, Token::read(*options.token_file));
  }
  LUNA_TRY(const std::uint64_t number, random_seed());
  auto impl = std::make_unique<Impl>(std::move(options), std::move(token));
  impl->run = "cluster-" + std::to_string(number);
  LUNA_TRY(impl->listen());
  impl->accept();
  impl->thread = std::thread([&context = impl->context] { context.run(); });
  auto controller = std::unique_ptr<Controller>(new Controller(std::move(impl)));
  logger("cluster")->info("workers may join port={}", controller->port());
  return controller;
}

std::uint16_t Controller::port() const {
  error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

const std::string& Controller::run() const {
  return impl_->run;
}

std::vector<std::shared_ptr<model::Device>> Controller::devices() const {
  std::vector<std::shared_ptr<model::Device>> devices;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [name, seat] : impl_->members)
    std::ranges::copy(devices_of(seat.member), std::back_inserter(devices));
  return devices;
}

std::vector<std::shared_ptr<model::Device>> Controller::staying_devices() const {
  std::vector<std::shared_ptr<model::Device>> devices;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [name, seat] : impl_->members)
    if (!seat.leaves_as) std::ranges::copy(devices_of(seat.member), std::back_inserter(devices));
  return devices;
}

Result<void> Controller::drain(const std::string& name, Farewell farewell) {
  if (impl_->begin_leaving(name, farewell)) return {};
  return Error{Code::not_found, "no worker has the name \"" + name + "\""};
}

void Controller::keep_leaving(const std::string& why) {
  std::uint32_t n_kept = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    for (auto& [name, seat] : impl_->members) {
      if (!std::exchange(seat.leaves_as, std::nullopt)) continue;
      ++n_kept;
      if (seat.wants_to_leave) seat.member->link().send(FrameType::stay, 0, encode_refusal(why));
    }
    if (n_kept > 0) impl_->last.last_kept = why;
  }
  if (n_kept == 0) return;
  logger("cluster")->warn("workers are not drained n={} reason=\"{}\"", n_kept, why);
  impl_->tell_change();
}

std::vector<LeavingWorker> Controller::leaving() const {
  std::vector<LeavingWorker> leaving;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [name, seat] : impl_->members) {
    if (!seat.leaves_as) continue;
    LeavingWorker& worker = leaving.emplace_back();
    worker.name = name;
    worker.farewell = *seat.leaves_as;
    for (std::size_t i = 0; i < seat.member->n_devices(); ++i)
      worker.devices.push_back(&seat.member->device(i));
  }
  return leaving;
}

void Controller::dismiss(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->members.find(name);
  if (found == impl_->members.end() || !found->second.leaves_as) return;
  if (std::exchange(found->second.is_dismissed, true)) return;
  found->second.member->link().send(
      FrameType::dismiss, 0, encode_farewell(*found->second.leaves_as));
}

void Controller::relieve(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->members.find(name);
  if (found != impl_->members.end()) found->second.member->link().send(FrameType::relieve, 0);
}

std::vector<DataEndpoint> Controller::endpoints_of(
    const std::vector<std::shared_ptr<model::Device>>& devices) const {
  std::vector<DataEndpoint> endpoints;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [name, seat] : impl_->members) {
    Member& owner = *seat.member;
    const bool is_used = std::ranges::any_of(devices, [&owner](const auto& device) {
      for (std::size_t i = 0; i < owner.n_devices(); ++i)
        if (device.get() == &owner.device(i)) return true;
      return false;
    });
    if (!is_used) continue;
    const Join& join = owner.join();
    endpoints.push_back({"worker " + name, join.host, join.process_id, join.transports});
  }
  return endpoints;
}

ClusterStatus Controller::status() const {
  const std::lock_guard lock(impl_->mutex);
  ClusterStatus status = impl_->last;
  for (const auto& [name, seat] : impl_->members) {
    WorkerStatus& worker = status.workers.emplace_back();
    worker.name = name;
    worker.peer = seat.member->link().peer();
    worker.roles = seat.member->join().roles;
    worker.leaves_as = seat.leaves_as;
    worker.memory = seat.memory;
    for (const DeviceOffer& device : seat.member->join().devices) {
      worker.devices.push_back(device.name);
      worker.memory_bytes += device.memory_bytes;
    }
  }
  return status;
}

telemetry::ClusterStats& Controller::stats() const {
  return impl_->stats;
}

void Controller::on_change(std::function<void()> changed) {
  const std::lock_guard lock(impl_->mutex);
  impl_->changed = std::move(changed);
}

}  // namespace luna::cluster
