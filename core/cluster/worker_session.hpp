// A worker's connection to its controller, from the greeting to the end, with the shards that were
// asked for over it.
#pragma once

#include "core/cluster/greeting.hpp"
#include "core/cluster/kv_courier.hpp"
#include "core/cluster/link.hpp"
#include "core/cluster/spare_packer.hpp"
#include "core/cluster/worker.hpp"
#include "core/cluster/worker_shard.hpp"
#include "core/cluster/worker_surveyor.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

/// Steps are started on the I/O thread, which does nothing that takes time and so always pings;
/// planning, loading and unloading happen on the main thread.
class WorkerSession final : public LinkHandler {
 public:
  /// All outlive it.
  WorkerSession(const WorkerOptions& options,
                const WorkerParts& parts,
                const Token& token,
                std::shared_ptr<Link> link);
  ~WorkerSession() override;

  /// Says hello. [io], before the link is started
  Result<void> begin();

  Result<void> on_frame(const Frame& frame) override;
  void on_closed(const Error& why) override;

  /// Serves until the connection has ended, which is the answer, or `keep_going` turns false. No
  /// shard is left. [main]
  Error serve(const std::function<bool()>& keep_going);
  [[nodiscard]] bool has_joined() const;
  /// As what the controller dismissed it; none: it did not.
  [[nodiscard]] std::optional<Farewell> farewell() const { return farewell_; }

 private:
  /// Something that takes time.
  struct Job {
    FrameType type = FrameType::unload;
    std::uint64_t shard_id = 0;
    Bytes payload;
  };

  Result<void> add_job(const Frame& frame);
  Result<void> greet(const Frame& frame);
  Result<void> run_step(const Frame& frame);
  Result<void> copy_kv(const Frame& frame);
  Result<void> abort_slices(const Frame& frame);
  std::optional<Job> next_job(const std::function<bool()>& keep_going);
  void wish_to_leave();
  void report_memory();
  void do_job(const Job& job);
  void join_run();
  void be_dismissed(const Job& job);
  void be_kept(const Job& job);
  void relieve();
  void unload(std::uint64_t shard_id);
  Result<void> open_slices(const Job& job, WorkerShard& shard);
  void close_slices(const Job& job);
  void answer(const Job& job);
  Result<void> survey(const Job& job, Answer& answer);
  Result<void> plan(const Job& job, Answer& answer);
  Result<void> check_identity(const std::filesystem::path& path, const std::string& wanted);
  void begin_spares(const WorkerShard& shard);
  void pack_spares();
  [[nodiscard]] std::chrono::milliseconds next_look() const;
  [[nodiscard]] WorkerShard* find(std::uint64_t shard_id);
  void drop_all();

  const WorkerOptions& options_;
  const WorkerParts& parts_;
  const std::shared_ptr<Link> link_;
  GreetingDialer greeting_;  // [io]

  /// By device: weights that no shard uses. [main]
  std::vector<std::unique_ptr<model::WeightStore>> stores_;
  /// What was found of a file, so that it is not read at each plan. [main]
  struct Identity {
    std::filesystem::path path;
    std::filesystem::file_time_type written;
    std::string text;
  };
  std::optional<Identity> identity_;
  WorkerSurveyor surveyor_;
  /// What a device's shard was planned by last, and who packs ahead beside it. [main]
  struct Spares {
    model::ShardOrder order;
    std::filesystem::path path;
    SparePacker packer;
  };
  std::vector<Spares> spares_;  // by device

  // Of the main thread:
  std::chrono::steady_clock::time_point reported_at_;  // its memory, last
  std::optional<std::chrono::steady_clock::time_point> leaves_since_;
  std::optional<Farewell> farewell_;

  KvCourier courier_;
  std::mutex shards_mutex_;  // guards the map, and is held while a step is started
  std::map<std::uint64_t, std::unique_ptr<WorkerShard>> shards_;

  mutable std::mutex jobs_mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::optional<Terms> terms_;  // once accepted, until the main thread has seen them
  std::optional<Error> closed_;
  bool has_joined_ = false;
};

}  // namespace luna::cluster
