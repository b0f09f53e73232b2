// One device's part of a model, wherever the device is: in this process or in another.
#pragma once

#include "core/model/device_survey.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/program_builder.hpp"
#include "core/model/weight_loader.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::model {

/// What a shard shall be, in words that another process understands too. A value.
struct ShardOrder {
  std::string model;     ///< its name in the TOML
  std::string source;    ///< where its weights are, as the TOML says it
  std::string identity;  ///< model_identity() of the file; empty: nobody else opens it
  ProgramOptions program;
  std::uint32_t vocab_size = 0;
  std::vector<LayerRange> layers;  ///< of every rank
  bool is_tensor_split = false;    ///< then every rank has a part of all layers
  std::uint32_t rank = 0;          ///< whose shard this is
  std::string transport;           ///< plugin that carries hidden states; empty: one rank alone
  std::string slice_transport;     ///< plugin between copies of the model; where they slice
};

/// How the ranks of a model reach each other.
struct LinkTerms {
  std::string group;  ///< unlike that of any other model that is loaded anywhere
  std::uint32_t rank = 0;
  std::uint32_t n_ranks = 1;
  std::uint64_t message_bytes_max = 0;  ///< of a step's rows between two devices
  std::uint32_t n_messages_max = 1;     ///< steps in flight: each may have a message on its way
  /// [n_ranks] address blobs of their transports; empty: all are in this process.
  std::vector<std::string> addresses;
};

/// How a shard and the shard of the same layers in another copy of the model attend for each other.
/// Each of the two gets terms of its own.
struct SliceTerms {
  std::uint32_t place = 0;  ///< of the other copy: luna_slice.peer
  bool is_first = false;    ///< one of the two is: it tells their ends apart
  std::string group;        ///< unlike that of any other pair anywhere
  std::uint64_t message_bytes = 0;
  std::uint32_t n_waiters_max = 0;  ///< as luna_comm_open has it
  /// Address blobs of their transports; empty: both are in this process.
  std::string own_address;
  std::string other_address;
};

/// Planned, then packed, then bound; from then on it runs steps. Whatever it holds goes with it; no
/// step is running then. An interface: LocalShard, and what stands for a shard in another process.
/// [start-up] unless tagged otherwise; owned by Model.
class DeviceShard {
 public:
  DeviceShard() = default;
  DeviceShard(const DeviceShard&) = delete;
  DeviceShard& operator=(const DeviceShard&) = delete;
  virtual ~DeviceShard() = default;

  /// What it takes; the KV of no block yet.
  [[nodiscard]] virtual const ShardMemory& memory() const = 0;
  /// Where its rank's transport is reached; empty: in this process alone.
  [[nodiscard]] virtual const std::string& address() const = 0;

  /// Decodes and packs the weights, compiles the program, lets go of the file.
  virtual Result<void> pack(const LoadProgress& progress) = 0;
  /// Joins the other ranks; allocates KV and outputs.
  virtual Result<void> bind(std::uint32_t n_kv_blocks, const LinkTerms& terms) = 0;

  /// Once it is bound: how steps are submitted to it, and where their outputs come, a lane each.
  /// The outputs of a shard without the head are null.
  [[nodiscard]] virtual const Shard& shard() const = 0;
  [[nodiscard]] virtual std::span<const StepOutputs> outputs() const = 0;

  /// Ends every wait for other ranks, now and later. [any]
  virtual void abort() = 0;

  // ---- slices, where the order has n_slice_peers
  /// Of the largest message between copies; 0: it holds no slices.
  [[nodiscard]] virtual std::uint64_t slice_message_bytes() const { return 0; }
  /// Where its end of such messages is reached.
  [[nodiscard]] virtual const std::string& slice_address() const { return address(); }
  /// Attends for a shard of another copy from now on, and may ask it. It is bound.
  ///
  /// Errors  invalid_argument: terms that it cannot have, or a place that is taken; those of the
  ///         transport and the backend
  virtual Result<void> open_slices(const SliceTerms& /*terms*/) {
    return Error{Code::unsupported, "the shard holds no slices"};
  }
  /// Ends every wait for the copy at a place, now and later: it is gone. [any]
  virtual void abort_slices(std::uint32_t /*place*/) {}
  /// Forgets the copy at a place, whose place may be taken by another one. No step asks it.
  virtual void close_slices(std::uint32_t /*place*/) {}

  // ---- a device whose process may go
  /// Whether it is gone for good: every step fails. [any]
  [[nodiscard]] virtual bool is_lost() const { return false; }
  /// Whoever is called when that happens, from any thread; empty: nobody, and no call is under way
  /// when it returns.
  virtual void on_lost(std::function<void()> /*told*/) {}
};

/// What is asked about a device of another process before layers are placed. A value.
struct SurveyOrder {
  std::string source;  ///< as in ShardOrder
  std::string identity;
  ProgramOptions program;
  bool is_timed = false;  ///< what the model takes there and how fast it is
};

struct SurveyAnswer {
  LayerRange at_hand;  ///< layers of the model that there are where shards are made
  /// Why it could not be timed, or what was found; none: that was not asked for.
  std::optional<Result<DeviceSurvey>> device;
};

/// Who makes shards on a device of another process. An interface, so that this folder knows no
/// wire.
class ShardPlanner {
 public:
  virtual ~ShardPlanner() = default;
  /// Errors  those of opening and planning there; unavailable: the process is gone
  virtual Result<std::unique_ptr<DeviceShard>> plan(const ShardOrder& order) = 0;
  /// Errors  those of opening there; unavailable: the process is gone
  /// Cost    the first time a device is timed there, that of survey_device()
  virtual Result<SurveyAnswer> survey(const SurveyOrder& order) = 0;
};

}  // namespace luna::model
