#include "core/cluster/worker_session.hpp"

#include "core/base/log.hpp"
#include "core/base/process_memory.hpp"
#include "core/model/layers_at_hand.hpp"
#include "core/model/model_identity.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace luna::cluster {
namespace {

// How often the main thread looks whether it shall end.
constexpr std::chrono::milliseconds kLook{100};
// How often it says what its process takes.
constexpr std::chrono::milliseconds kReport{500};
// A controller asks for a few shards at a time.
constexpr std::size_t kJobsMax = 1024;

}  // namespace

WorkerSession::WorkerSession(const WorkerOptions& options,
                             const WorkerParts& parts,
                             const Token& token,
                             std::shared_ptr<Link> link)
    : options_(options),
      parts_(parts),
      link_(std::move(link)),
      greeting_(token, options.join.name),
      surveyor_(options, parts),
      spares_(parts.devices.size()) {
  for (model::Device* device : parts.devices)
    stores_.push_back(std::make_unique<model::WeightStore>(*device));
}

WorkerSession::~WorkerSession() = default;

Result<void> WorkerSession::begin() {
  LUNA_TRY(const Reply hello, greeting_.begin());
  link_->send(hello.type, 0, hello.payload);
  return {};
}

Result<void> WorkerSession::on_frame(const Frame& frame) {
  if (!greeting_.terms()) return greet(frame);
  switch (frame.type) {
    case FrameType::step:
    case FrameType::abort:
      return run_step(frame);
    case FrameType::kv_export:
    case FrameType::kv_import:
      return copy_kv(frame);
    case FrameType::slices_abort:
      return abort_slices(frame);
    case FrameType::refuse:
      return Error{Code::unavailable, "refused: " + parse_refusal(frame.payload)};
    case FrameType::slices_close:
      LUNA_TRY(parse_slice_place(frame.payload));
      return add_job(frame);
    case FrameType::welcome:
    case FrameType::dismiss:
    case FrameType::stay:
    case FrameType::relieve:
    case FrameType::survey:
    case FrameType::plan:
    case FrameType::pack:
    case FrameType::bind:
    case FrameType::slices_open:
    case FrameType::unload:
      return add_job(frame);
    default:
      return Error{Code::corrupt,
                   "a frame '" + std::string(name_of(frame.type)) + "' from a controller"};
  }
}

Result<void> WorkerSession::add_job(const Frame& frame) {
  const std::lock_guard lock(jobs_mutex_);
  if (jobs_.size() >= kJobsMax) return Error{Code::exhausted, "too much is asked at once"};
  jobs_.push_back({frame.type, frame.subject, {frame.payload.begin(), frame.payload.end()}});
  wake_.notify_all();
  return {};
}

Result<void> WorkerSession::greet(const Frame& frame) {
  LUNA_TRY(const auto reply, greeting_.take(frame));
  if (reply) {
    link_->send(reply->type, 0, reply->payload);
    return {};
  }
  const Terms& terms = *greeting_.terms();
  LUNA_TRY(auto seals, greeting_.seals());
  link_->trust(terms.heartbeat, terms.timeout, std::move(seals));
  link_->send(FrameType::join, 0, encode_join(options_.join));
  const std::lock_guard lock(jobs_mutex_);
  terms_ = terms;
  return {};
}

Result<void> WorkerSession::run_step(const Frame& frame) {
  const std::lock_guard lock(shards_mutex_);
  const auto found = shards_.find(frame.subject);
  if (found == shards_.end()) {
    if (frame.type == FrameType::abort) return {};  // it was never planned to the end
    return Error{Code::corrupt, "a step of a shard that is not loaded"};
  }
  if (frame.type == FrameType::step) return found->second->start(frame.payload);
  found->second->abort();
  return {};
}

Result<void> WorkerSession::copy_kv(const Frame& frame) {
  const std::lock_guard lock(shards_mutex_);
  const auto found = shards_.find(frame.subject);
  if (found == shards_.end()) return Error{Code::corrupt, "KV of a shard that is not loaded"};
  LUNA_TRY(KvTask task, found->second->begin_copy(frame));
  courier_.push(std::move(task));
  return {};
}

Result<void> WorkerSession::abort_slices(const Frame& frame) {
  LUNA_TRY(const std::uint32_t place, parse_slice_place(frame.payload));
  const std::lock_guard lock(shards_mutex_);
  const auto found = shards_.find(frame.subject);
  if (found != shards_.end()) found->second->abort_slices(place);
  return {};
}

void WorkerSession::on_closed(const Error& why) {
  const std::lock_guard lock(jobs_mutex_);
  closed_ = why;
  wake_.notify_all();
}

bool WorkerSession::has_joined() const {
  const std::lock_guard lock(jobs_mutex_);
  return has_joined_;
}

std::optional<WorkerSession::Job> WorkerSession::next_job(const std::function<bool()>& keep_going) {
  std::unique_lock lock(jobs_mutex_);
  while (!closed_) {
    if (!jobs_.empty()) {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      return job;
    }
    wake_.wait_for(lock, next_look());
    lock.unlock();
    if (!keep_going()) wish_to_leave();
    report_memory();
    pack_spares();
    lock.lock();
  }
  return std::nullopt;
}

/// Others shall take over what lies here; when they have, or do not in time, it leaves.
void WorkerSession::wish_to_leave() {
  const auto now = std::chrono::steady_clock::now();
  const bool has_begun = leaves_since_.has_value();
  if (!has_begun) leaves_since_ = now;
  const bool waits = has_joined() && now - *leaves_since_ < options_.drain_timeout;
  if (waits && !has_begun) link_->send(FrameType::drain, 0);
  if (waits) return;
  link_->send(FrameType::leave, 0);
  const std::lock_guard lock(jobs_mutex_);
  if (!closed_) closed_ = Error{Code::cancelled, "told to end"};
}

void WorkerSession::report_memory() {
  const auto now = std::chrono::steady_clock::now();
  if (!has_joined() || now - reported_at_ < kReport) return;
  reported_at_ = now;
  const std::uint64_t resident = resident_bytes();
  MemoryReport report;
  report.resident = resident - std::min(resident, options_.resident_before);
  for (const model::Device* device : parts_.devices)
    report.budget += device->memory_bytes();
  for (const auto& store : stores_)
    report.spare += store->n_bytes();
  {
    const std::lock_guard lock(shards_mutex_);
    for (const auto& [id, shard] : shards_) {
      const model::ShardMemory& memory = shard->local().memory();
      report.fixed += memory.fixed();
      report.kv += memory.kv;
    }
  }
  link_->send(FrameType::memory, 0, encode_memory(report));
}

Error WorkerSession::serve(const std::function<bool()>& keep_going) {
  while (const auto job = next_job(keep_going))
    do_job(*job);
  drop_all();
  const std::lock_guard lock(jobs_mutex_);
  return *closed_;
}

void WorkerSession::do_job(const Job& job) {
  switch (job.type) {
    case FrameType::welcome:
      return join_run();
    case FrameType::dismiss:
      return be_dismissed(job);
    case FrameType::stay:
      return be_kept(job);
    case FrameType::relieve:
      return relieve();
    case FrameType::unload:
      return unload(job.shard_id);
    case FrameType::slices_close:
      return close_slices(job);
    default:
      return answer(job);
  }
}

void WorkerSession::join_run() {
  TransportTerms terms;
  {
    const std::lock_guard lock(jobs_mutex_);
    terms.run = terms_->run;
  }
  terms.host = options_.data_host.empty() ? link_->own_host() : options_.data_host;
  terms.token_file = options_.token_file;
  parts_.transports->set_terms(std::move(terms));
  {
    const std::lock_guard lock(jobs_mutex_);
    has_joined_ = true;
  }
  parts_.say("joined " + link_->peer() + " as " + options_.join.name);
}

void WorkerSession::be_dismissed(const Job& job) {
  const auto farewell = parse_farewell(job.payload);
  link_->send(FrameType::leave, 0);
  const std::lock_guard lock(jobs_mutex_);
  if (farewell) {
    farewell_ = *farewell;
    closed_ = Error{Code::cancelled, "dismissed"};
  } else {
    closed_ = farewell.error();
  }
}

/// It serves on as long as it may: another worker may come, what runs may end.
void WorkerSession::be_kept(const Job& job) {
  if (!leaves_since_) return;
  const auto left = *leaves_since_ + options_.drain_timeout - std::chrono::steady_clock::now();
  logger("cluster")->warn(
      "nobody can take over what lies here, it ends when somebody can or in time; a second signal "
      "ends "
      "it at once ends_in_ms={} reason=\"{}\"",
      std::chrono::duration_cast<std::chrono::milliseconds>(left).count(),
      parse_refusal(job.payload));
}

/// What nobody uses goes back to the system.
void WorkerSession::relieve() {
  const std::uint64_t before = resident_bytes();
  for (Spares& spares : spares_)
    spares.packer.stop();
  for (const auto& store : stores_)
    store->clear();
  trim_heap();
  logger("cluster")->info("memory was given back before={} now={}", before, resident_bytes());
}

void WorkerSession::unload(std::uint64_t shard_id) {
  std::unique_ptr<WorkerShard> shard;
  {
    const std::lock_guard lock(shards_mutex_);
    const auto found = shards_.find(shard_id);
    if (found == shards_.end()) return;
    found->second->abort_all();
    shard = std::move(found->second);
    shards_.erase(found);
  }
  shard.reset();  // which waits for its steps
  logger("cluster")->info("shard unloaded id={}", shard_id);
}

void WorkerSession::answer(const Job& job) {
  const auto start = std::chrono::steady_clock::now();
  Answer answer;
  if (!has_joined()) {
    // The welcome brings the terms that transports are opened with.
    answer.result = Error{Code::corrupt, "asked ahead of the welcome"};
  } else if (job.type == FrameType::survey) {
    answer.result = survey(job, answer);
  } else if (job.type == FrameType::plan) {
    answer.result = plan(job, answer);
  } else if (WorkerShard* shard = find(job.shard_id); shard == nullptr) {
    answer.result = Error{Code::not_found, "no such shard"};
  } else if (job.type == FrameType::pack) {
    answer.result = shard->pack();
  } else if (job.type == FrameType::slices_open) {
    answer.result = open_slices(job, *shard);
  } else if (const auto bind = parse_bind(job.payload); bind) {
    answer.result = shard->bind(*bind);
    if (answer.result) answer.kv = shard->kv_layout();
  } else {
    answer.result = bind.error();
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  if (answer.result)
    logger("cluster")->info(
        "answered id={} asked={} took_ms={}", job.shard_id, name_of(job.type), took.count());
  else
    logger("cluster")->warn("shard refused id={} asked={} reason=\"{}\"",
                            job.shard_id,
                            name_of(job.type),
                            answer.result.error().message());
  link_->send(FrameType::answer, job.shard_id, encode_answer(answer));
  if (job.type != FrameType::bind || !answer.result) return;
  if (const WorkerShard* shard = find(job.shard_id); shard != nullptr) begin_spares(*shard);
}

Result<void> WorkerSession::open_slices(const Job& job, WorkerShard& shard) {
  LUNA_TRY(const model::SliceTerms terms, parse_slice_terms(job.payload));
  return shard.open_slices(terms);
}

void WorkerSession::close_slices(const Job& job) {
  const auto place = parse_slice_place(job.payload);  // read before
  WorkerShard* const shard = find(job.shard_id);
  if (place && shard != nullptr) shard->close_slices(*place);
}

Result<void> WorkerSession::survey(const Job& job, Answer& answer) {
  LUNA_TRY(const Survey survey, parse_survey(job.payload));
  const model::SurveyOrder& order = survey.order;
  if (survey.device_idx >= parts_.devices.size())
    return Error{Code::not_found, "no device " + std::to_string(survey.device_idx)};
  LUNA_TRY(const std::filesystem::path path, parts_.find_model(order.source));
  LUNA_TRY(check_identity(path, order.identity));
  LUNA_TRY(answer.layers, model::layers_at_hand(path));
  if (!order.is_timed) return {};
  answer.device = surveyor_.survey(survey, job.payload, path, answer.layers);
  return {};
}

Result<void> WorkerSession::plan(const Job& job, Answer& answer) {
  LUNA_TRY(const Plan plan, parse_plan(job.payload));
  if (plan.device_idx >= parts_.devices.size())
    return Error{Code::not_found, "no device " + std::to_string(plan.device_idx)};
  LUNA_TRY(const std::filesystem::path path, parts_.find_model(plan.order.source));
  LUNA_TRY(check_identity(path, plan.order.identity));
  LUNA_TRY(model::ModelFile file, model::ModelFile::open(path));
  model::LocalShardParts parts;
  parts.device = parts_.devices[plan.device_idx];
  parts.file = std::make_shared<const model::ModelFile>(std::move(file));
  parts.quants = parts_.quants;
  parts.n_load_threads = options_.n_load_threads;
  parts.store = stores_[plan.device_idx].get();
  if (plan.order.layers.size() > 1) {
    LUNA_TRY(parts.collective, parts_.transports->open(plan.order.transport));
  }
  Spares& spares = spares_[plan.device_idx];
  spares.packer.stop();
  spares.order = plan.order;
  spares.path = path;
  if (plan.order.program.n_slice_peers > 0) {
    LUNA_TRY(parts.slices, parts_.transports->open(plan.order.slice_transport));
  }
  LUNA_TRY(auto local, model::LocalShard::plan(plan.order, std::move(parts)));
  const model::LayerRange& layers = plan.order.layers[plan.order.rank];
  logger("cluster")->info("shard planned id={} model={} layers={}..{} transport={}",
                          job.shard_id,
                          plan.order.model,
                          layers.first,
                          layers.end(),
                          plan.order.transport);
  answer.memory = local->memory();
  answer.address = local->address();
  answer.slice_message_bytes = local->slice_message_bytes();
  answer.slice_address = local->slice_address();
  auto shard = std::make_unique<WorkerShard>(job.shard_id, std::move(local), plan.order, link_);
  const std::lock_guard lock(shards_mutex_);
  if (!shards_.emplace(job.shard_id, std::move(shard)).second)
    return Error{Code::corrupt, "a shard planned twice"};
  return {};
}

Result<void> WorkerSession::check_identity(const std::filesystem::path& path,
                                           const std::string& wanted) {
  std::error_code unknown;
  const auto written = std::filesystem::last_write_time(path, unknown);
  if (!identity_ || unknown || identity_->path != path || identity_->written != written) {
    LUNA_TRY(std::string text, model::model_identity(path));
    identity_ = {path, written, std::move(text)};
  }
  if (identity_->text == wanted) return {};
  return Error{Code::corrupt,
               path.string() + ": another model than the controller's: its SHA-256 is " +
                   identity_->text + ", the controller's " + wanted};
}

/// What others run next to a shard is packed ahead, where it is at hand.
void WorkerSession::begin_spares(const WorkerShard& shard) {
  for (std::size_t i = 0; i < parts_.devices.size(); ++i) {
    Spares& spares = spares_[i];
    const bool is_its =
        parts_.devices[i] == &shard.local().device() && spares.order.layers.size() > 1;
    if (!is_its) continue;
    const auto at_hand = model::layers_at_hand(spares.path);
    if (!at_hand || at_hand->count != shard.local().config().n_layers) continue;
    model::LocalShardParts parts;
    parts.device = parts_.devices[i];
    parts.quants = parts_.quants;
    parts.store = stores_[i].get();
    spares.packer.begin(spares.order, spares.path, std::move(parts));
  }
}

void WorkerSession::pack_spares() {
  std::uint64_t n_steps = 0;
  {
    const std::lock_guard lock(shards_mutex_);
    for (const auto& [id, shard] : shards_)
      n_steps += shard->n_steps();
    if (shards_.empty()) return;
  }
  for (Spares& spares : spares_)
    spares.packer.go_on(n_steps);
}

/// When the main thread wants to be woken, if nothing comes.
std::chrono::milliseconds WorkerSession::next_look() const {
  auto look = kLook;
  const auto now = SparePacker::Clock::now();
  for (const Spares& spares : spares_) {
    const auto due = spares.packer.due();
    if (!due) continue;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*due - now);
    look = std::min(look, std::max(wait, std::chrono::milliseconds(0)));
  }
  return look;
}

// Only the main thread adds and removes.
WorkerShard* WorkerSession::find(std::uint64_t shard_id) {
  const std::lock_guard lock(shards_mutex_);
  const auto found = shards_.find(shard_id);
  return found == shards_.end() ? nullptr : found->second.get();
}

void WorkerSession::drop_all() {
  std::map<std::uint64_t, std::unique_ptr<WorkerShard>> shards;
  {
    const std::lock_guard lock(shards_mutex_);
    shards = std::move(shards_);
    shards_.clear();
  }
  // All at once: each may wait for another one.
  for (const auto& [id, shard] : shards)
    shard->abort_all();
}

}  // namespace luna::cluster
