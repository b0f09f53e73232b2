// What a model takes of a worker's devices and how fast they are, kept for the next placement.
#pragma once

#include "core/cluster/worker.hpp"
#include "core/model/device_survey.hpp"
#include "core/model/local_shard.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace luna::cluster {

/// A placement after a loss asks again and shall not wait: files stay open, answers are kept. Owned
/// by WorkerSession. [main]
class WorkerSurveyor {
 public:
  /// Both outlive it.
  WorkerSurveyor(const WorkerOptions& options, const WorkerParts& parts)
      : options_(options), parts_(parts) {}

  /// payload  that the survey was read from
  /// path     of the model, of whose layers `at_hand` are there
  /// Errors   unsupported: some layers are missing; those of survey_device()
  Result<model::DeviceSurvey> survey(const Survey& survey,
                                     const Bytes& payload,
                                     const std::filesystem::path& path,
                                     const model::LayerRange& at_hand);

 private:
  /// With the tensors that devices are weighed by: these are proved once.
  struct OpenFile {
    std::filesystem::path path;
    std::filesystem::file_time_type written;
    model::ModelFile file;
    std::unique_ptr<model::WeightSource> source;  // refers to the file
    model::ModelBytes bytes;
  };
  Result<void> open(const std::filesystem::path& path, const model::LayerRange& at_hand);

  const WorkerOptions& options_;
  const WorkerParts& parts_;
  std::optional<OpenFile> open_;
  std::map<std::string, model::DeviceSurvey> known_;  // by payload
  model::KnownSpeeds speeds_;
};

}  // namespace luna::cluster
