// A worker, from the controller's side: its greeting, its devices, the shards on them.
#pragma once

#include "core/cluster/greeting.hpp"
#include "core/cluster/link.hpp"
#include "core/cluster/messages.hpp"
#include "core/model/device.hpp"
#include "core/model/device_shard.hpp"

#include <luna/result.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

class Member;
class RemoteShard;

/// Who decides about members. An interface, so that a member is tested without a controller. [io]
class Membership {
 public:
  virtual ~Membership() = default;
  /// Welcomes it before others can find it.
  /// Errors  why this worker is not wanted, for people
  virtual Result<void> admit(const std::shared_ptr<Member>& member) = 0;
  /// It wants to leave, once nothing lies on its devices.
  virtual void wants_to_leave(const Member& member) = 0;
  virtual void note_memory(const Member& member, const MemoryReport& report) = 0;
  /// The connection has ended; `member` may never have been admitted.
  virtual void part(const std::shared_ptr<Member>& member, const Error& why) = 0;
};

/// Lives as long as somebody uses one of its devices, however long its process has been gone. What
/// is not tagged [any] happens on the I/O thread.
class Member final : public LinkHandler, public std::enable_shared_from_this<Member> {
 public:
  /// token, membership  outlive its connection
  Member(std::shared_ptr<Link> link, const Token& token, Terms terms, Membership& membership);
  ~Member() override;

  Result<void> on_frame(const Frame& frame) override;
  void on_closed(const Error& why) override;

  [[nodiscard]] bool is_trusted() const { return greeting_.is_over(); }
  /// Its membership has admitted it.
  void welcome();

  // ---- once it has joined; [any]
  [[nodiscard]] const Join& join() const { return *join_; }
  [[nodiscard]] const std::string& name() const { return join_->name; }
  [[nodiscard]] model::Device& device(std::size_t idx) const { return *devices_[idx]; }
  [[nodiscard]] std::size_t n_devices() const { return devices_.size(); }
  [[nodiscard]] Link& link() { return *link_; }

  /// A number for a question that is not about a shard.
  std::uint64_t next_id();
  /// Asks for something that takes time and waits for the answer. [start-up]
  /// Errors  what the worker answers; unavailable: it is lost
  Result<Answer> ask(FrameType type, std::uint64_t shard_id, const Bytes& payload);
  /// The shard's id; its frames are given to it until it is removed, which waits for the one that
  /// is being given to it.
  std::uint64_t add_shard(RemoteShard& shard);
  void remove_shard(const RemoteShard& shard);

 private:
  /// Makes shards on one device.
  class Planner final : public model::ShardPlanner {
   public:
    Planner(Member& member, std::uint32_t device_idx) : member_(member), idx_(device_idx) {}
    Result<std::unique_ptr<model::DeviceShard>> plan(const model::ShardOrder& order) override;
    Result<model::SurveyAnswer> survey(const model::SurveyOrder& order) override;

   private:
    Member& member_;
    const std::uint32_t idx_;
  };

  Result<void> greet(const Frame& frame);
  Result<void> take_join(const Frame& frame);
  Result<void> take_answer(const Frame& frame);
  Result<void> give(const Frame& frame);
  void refuse(const Error& why);

  const std::shared_ptr<Link> link_;
  const Terms terms_;
  Membership& membership_;
  GreetingAcceptor greeting_;
  std::optional<Join> join_;
  std::vector<std::unique_ptr<Planner>> planners_;       // by device
  std::vector<std::unique_ptr<model::Device>> devices_;  // in its order

  std::mutex shards_mutex_;  // guards the map, and is held while a shard is given something
  std::map<std::uint64_t, RemoteShard*> shards_;
  std::uint64_t next_shard_id_ = 1;

  std::mutex answers_mutex_;  // guards what follows
  std::condition_variable answered_;
  std::map<std::uint64_t, std::optional<Answer>> answers_;  // that are waited for, by shard
  std::optional<Error> lost_;
};

}  // namespace luna::cluster
