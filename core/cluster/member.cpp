#include "core/cluster/member.hpp"

#include "core/base/log.hpp"
#include "core/cluster/remote_shard.hpp"

#include <utility>

namespace luna::cluster {

Member::Member(std::shared_ptr<Link> link, const Token& token, Terms terms, Membership& membership)
    : link_(std::move(link)),
      terms_(terms),
      membership_(membership),
      greeting_(token, std::move(terms)) {}

Member::~Member() = default;

Result<void> Member::on_frame(const Frame& frame) {
  if (!greeting_.is_over()) return greet(frame);
  if (!join_) return take_join(frame);
  switch (frame.type) {
    case FrameType::output:
    case FrameType::done:
    case FrameType::kv_given:
    case FrameType::kv_taken:
      return give(frame);
    case FrameType::answer:
      return take_answer(frame);
    case FrameType::drain:
      membership_.wants_to_leave(*this);
      return {};
    case FrameType::memory: {
      LUNA_TRY(const MemoryReport report, parse_memory(frame.payload));
      membership_.note_memory(*this, report);
      return {};
    }
    case FrameType::leave:
      return Error{Code::unavailable, "it was told to end"};
    default:
      return Error{Code::corrupt,
                   "a frame '" + std::string(name_of(frame.type)) + "' from a worker"};
  }
}

Result<void> Member::greet(const Frame& frame) {
  auto reply = greeting_.take(frame);
  if (!reply) {
    refuse(reply.error());
    return reply.error();
  }
  link_->send(reply->type, 0, reply->payload);
  if (!greeting_.is_over()) return {};
  LUNA_TRY(auto seals, greeting_.seals());
  link_->trust(terms_.heartbeat, terms_.timeout, std::move(seals));
  return {};
}

void Member::refuse(const Error& why) {
  link_->send(FrameType::refuse, 0, encode_refusal(why.message()));
}

Result<void> Member::take_join(const Frame& frame) {
  if (frame.type != FrameType::join)
    return Error{Code::corrupt, "a frame '" + std::string(name_of(frame.type)) + "' before join"};
  LUNA_TRY(Join join, parse_join(frame.payload));
  join_ = std::move(join);
  for (const DeviceOffer& offer : join_->devices) {
    auto& planner = planners_.emplace_back(
        std::make_unique<Planner>(*this, static_cast<std::uint32_t>(planners_.size())));
    model::DeviceOptions options;
    options.name = offer.name;
    options.memory_bytes = offer.memory_bytes;
    options.n_threads = offer.n_threads;
    devices_.push_back(
        model::Device::remote(options, offer.backend, offer.info, offer.can_slice, *planner));
  }
  if (const auto admitted = membership_.admit(shared_from_this()); !admitted) {
    refuse(admitted.error());
    return admitted.error();
  }
  return {};
}

void Member::welcome() {
  link_->send(FrameType::welcome, 0);
}

Result<void> Member::give(const Frame& frame) {
  const std::lock_guard lock(shards_mutex_);
  const auto found = shards_.find(frame.subject);
  if (found == shards_.end()) return {};  // it was unloaded while this was on its way
  if (frame.type == FrameType::output) {
    LUNA_TRY(const Output output, parse_output(frame.payload));
    return found->second->take_output(output);
  }
  if (frame.type != FrameType::done) return found->second->take_kv(frame);
  LUNA_TRY(const Done done, parse_done(frame.payload));
  return found->second->take_done(done);
}

Result<void> Member::take_answer(const Frame& frame) {
  LUNA_TRY(Answer answer, parse_answer(frame.payload));
  const std::lock_guard lock(answers_mutex_);
  const auto found = answers_.find(frame.subject);
  if (found == answers_.end() || found->second) return Error{Code::corrupt, "an answer to nothing"};
  found->second = std::move(answer);
  answered_.notify_all();
  return {};
}

void Member::on_closed(const Error& why) {
  const Error lost = join_ ? why.in("worker " + join_->name) : why;
  {
    const std::lock_guard lock(answers_mutex_);
    lost_ = Error{Code::unavailable, lost.message()};
    answered_.notify_all();
  }
  // First the membership: whoever hears of steps that failed finds the worker gone.
  membership_.part(shared_from_this(), lost);
  const std::lock_guard lock(shards_mutex_);
  for (const auto& [id, shard] : shards_)
    shard->lose(*lost_);
}

Result<Answer> Member::ask(FrameType type, std::uint64_t shard_id, const Bytes& payload) {
  std::unique_lock lock(answers_mutex_);
  if (lost_) return *lost_;
  answers_[shard_id].reset();
  link_->send(type, shard_id, payload);
  answered_.wait(lock, [&] { return lost_ || answers_[shard_id]; });
  std::optional<Answer> answer = std::move(answers_[shard_id]);
  answers_.erase(shard_id);
  if (!answer) return *lost_;
  if (!answer->result) return answer->result.error().in("worker " + name());
  return std::move(*answer);
}

std::uint64_t Member::next_id() {
  const std::lock_guard lock(shards_mutex_);
  return next_shard_id_++;
}

std::uint64_t Member::add_shard(RemoteShard& shard) {
  const std::lock_guard lock(shards_mutex_);
  const std::uint64_t id = next_shard_id_++;
  shards_.emplace(id, &shard);
  return id;
}

void Member::remove_shard(const RemoteShard& shard) {
  const std::lock_guard lock(shards_mutex_);
  shards_.erase(shard.id());
}

Result<model::SurveyAnswer> Member::Planner::survey(const model::SurveyOrder& order) {
  const Bytes survey = encode_survey({idx_, order});
  LUNA_TRY(Answer answer, member_.ask(FrameType::survey, member_.next_id(), survey));
  return model::SurveyAnswer{answer.layers, std::move(answer.device)};
}

Result<std::unique_ptr<model::DeviceShard>> Member::Planner::plan(const model::ShardOrder& order) {
  LUNA_TRY(auto shard, RemoteShard::plan(member_.shared_from_this(), idx_, order));
  return std::unique_ptr<model::DeviceShard>(std::move(shard));
}

}  // namespace luna::cluster
