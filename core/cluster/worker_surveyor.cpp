#include "core/cluster/worker_surveyor.hpp"

#include "core/model/weight_names.hpp"

#include <string>
#include <system_error>
#include <utility>

namespace luna::cluster {
namespace {

// A controller places a few models, each with as many steps in flight as there are devices.
constexpr std::size_t kKnownMax = 64;

}  // namespace

Result<model::DeviceSurvey> WorkerSurveyor::survey(const Survey& survey,
                                                   const Bytes& payload,
                                                   const std::filesystem::path& path,
                                                   const model::LayerRange& at_hand) {
  std::string asked(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (const auto found = known_.find(asked); found != known_.end()) return found->second;
  LUNA_TRY(open(path, at_hand));
  LUNA_TRY(model::DeviceSurvey found,
           model::survey_device({&open_->file.config,
                                 open_->source.get(),
                                 &open_->bytes,
                                 survey.order.program,
                                 parts_.devices[survey.device_idx],
                                 options_.speed_cache},
                                speeds_));
  if (known_.size() >= kKnownMax) known_.clear();
  return known_.emplace(std::move(asked), std::move(found)).first->second;
}

Result<void> WorkerSurveyor::open(const std::filesystem::path& path,
                                  const model::LayerRange& at_hand) {
  std::error_code unknown;
  const auto written = std::filesystem::last_write_time(path, unknown);
  if (open_ && !unknown && open_->path == path && open_->written == written) return {};
  open_.reset();
  LUNA_TRY(model::ModelFile file, model::ModelFile::open(path));
  if (at_hand.count != file.config.n_layers) {
    return Error{Code::unsupported,
                 path.string() + ": " + std::to_string(at_hand.count) + " of " +
                     std::to_string(file.config.n_layers) + " layers are here: they go by bytes"};
  }
  LUNA_TRY(file.file->open_tensors(model::survey_tensors(file.config)));
  open_.emplace(OpenFile{path, written, std::move(file), nullptr, {}});
  const model::ModelFile& opened = open_->file;
  open_->source = std::make_unique<model::WeightSource>(*opened.file, opened.config, parts_.quants);
  open_->bytes = model::weigh_model(opened.config, *opened.file);
  return {};
}

}  // namespace luna::cluster
