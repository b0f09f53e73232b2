// A shard on a device of a worker, as the model loader and the engine see it: a shard like any
// other, whose backend sends each step as one frame.
#pragma once

#include "core/cluster/messages.hpp"
#include "core/cluster/remote_kv.hpp"
#include "core/cluster/step_messages.hpp"
#include "core/model/device_shard.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

class Member;

/// Owns the host memory of the outputs and the steps in flight. The worker's part ends with it.
/// Owned by model::Model.
class RemoteShard final : public model::DeviceShard {
 public:
  /// Asks the worker to plan it. [start-up]
  /// Errors  what the worker answers; unavailable: it is lost
  static Result<std::unique_ptr<RemoteShard>> plan(std::shared_ptr<Member> member,
                                                   std::uint32_t device_idx,
                                                   const model::ShardOrder& order);
  ~RemoteShard() override;

  [[nodiscard]] const model::ShardMemory& memory() const override { return memory_; }
  [[nodiscard]] const std::string& address() const override { return address_; }
  Result<void> pack(const model::LoadProgress& progress) override;
  Result<void> bind(std::uint32_t n_kv_blocks, const model::LinkTerms& terms) override;
  [[nodiscard]] const model::Shard& shard() const override { return shard_; }
  [[nodiscard]] std::span<const model::StepOutputs> outputs() const override { return outputs_; }
  void abort() override;
  [[nodiscard]] std::uint64_t slice_message_bytes() const override { return slice_message_bytes_; }
  [[nodiscard]] const std::string& slice_address() const override { return slice_address_; }
  Result<void> open_slices(const model::SliceTerms& terms) override;
  void abort_slices(std::uint32_t place) override;
  void close_slices(std::uint32_t place) override;
  [[nodiscard]] bool is_lost() const override { return is_lost_.load(); }
  void on_lost(std::function<void()> told) override;

  // ---- by the member, on its I/O thread
  [[nodiscard]] std::uint64_t id() const { return id_; }
  /// Errors  corrupt: a row that the step in flight does not have
  Result<void> take_output(const Output& output);
  Result<void> take_done(const Done& done);
  Result<void> take_kv(const Frame& frame) { return kv_.take(frame); }
  /// Ends every step in flight, and refuses those to come.
  void lose(const Error& why);

 private:
  /// One step in flight.
  struct Lane {
    bool is_busy = false;
    std::uint64_t number = 0;
    std::uint32_t n_out_rows = 0;
    std::uint32_t n_slices = 0;
    std::uint64_t* slice_masses = nullptr;  // of the step: shared by the shards of the model
    void (*done)(void* context, const luna_step_result*) = nullptr;
    void* done_context = nullptr;
    Bytes frame;                                     // of the engine's thread; used again
    std::unique_ptr<float[]> logits;                 // [n_out_rows_max, vocab_size]
    std::unique_ptr<model::Candidate[]> candidates;  // [n_out_rows_max, n_candidates + 1]
  };

  RemoteShard(std::shared_ptr<Member> member, std::uint32_t device_idx, model::ShardOrder order);
  static const luna_backend_if& backend();
  static const luna_kv_blocks_if& kv_blocks();
  [[nodiscard]] std::string attention() const;
  Result<void> open_kv(const luna_kv_layout& layout);
  luna_status submit(const luna_step& step, luna_err* err);
  static void add_masses(const Lane& lane, const Done& done);
  void finish(Lane& lane, const luna_step_result& result);
  [[nodiscard]] bool has_head() const { return order_.rank + 1 == order_.layers.size(); }

  const std::shared_ptr<Member> member_;
  std::uint64_t id_ = 0;  // given once it can be called
  const std::uint32_t device_idx_;
  const model::ShardOrder order_;
  model::ShardMemory memory_;
  std::string address_;
  std::uint64_t slice_message_bytes_ = 0;
  std::string slice_address_;
  model::Shard shard_;
  std::vector<model::StepOutputs> outputs_;  // by lane
  RemoteKv kv_;

  std::mutex mutex_;  // guards what follows; never held while somebody is called
  std::vector<Lane> lanes_;
  std::uint64_t next_number_ = 1;
  std::optional<Error> lost_;
  std::atomic<bool> is_lost_{false};  // for who must not wait

  std::mutex told_mutex_;  // held while `told_` is called
  std::function<void()> told_;
};

}  // namespace luna::cluster
