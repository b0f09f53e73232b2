#include "core/cluster/spare_packer.hpp"

#include "core/base/log.hpp"

#include <utility>

namespace luna::cluster {
namespace {

// Beside steps, of a core's time one part in so many.
constexpr int kShareBesideSteps = 40;

}  // namespace

void SparePacker::begin(model::ShardOrder order,
                        std::filesystem::path path,
                        model::LocalShardParts parts) {
  wanted_.emplace(Wanted{std::move(order), std::move(path), std::move(parts), nullptr});
  due_ = Clock::now();
}

std::optional<SparePacker::Clock::time_point> SparePacker::due() const {
  if (!wanted_) return std::nullopt;
  return due_;
}

void SparePacker::go_on(std::uint64_t n_steps) {
  const auto start = Clock::now();
  if (!wanted_ || start < due_) return;
  const bool is_busy = std::exchange(n_steps_, n_steps) != n_steps;
  const auto more = pack_one(*wanted_);
  due_ = Clock::now();
  if (is_busy) due_ += kShareBesideSteps * (due_ - start);
  if (more && *more) return;
  if (more)
    logger("cluster")->info("spare weights packed device={} bytes={}",
                            wanted_->parts.device->name(),
                            wanted_->parts.store->n_bytes());
  else
    logger("cluster")->warn("no more spare weights are packed device={} reason=\"{}\"",
                            wanted_->parts.device->name(),
                            more.error().message());
  wanted_.reset();
}

Result<bool> SparePacker::pack_one(Wanted& wanted) {
  if (wanted.spares == nullptr) {
    LUNA_TRY(model::ModelFile file, model::ModelFile::open(wanted.path));
    wanted.parts.file = std::make_shared<const model::ModelFile>(std::move(file));
    LUNA_TRY(wanted.spares, model::SpareWeights::open(wanted.order, wanted.parts));
  }
  return wanted.spares->go_on();
}

}  // namespace luna::cluster
