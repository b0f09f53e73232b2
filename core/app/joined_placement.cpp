#include "core/app/joined_placement.hpp"

#include "core/base/log.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace luna::app {
namespace {

// How often it looks without being woken: whether a moment is quiet, whether a file has come.
constexpr std::chrono::milliseconds kLook{200};
// A new device is used at a quiet moment, or after so long whatever runs: using it costs every
// request a pause.
constexpr std::chrono::seconds kQuietLimit{2};

constexpr std::chrono::seconds kTryAgain{2};

bool has(const JoinedGroup& group, const std::shared_ptr<model::Device>& device) {
  return std::ranges::find(group, device) != group.end();
}

}  // namespace

std::vector<model::Device*> pointers_of(const JoinedGroup& group) {
  std::vector<model::Device*> devices;
  for (const auto& device : group)
    devices.push_back(device.get());
  return devices;
}

JoinedGroup devices_of_groups(const std::vector<JoinedGroup>& groups) {
  JoinedGroup devices;
  for (const JoinedGroup& group : groups)
    devices.insert(devices.end(), group.begin(), group.end());
  return devices;
}

std::vector<std::vector<std::string>> names_of(const std::vector<JoinedGroup>& groups) {
  std::vector<std::vector<std::string>> names;
  for (const JoinedGroup& group : groups) {
    names.emplace_back();
    for (const auto& device : group)
      names.back().push_back(device->name());
  }
  return names;
}

JoinedPlacement::JoinedPlacement(ClusterHost& cluster,
                                 config::ModelSettings settings,
                                 telemetry::ClusterStats& stats)
    : cluster_(cluster), settings_(std::move(settings)), stats_(stats) {
  status_.model = settings_.name;
}

JoinedPlacement::~JoinedPlacement() {
  stop();
}

std::vector<JoinedGroup> JoinedPlacement::groups_of(const JoinedGroup& devices) const {
  if (settings_.layout == config::Layout::pipeline) return {devices};
  std::vector<JoinedGroup> groups;
  for (const auto& device : devices)
    groups.push_back({device});
  return groups;
}

// A pipeline over all devices goes before the next one comes; two, so that the engine knows that
// others may come.
std::uint32_t JoinedPlacement::n_groups_max() const {
  const bool is_pipeline = settings_.layout == config::Layout::pipeline;
  return is_pipeline ? 2U : static_cast<std::uint32_t>(telemetry::kGroupsMax);
}

void JoinedPlacement::note_gone(void* placement, const engine::GroupEnd& end) {
  auto& self = *static_cast<JoinedPlacement*>(placement);
  const std::lock_guard lock(self.mutex_);
  self.gone_.push_back(end.group);
  self.is_woken_ = true;
  self.wake_.notify_all();
}

void JoinedPlacement::start(ServedModel& model, const std::vector<JoinedGroup>& groups) {
  model_ = &model;
  for (const JoinedGroup& group : groups)
    placed_.push_back({engine::GroupId{static_cast<std::uint32_t>(placed_.size())}, group});
  hold({});
  tell();
  cluster_.listen(this, [this] {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    wake_.notify_all();
  });
  thread_ = std::thread([this] { run(); });
}

void JoinedPlacement::stop() {
  cluster_.listen(this, {});
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  cluster_.hold(this, {});
}

bool JoinedPlacement::relieve(const std::vector<std::string>& names) {
  std::vector<engine::GroupId> burdened;
  bool has_other = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t g = 0; g < ids_.size(); ++g) {
      const bool is_on_them =
          std::ranges::any_of(status_.groups[g], [&](const std::string& device) {
            return std::ranges::find(names, device) != names.end();
          });
      if (is_on_them)
        burdened.push_back(ids_[g]);
      else
        has_other = true;
    }
  }
  if (!has_other) return false;
  for (const engine::GroupId id : burdened)
    model_->relieve_group(id);
  return !burdened.empty();
}

void JoinedPlacement::drop_prefix_cache() {
  model_->drop_prefix_cache();
}

void JoinedPlacement::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kLook, [this] { return is_woken_ || is_stopped_; });
      if (is_stopped_) return;
      is_woken_ = false;
    }
    drop_gone();
    act();
    // Whoever leaves and is not among them any more, may.
    hold({});
    tell();
  }
}

/// What the engine uses no more is destroyed, so that its devices have room.
void JoinedPlacement::drop_gone() {
  std::vector<engine::GroupId> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(gone_);
  }
  for (const engine::GroupId id : gone) {
    model_->drop_group(id);
    std::erase_if(placed_, [id](const Placed& placed) { return placed.id == id; });
  }
}

void JoinedPlacement::act() {
  Scene scene{cluster_.controller().devices(), cluster_.controller().staying_devices(), {}};
  if (!scene.staying.empty()) scene.wanted = groups_of(scene.staying);
  if (scene.staying.size() == scene.here.size()) ahead_.clear();
  keep_unsettled(scene);
  // Nobody could take over: what runs may end where it is.
  if (scene.staying.empty() && !scene.here.empty()) return run_out();
  add_ahead(scene);
  retire_misplaced(scene);
  add_missing(scene);
  keep_unsettled(scene);
}

/// Nobody goes before it is known that the others can have what lay on its devices.
void JoinedPlacement::keep_unsettled(const Scene& scene) {
  const bool is_settled =
      scene.wanted.empty() || std::ranges::any_of(scene.wanted, [this](const JoinedGroup& group) {
        return is_placed(group);
      });
  unsettled_ = is_settled ? JoinedGroup() : scene.here;
}

bool JoinedPlacement::Scene::has_lost(const JoinedGroup& group) const {
  return std::ranges::any_of(group, [this](const auto& device) { return !has(here, device); });
}

/// Whether some of its devices are lost, or about to leave.
bool JoinedPlacement::Scene::loses(const JoinedGroup& group) const {
  return std::ranges::any_of(group, [this](const auto& device) { return !has(staying, device); });
}

bool JoinedPlacement::is_placed(const JoinedGroup& group) const {
  return std::ranges::any_of(
      placed_, [&](const Placed& placed) { return !placed.is_leaving && placed.devices == group; });
}

/// Where workers leave and the others have room for both, what comes is there before what goes:
/// then requests pause for their tokens alone and not for the loading.
void JoinedPlacement::add_ahead(const Scene& scene) {
  for (const JoinedGroup& group : scene.wanted) {
    if (is_placed(group) || std::ranges::find(ahead_, group) != ahead_.end()) continue;
    std::uint32_t n_kv_blocks = 0;
    for (const Placed& placed : placed_) {
      const bool makes_way =
          !placed.is_leaving && scene.loses(placed.devices) && !scene.has_lost(placed.devices) &&
          std::ranges::any_of(group,
                              [&](const auto& device) { return has(placed.devices, device); });
      if (makes_way) n_kv_blocks = std::max(n_kv_blocks, model_->n_kv_blocks(placed.id));
    }
    if (n_kv_blocks == 0) continue;
    const auto added = add(group, n_kv_blocks / 4 * 3);
    if (added) continue;
    logger("app")->info("no room beside what leaves model={} reason=\"{}\"",
                        settings_.name,
                        added.error().message());
    ahead_.push_back(group);
  }
}

void JoinedPlacement::retire_misplaced(const Scene& scene) {
  bool is_waiting = false;
  for (Placed& placed : placed_) {
    const auto& wanted = scene.wanted;
    if (placed.is_leaving || std::ranges::find(wanted, placed.devices) != wanted.end()) continue;
    const bool has_lost = scene.has_lost(placed.devices);
    const bool loses = scene.loses(placed.devices);
    if (!loses && !may_pause()) {
      is_waiting = true;
      continue;
    }
    if (!loses) get_to_know(scene);
    logger("app")->info("model is placed anew model={} devices_here={} reason={}",
                        settings_.name,
                        scene.here.size(),
                        has_lost ? "a device was lost"
                        : loses  ? "a worker leaves"
                                 : "a device has come");
    retire(placed, has_lost ? engine::RetireMode::at_once : engine::RetireMode::moving);
  }
  if (!is_waiting) waits_since_.reset();
}

/// A device that was never measured is, while requests still run where they are. What goes wrong
/// now goes wrong when the model is placed, which tells it.
void JoinedPlacement::get_to_know(const Scene& scene) const {
  for (const JoinedGroup& group : scene.wanted) {
    if (is_placed(group)) continue;
    const auto joined = cluster_.join(group);
    if (!joined) continue;
    if (const auto known = model_->survey(pointers_of(group), joined->collective); !known)
      logger("app")->info("devices not measured ahead model={} reason=\"{}\"",
                          settings_.name,
                          known.error().message());
  }
}

void JoinedPlacement::run_out() {
  for (Placed& placed : placed_)
    if (!placed.is_leaving) retire(placed, engine::RetireMode::when_idle);
}

void JoinedPlacement::retire(Placed& placed, engine::RetireMode mode) {
  placed.is_leaving = true;
  model_->retire_group(placed.id, mode);
}

std::size_t JoinedPlacement::n_placed() const {
  std::size_t n = 0;
  for (const Placed& placed : placed_)
    if (!placed.is_leaving) n += placed.devices.size();
  return n;
}

/// Whether requests may pause for a better placement: at once where devices had been lost, else at
/// a quiet moment.
bool JoinedPlacement::may_pause() {
  const telemetry::EngineStats& stats = model_->stats();
  const bool is_quiet = stats.n_running.load() == 0 && stats.n_waiting.load() == 0;
  if (is_quiet || n_placed() < n_devices_most_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!waits_since_) waits_since_ = now;
  return now - *waits_since_ >= kQuietLimit;
}

bool JoinedPlacement::is_used(const std::shared_ptr<model::Device>& device) const {
  return std::ranges::any_of(placed_,
                             [&](const Placed& placed) { return has(placed.devices, device); });
}

void JoinedPlacement::add_missing(const Scene& scene) {
  // What failed is tried again with other devices, or after a while: a file may have come.
  const auto now = std::chrono::steady_clock::now();
  if (failed_ && failed_->wanted == scene.wanted && now - failed_->at < kTryAgain) return;
  failed_.reset();
  std::string error;
  bool is_impossible = false;  // with these devices, as far as one can tell
  for (const JoinedGroup& group : scene.wanted) {
    if (std::ranges::any_of(group, [this](const auto& device) { return is_used(device); }))
      continue;
    // It takes the place of one that is about to go, as soon as that has gone.
    if (!model_->has_slice_room() && std::ranges::any_of(placed_, &Placed::is_leaving)) continue;
    const auto added = add(group, 0);
    if (added) continue;
    error = added.error().message();
    is_impossible |= added.error().code() != Code::unavailable;
  }
  if (!error.empty()) failed_ = {scene.wanted, std::chrono::steady_clock::now()};
  {
    const std::lock_guard lock(mutex_);
    if (!error.empty() && error != status_.last_error)
      logger("app")->warn("model not placed model={} reason=\"{}\"", settings_.name, error);
    status_.last_error = error;
  }
  if (is_impossible && scene.staying.size() < scene.here.size())
    cluster_.controller().keep_leaving("model " + settings_.name +
                                       " cannot lie on the others: " + error);
}

Result<void> JoinedPlacement::add(const JoinedGroup& group, std::uint32_t n_kv_blocks_min) {
  const auto start = std::chrono::steady_clock::now();
  hold(group);
  LUNA_TRY(const JoinedDevices joined, cluster_.join(group));
  LUNA_TRY(const engine::GroupId added,
           model_->add_group(
               pointers_of(group), {joined.collective, slices_with(group)}, n_kv_blocks_min));
  placed_.push_back({added, group});
  ++stats_.n_placed;
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  logger("app")->info(
      "model placed model={} devices={} took_ms={}", settings_.name, group.size(), took.count());
  return {};
}

/// What carries slices between a group that is about to come and those that are here.
std::optional<model::Collective> JoinedPlacement::slices_with(const JoinedGroup& group) const {
  const std::optional<std::string> transport = model_->slice_transport();
  if (!transport) return std::nullopt;
  std::vector<JoinedGroup> groups = {group};
  for (const Placed& placed : placed_)
    groups.push_back(placed.devices);
  return cluster_.slices_between(devices_of_groups(groups), transport);
}

/// What is placed, what is about to be, and whom that may need yet.
void JoinedPlacement::hold(const JoinedGroup& more) {
  JoinedGroup all = more;
  all.insert(all.end(), unsettled_.begin(), unsettled_.end());
  for (const Placed& placed : placed_)
    all.insert(all.end(), placed.devices.begin(), placed.devices.end());
  cluster_.hold(this, all);
}

void JoinedPlacement::tell() {
  const std::size_t n_devices = n_placed();
  n_devices_most_ = std::max(n_devices_most_, n_devices);
  stats_.n_degraded.store(n_devices_most_ - n_devices);
  std::vector<JoinedGroup> groups;
  std::vector<engine::GroupId> ids;
  for (const Placed& placed : placed_) {
    if (placed.is_leaving) continue;
    groups.push_back(placed.devices);
    ids.push_back(placed.id);
  }
  const std::lock_guard lock(mutex_);
  status_.groups = names_of(groups);
  ids_ = std::move(ids);
  status_.is_degraded = n_devices < n_devices_most_;
}

PlacementStatus JoinedPlacement::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool JoinedPlacement::can_serve() const {
  const std::lock_guard lock(mutex_);
  return !status_.groups.empty();
}

}  // namespace luna::app
