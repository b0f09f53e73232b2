// A backend under the validator: an open device, its weights, a program that runs on it.
#pragma once

#include "core/check/op_oracle.hpp"
#include "core/check/step_draft.hpp"
#include "core/check/subject.hpp"

#include <luna/abi/backend.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::check {

/// An open device. A resource.
class OpenDevice {
 public:
  struct Setup {
    std::uint64_t memory_bytes = std::uint64_t{64} << 20U;
    std::uint32_t n_threads = 1;
  };
  /// nullptr: the run was told why. `subject` outlives it.
  static std::unique_ptr<OpenDevice> open(CaseRun& run, Subject& subject, const Setup& setup);
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;
  ~OpenDevice();

  [[nodiscard]] const luna_backend_if& table() const { return backend_.table(); }
  [[nodiscard]] void* self() const { return backend_.self(); }
  [[nodiscard]] void* device() const { return device_; }
  [[nodiscard]] const luna_device_info& info() const { return info_; }
  [[nodiscard]] CaseRun& run() const { return run_; }
  /// A call that must fail, with a reason.
  template <typename Call>
  void refuses(const std::string& what, Call&& call) {
    luna_err err = make_err();
    luna_status status = LUNA_OK;
    run_.phase(what);
    if (!call_fenced(run_, what, [&] { status = call(&err); })) return;
    if (status >= 0)
      run_.fail("D2", what + " is accepted");
    else if (err.text[0] == '\0')
      run_.fail("E2", what + " is refused without a reason");
  }

  /// Begins, fills and ends a weight. What is refused is told by the error's code.
  Result<std::uint64_t> load(const DrawnWeight& weight, std::uint32_t numerics);
  /// The forms that it takes in a class.
  std::vector<WeightForm> forms_taken(std::uint32_t numerics, std::uint64_t seed);

 private:
  explicit OpenDevice(CaseRun& run) : run_(run) {}
  CaseRun& run_;
  plugin::Instance<luna_backend_if> backend_;
  luna_device_info info_{};
  void* device_ = nullptr;
};

/// What a step gave: the rows whose logits it asked for, and the candidates.
struct StepOutput {
  luna_status status = LUNA_INTERNAL;
  std::string message;
  std::vector<float> logits;                                     ///< [n_out_rows, vocab]
  std::vector<std::uint32_t> candidates;                         ///< [n_out_rows, 2 * (k + 1)]
  std::map<std::uint32_t, std::deque<std::vector<float>>> sent;  ///< to the other rank, by tag
};

/// The other rank of a communicator of two, by PeerScript.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(std::uint32_t rank);
  ScriptedPeer(const ScriptedPeer&) = delete;
  ScriptedPeer& operator=(const ScriptedPeer&) = delete;
  [[nodiscard]] const luna_comm* comm() const { return &comm_; }
  /// What came since the last call.
  std::map<std::uint32_t, std::deque<std::vector<float>>> take_sent();

 private:
  static luna_status send(void*, std::uint32_t, std::uint32_t, const void*, std::uint64_t) noexcept;
  static luna_status recv(void*, std::uint32_t, std::uint32_t, void*, std::uint64_t) noexcept;
  static luna_status reduce(void*, const void*, void*, std::uint64_t, std::uint32_t) noexcept;
  luna_comm comm_{};
  std::mutex mutex_;
  std::map<std::uint32_t, std::deque<std::vector<float>>> sent_;
  std::map<std::uint32_t, std::uint64_t> n_received_;
};

/// A program on a device, with weights, KV and outputs of its own. A resource; device and drawn
/// program outlive it.
class RunningProgram {
 public:
  /// nullptr: refused, and why is in `refusal`; or the run was told what is wrong.
  static std::unique_ptr<RunningProgram> make(OpenDevice& device,
                                              const DrawnProgram& drawn,
                                              std::uint32_t n_kv_blocks,
                                              std::optional<Error>* refusal);
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();

  /// Runs a step and waits for its end. False: the run was told what is wrong.
  bool run(const DrawnStep& step, StepOutput* output);
  /// Submits a step that must be refused, as it is but for `done`. Gives the answer.
  luna_status submit_wrong(luna_step step, luna_err* err);
  /// How often `done` came since the last step began.
  [[nodiscard]] std::uint32_t n_done() const { return n_done_.load(); }
  /// Submits the step n times before the first has ended, and waits. False: the run was told.
  bool run_queued(const DrawnStep& step, std::uint32_t n, StepOutput* last);
  /// Other buffers from now on: KV as new, outputs elsewhere. False: the run was told.
  bool rebind();
  [[nodiscard]] const std::vector<luna_bind>& binds() const { return binds_; }
  [[nodiscard]] std::uint64_t kv_buffer() const;
  [[nodiscard]] std::uint32_t vocab() const { return vocab_; }

 private:
  RunningProgram(OpenDevice& device, const DrawnProgram& drawn, std::uint32_t n_kv_blocks);
  Result<void> load();
  Result<void> bind_all();
  Result<void> bind(std::uint32_t kind,
                    std::uint32_t buffer_kind,
                    std::uint64_t bytes,
                    void** host);
  void free_buffers();
  static void on_done(void* context, const luna_step_result* result);
  bool submit(const DrawnStep& step);
  bool wait(std::uint32_t n);
  StepOutput output_of(const DrawnStep& step);
  bool has_kept_its_room();

  OpenDevice& device_;
  const DrawnProgram& drawn_;
  const luna_program program_;
  std::uint32_t n_kv_blocks_;
  std::uint32_t vocab_ = 0;
  std::uint32_t candidate_words_ = 0;
  std::vector<std::uint64_t> weights_;
  void* executable_ = nullptr;
  std::vector<luna_bind> binds_;
  void* logits_ = nullptr;
  void* candidates_ = nullptr;
  std::unique_ptr<ScriptedPeer> peer_;
  std::atomic<std::uint32_t> n_done_{0};
  luna_status status_ = LUNA_INTERNAL;
  std::string message_;
};

/// Holds what a step gave against the oracle's. Tells the run of the first number that is too far,
/// and gives the largest share of a bound that was used.
double compare_step(CaseRun& run,
                    std::string_view rule,
                    const std::string& what,
                    const DrawnStep& step,
                    const StepOutput& output,
                    const OpOracle& oracle);

}  // namespace luna::check
