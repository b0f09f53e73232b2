#include "core/model/spare_weights.hpp"

#include "core/model/weight_loader.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace luna::model {
namespace {

/// The weights of one layer, or of what stands at an end of the row.
std::vector<std::string> names_of(const ModelConfig& config,
                                  LayerRange layers,
                                  bool has_embedding,
                                  bool has_head) {
  ShardSpec spec;
  spec.layers = layers;
  spec.has_embedding = has_embedding;
  spec.has_head = has_head;
  return shard_weight_names(config, spec);
}

}  // namespace

std::vector<std::string> spare_weight_names(const ShardOrder& order, const ModelConfig& config) {
  const auto n_ranks = static_cast<std::uint32_t>(order.layers.size());
  if (n_ranks < 2 || order.is_tensor_split) return {};
  const LayerRange own = order.layers[order.rank];
  std::vector<std::string> names;
  const auto add = [&](std::vector<std::string> more) {
    for (std::string& name : more)
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  };
  if (order.rank == 1) add(names_of(config, {}, true, false));
  if (order.rank + 2 == n_ranks) add(names_of(config, {}, false, true));
  for (std::uint32_t distance = 1; distance <= config.n_layers; ++distance) {
    if (distance <= own.first) add(names_of(config, {own.first - distance, 1}, false, false));
    const std::uint64_t after = std::uint64_t{own.end()} + distance - 1;
    if (after < config.n_layers)
      add(names_of(config, {static_cast<std::uint32_t>(after), 1}, false, false));
  }
  const std::vector<std::string> has =
      names_of(config, own, order.rank == 0, order.rank + 1 == n_ranks);
  std::erase_if(names,
                [&](const std::string& name) { return std::ranges::find(has, name) != has.end(); });
  return names;
}

std::uint64_t spare_bytes_max(const Device& device, std::uint64_t n_bytes_coming) {
  const std::uint64_t most = device.memory_bytes() / 5 * 4;
  const std::uint64_t taken =
      device.memory_bytes() - std::min(device.memory_bytes(), device.memory_bytes_left());
  return most - std::min(most, taken + n_bytes_coming);
}

SpareWeights::SpareWeights(ShardOrder order, LocalShardParts parts)
    : order_(std::move(order)),
      parts_(std::move(parts)),
      names_(spare_weight_names(order_, parts_.file->config)) {}

Result<std::unique_ptr<SpareWeights>> SpareWeights::open(const ShardOrder& order,
                                                         LocalShardParts parts) {
  return std::unique_ptr<SpareWeights>(new SpareWeights(order, std::move(parts)));
}

Result<bool> SpareWeights::go_on() {
  while (next_ < names_.size()) {
    const std::string& name = names_[next_++];
    const std::string key = WeightStore::key(order_.identity, order_.program.numerics, name);
    if (parts_.store->find(key) != nullptr) continue;
    LUNA_TRY(pack(name, key));
    return next_ < names_.size();
  }
  return false;
}

Result<void> SpareWeights::pack(const std::string& name, const std::string& key) {
  const luna_backend_if& backend = parts_.device->backend();
  LUNA_TRY(parts_.file->file->open_tensors({&name, 1}));
  WeightSource source(*parts_.file->file, parts_.file->config, parts_.quants);
  ShardDraft draft;
  draft.device = parts_.device;
  LUNA_TRY(ShardWeight weight, source.describe(name));
  std::uint64_t n_bytes = 0;
  luna_err err = make_err();
  LUNA_TRY(
      to_result(backend.weight_bytes(
                    parts_.device->handle(), &weight.desc, order_.program.numerics, &n_bytes, &err),
                err,
                "device " + parts_.device->name() + ": weight " + name));
  if (n_bytes > spare_bytes_max(*parts_.device, parts_.store->n_bytes())) {
    next_ = names_.size();  // those behind it are needed less
    return {};
  }
  draft.weights.push_back(weight);
  std::vector<std::vector<std::uint64_t>> handles;
  const Result<void> loaded =
      load_weights({&draft, 1}, source, {order_.program.numerics, 1, {}}, handles);
  const bool has_begun = !handles.empty() && !handles.front().empty();
  if (loaded)
    parts_.store->keep(key, weight, handles.front().front(), n_bytes);
  else if (has_begun)
    backend.weight_free(parts_.device->handle(), handles.front().front());
  return loaded;
}

}  // namespace luna::model
