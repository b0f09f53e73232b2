// A model on one device before it is placed: what its parts take there, and how fast they are.
#pragma once

#include "core/model/load_forecast.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/placement.hpp"
#include "core/model/program_builder.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

/// Where a device stands in the row that a model's layers make.
enum class RowPlace : std::uint8_t { alone, first, middle, last };
inline constexpr std::size_t kRowPlaces = 4;
RowPlace row_place(std::size_t rank, std::size_t n_ranks);

/// Rows of a step, and of them those with logits, that placements are compared by.
struct UsualStep {
  double n_rows = 0.0;
  double n_out_rows = 0.0;
};
UsualStep usual_step(const ExpectedLoad& load);

/// A value, wherever the device is: another process can be told it.
struct DeviceSurvey {
  DeviceSpeed speed;
  std::vector<std::uint64_t> layer_bytes;  ///< by layer: packed weights, and what else it takes
  std::uint64_t kv_token_bytes = 0;        ///< of one token in one layer
  /// By RowPlace, whatever layers there are: activations, outputs, messages, embedding, head.
  std::array<std::uint64_t, kRowPlaces> fixed_bytes{};
};

/// What place_by_speed() wants to know of a device at its place.
///
/// memory_bytes  that the model may take of it
PlaceTerms place_terms(const DeviceSurvey& survey,
                       RowPlace place,
                       std::uint64_t memory_bytes,
                       const UsualStep& step);

/// Speeds that this process knows, by probe_key().
using KnownSpeeds = std::map<std::string, DeviceSpeed>;

/// Everything outlives the call. The device is one of this process.
struct DeviceSubject {
  const ModelConfig* config = nullptr;
  WeightSource* source = nullptr;  ///< the tensors of survey_tensors() are open
  const ModelBytes* file_bytes = nullptr;
  ProgramOptions program;  ///< without slice peers
  Device* device = nullptr;
  std::filesystem::path cache;  ///< of measured speeds; empty: none
};

/// Names of the tensors that a survey reads.
std::vector<std::string> survey_tensors(const ModelConfig& config);

/// Weighs the model's parts by what the device's backend says, and times it, unless its speed is
/// known. [start-up]
///
/// known    used, and added to
/// Errors   of a backend; exhausted: the device's budget has no room for the probe
/// Cost     0.1 to 0.2 s where the device is timed, else a few programs that are not compiled
Result<DeviceSurvey> survey_device(const DeviceSubject& subject, KnownSpeeds& known);

/// Weighs parts of a model as they would lie on a device. Everything outlives it.
class PartScale {
 public:
  PartScale(const ModelConfig& config, WeightSource& source, Device& device)
      : config_(config), source_(source), device_(device) {}

  [[nodiscard]] Result<ShardDraft> draft(const ShardSpec& spec,
                                         const ProgramOptions& program) const;
  /// The first layer alone, with what else a device has at such a place.
  [[nodiscard]] static ShardSpec part_at(RowPlace place);
  /// The model's first layers with embedding and head.
  [[nodiscard]] static ShardSpec copy_of(std::uint32_t n_layers);
  /// The packed bytes of the weights whose names begin so.
  [[nodiscard]] Result<std::uint64_t> weigh(std::span<const ShardWeight> weights,
                                            std::string_view prefix,
                                            std::uint32_t numerics) const;
  [[nodiscard]] Result<std::uint64_t> scratch(const ShardSpec& spec,
                                              const ProgramOptions& program) const;
  /// Beside weights, outputs and KV, of a whole copy with one step in flight.
  struct CopyScratch {
    std::uint64_t fixed_bytes = 0;
    std::uint64_t layer_bytes = 0;  ///< more for each layer
  };
  [[nodiscard]] Result<CopyScratch> copy_scratch(ProgramOptions program) const;

 private:
  const ModelConfig& config_;
  WeightSource& source_;
  Device& device_;
};

/// Bytes of messages that a part holds which others send to it.
std::uint64_t message_bytes_at(RowPlace place,
                               const ModelConfig& config,
                               const ProgramOptions& program);

/// A backend's own numbers are not trusted to add up: never below 0.
std::uint64_t bytes_without(std::uint64_t bytes, std::uint64_t part);

}  // namespace luna::model
