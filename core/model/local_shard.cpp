#include "core/model/local_shard.hpp"

#include "core/model/shard_file.hpp"
#include "core/model/spare_weights.hpp"
#include "core/model/tensor_program.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace luna::model {

Result<ModelFile> ModelFile::open(const std::filesystem::path& path) {
  ModelFile opened;
  LUNA_TRY(opened.file, open_weight_file(path));
  if (opened.file->find_metadata("general.architecture") == nullptr &&
      opened.file->container() == LUNA_CONTAINER_SAFETENSORS) {
    return Error{Code::invalid_argument,
                 path.string() +
                     ": safetensors without their config.json; the path of such a "
                     "model is its folder"};
  }
  LUNA_TRY(const auto shard, read_shard_keys(*opened.file));
  if (shard && shard->count > 1) {
    return Error{Code::invalid_argument,
                 path.string() + ": shard " + std::to_string(shard->index) + " of " +
                     std::to_string(shard->count) +
                     ": the path of a model in shards is their folder"};
  }
  auto config = read_model_config(*opened.file);
  if (!config) return config.error().in(path.string());
  opened.config = std::move(*config);
  if (Result<void> whole = check_weights(opened.config, *opened.file); !whole)
    return whole.error().in(path.string());
  return opened;
}

LinkTerms link_terms(const ShardOrder& order, const ModelConfig& config) {
  LinkTerms terms;
  terms.rank = order.rank;
  terms.n_ranks = static_cast<std::uint32_t>(order.layers.size());
  const StepLimits& limits = order.program.limits;
  const std::uint64_t n_floats =
      order.is_tensor_split
          ? tensor_message_floats(config, terms.n_ranks, limits.n_rows_max, limits.n_out_rows_max)
          : std::uint64_t{limits.n_rows_max} * config.hidden_size;
  terms.message_bytes_max = n_floats * sizeof(float);
  terms.n_messages_max = order.program.n_lanes;
  return terms;
}

LocalShard::LocalShard(const ShardOrder& order, LocalShardParts parts)
    : order_(order), parts_(std::move(parts)), config_(parts_.file->config) {}

LocalShard::~LocalShard() {
  const luna_backend_if& backend = parts_.device->backend();
  void* device = parts_.device->handle();
  slices_.reset();  // services run the executable
  if (executable_ != nullptr) backend.release(executable_);
  if (comm_ != nullptr) link_->close(comm_);
  for (const std::uint64_t buffer : buffers_)
    backend.free_buffer(device, buffer);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const bool is_whole = draft_->weights[i].n_rows_elsewhere == 0;
    const ShardWeight& weight = draft_->weights[i];
    std::uint64_t n_bytes = 0;
    luna_err err = make_err();
    if (is_packed_ && is_whole && parts_.store != nullptr &&
        backend.weight_bytes(device, &weight.desc, order_.program.numerics, &n_bytes, &err) >= 0)
      parts_.store->keep(key_of(weight.name), weight, weights_[i], n_bytes);
    else
      backend.weight_free(device, weights_[i]);
  }
}

Result<std::unique_ptr<LocalShard>> LocalShard::plan(const ShardOrder& order,
                                                     LocalShardParts parts) {
  auto shard = std::unique_ptr<LocalShard>(new LocalShard(order, std::move(parts)));
  LUNA_TRY(shard->open_weights());
  LUNA_TRY(shard->write_program());
  LUNA_TRY(shard->check_support());
  LUNA_TRY(shard->plan_memory());
  return shard;
}

Result<ShardSpec> LocalShard::make_spec() const {
  if (order_.is_tensor_split) {
    const auto n_ranks = static_cast<std::uint32_t>(order_.layers.size());
    LUNA_TRY(const std::vector<ShardSpec> specs, make_tensor_shards(config_, n_ranks));
    return specs[order_.rank];
  }
  LUNA_TRY(check_layers(order_.layers, config_.n_layers, order_.layers.size()));
  return make_shards(order_.layers)[order_.rank];
}

Result<void> LocalShard::open_weights() {
  draft_.emplace();
  draft_->device = parts_.device;
  LUNA_TRY(draft_->spec, make_spec());
  const std::vector<WeightPart> parts = shard_weight_parts(config_, draft_->spec);
  // Of a part of a weight it is not known which rows were kept.
  const auto kept = [this](const WeightPart& part) -> const ShardWeight* {
    if (parts_.store == nullptr || part.rows) return nullptr;
    return parts_.store->find(key_of(part.name));
  };
  std::vector<std::string> missing;
  for (const WeightPart& part : parts)
    if (kept(part) == nullptr) missing.push_back(part.name);
  LUNA_TRY(parts_.file->file->open_tensors(missing));
  source_ = std::make_unique<WeightSource>(*parts_.file->file, config_, parts_.quants);
  for (const WeightPart& part : parts) {
    // What is not opened cannot be described again.
    if (const ShardWeight* known = kept(part); known != nullptr) {
      draft_->weights.push_back(*known);
      continue;
    }
    LUNA_TRY(ShardWeight weight, source_->describe(part.name));
    if (part.rows) weight = take_rows(std::move(weight), *part.rows);
    draft_->weights.push_back(std::move(weight));
  }
  return {};
}

Result<void> LocalShard::write_program() {
  LUNA_TRY(draft_->program, build_program(config_, draft_->spec, draft_->weights, order_.program));
  if (order_.layers.size() < 2) return {};
  if (!parts_.collective) {
    return Error{Code::invalid_argument,
                 std::to_string(order_.layers.size()) +
                     " devices need a transport that offers " LUNA_EXT_COLLECTIVE};
  }
  link_.emplace(*parts_.collective, draft_->program);
  return {};
}

Result<void> LocalShard::check_support() const {
  const luna_program program = draft_->program.abi();
  std::vector<std::uint8_t> per_op(program.n_ops);
  luna_err err = make_err();
  const Device& device = *parts_.device;
  const luna_status status =
      device.backend().supports(device.handle(), &program, per_op.data(), &err);
  LUNA_TRY(to_result(status, err, "device " + device.name() + ": supports"));
  const auto missing = std::ranges::find(per_op, std::uint8_t{0});
  if (missing == per_op.end()) return {};
  const auto op = static_cast<std::size_t>(missing - per_op.begin());
  return Error{Code::unsupported,
               "device " + device.name() + ": op " + std::string(op_name(program.ops[op].op)) +
                   ": " + std::string(text_of(err))};
}

Result<void> LocalShard::plan_memory() {
  std::uint64_t message_bytes = 0;
  if (link_) {
    LUNA_TRY(message_bytes, link_->bytes(link_terms(order_, config_)));
  }
  if (order_.program.n_slice_peers > 0) {
    LUNA_TRY(
        const SlicePlan slices,
        plan_slices(*parts_.device, parts_.slices, draft_->program, order_.program.n_slice_peers));
    slices_ = std::make_unique<SliceEnds>(*parts_.slices, slices, order_.program.n_slice_peers + 1);
    message_bytes += slices.bytes;
  }
  LUNA_TRY(memory_, measure_shard(config_, *draft_, order_.program, message_bytes));
  return {};
}

const std::string& LocalShard::address() const {
  static const std::string none;
  return link_ ? link_->address() : none;
}

Result<void> LocalShard::pack(const LoadProgress& progress) {
  LUNA_TRY(load_missing(progress));
  is_packed_ = true;
  source_.reset();
  parts_.file.reset();  // its pages go before those of the KV come
  return compile();
}

void LocalShard::limit_spares(std::uint64_t n_bytes_coming) {
  if (parts_.store == nullptr) return;
  std::vector<std::string> keys;
  for (const std::string& name : spare_weight_names(order_, config_))
    keys.push_back(key_of(name));
  parts_.store->retain(keys, spare_bytes_max(*parts_.device, n_bytes_coming));
}

/// Takes what the store has, and loads the rest.
Result<void> LocalShard::load_missing(const LoadProgress& progress) {
  ShardDraft missing;
  missing.device = draft_->device;
  std::vector<std::size_t> places;  // of the missing ones
  weights_.assign(draft_->weights.size(), 0);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const ShardWeight& weight = draft_->weights[i];
    const auto kept = parts_.store != nullptr && weight.n_rows_elsewhere == 0
                          ? parts_.store->take(key_of(weight.name))
                          : std::nullopt;
    if (kept) {
      weights_[i] = *kept;
    } else {
      places.push_back(i);
      missing.weights.push_back(weight);
    }
  }
  limit_spares(memory_.fixed());
  const std::uint32_t n_threads = parts_.n_load_threads != 0
                                      ? parts_.n_load_threads
                                      : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::vector<std::uint64_t>> handles;
  Result<void> loaded = load_weights(
      std::span(&missing, 1), *source_, {order_.program.numerics, n_threads, progress}, handles);
  // What was begun is held even when it failed, to be freed.
  for (std::size_t i = 0; !handles.empty() && i < handles.front().size(); ++i)
    weights_[places[i]] = handles.front()[i];
  if (!loaded) std::erase(weights_, std::uint64_t{0});
  return loaded;
}

Result<void> LocalShard::compile() {
  const luna_program program = draft_->program.abi();
  luna_err err = make_err();
  const Device& device = *parts_.device;
  const luna_status status = device.backend().compile(device.handle(),
                                                      &program,
                                                      weights_.data(),
                                                      static_cast<std::uint32_t>(weights_.size()),
                                                      &executable_,
                                                      &err);
  return to_result(status, err, "device " + device.name() + ": compile");
}

Result<LocalShard::Buffer> LocalShard::alloc(std::uint32_t kind, std::uint64_t bytes) {
  Buffer buffer;
  luna_err err = make_err();
  const Device& device = *parts_.device;
  const luna_status status =
      device.backend().alloc(device.handle(), kind, bytes, &buffer.handle, &buffer.host, &err);
  LUNA_TRY(to_result(status, err, "device " + device.name() + ": alloc"));
  buffers_.push_back(buffer.handle);
  if (kind == LUNA_BUFFER_OUT && buffer.host == nullptr)
    return Error{Code::internal, "device " + device.name() + ": an output without an address"};
  return buffer;
}

Result<void> LocalShard::bind(std::uint32_t n_kv_blocks, const LinkTerms& terms) {
  if (link_) {
    LUNA_TRY(const luna_comm* comm, link_->open(terms));
    comm_ = comm;
    // Told meanwhile, when there was nothing to end yet.
    if (is_aborted_) link_->abort(comm);
  }
  const Program& program = draft_->program;
  memory_.kv = n_kv_blocks * memory_.kv_block;
  shard_.device_name = parts_.device->name();
  shard_.attention = parts_.device->backend_name() + ": " + parts_.device->info().detail;
  shard_.backend = &parts_.device->backend();
  shard_.executable = executable_;
  std::vector<luna_bind> shared;  // by all lanes
  if (const auto slot = program.bound_slot(LUNA_SLOT_KV)) {
    LUNA_TRY(const Buffer buffer, alloc(LUNA_BUFFER_KV, memory_.kv));
    shard_.kv = {.table = parts_.device->kv_blocks(),
                 .device = parts_.device->handle(),
                 .buffer = buffer.handle,
                 .layout = program.abi().kv,
                 .block_bytes = memory_.kv_block,
                 .first_layer = order_.layers[order_.rank].first};
    shared.push_back({.slot = *slot, .pad = 0, .buffer = buffer.handle, .comm = nullptr});
  }
  if (const auto slot = program.bound_slot(LUNA_SLOT_COMM))
    shared.push_back({.slot = *slot, .pad = 0, .buffer = 0, .comm = comm_});
  if (slices_)
    shared.push_back(
        {.slot = slices_->plan().slot, .pad = 0, .buffer = 0, .comm = &slices_->peers()});
  outputs_.resize(order_.program.n_lanes);
  for (StepOutputs& outputs : outputs_)
    LUNA_TRY(bind_outputs(outputs, shard_.binds.emplace_back(shared)));
  return {};
}

Result<void> LocalShard::bind_outputs(StepOutputs& outputs, std::vector<luna_bind>& binds) {
  const auto bind_output = [&](std::uint32_t slot_kind, std::uint64_t bytes) -> Result<void*> {
    const auto slot = draft_->program.bound_slot(slot_kind);
    if (!slot) return nullptr;
    LUNA_TRY(const Buffer buffer, alloc(LUNA_BUFFER_OUT, bytes / order_.program.n_lanes));
    binds.push_back({.slot = *slot, .pad = 0, .buffer = buffer.handle, .comm = nullptr});
    return buffer.host;
  };
  LUNA_TRY(void* logits, bind_output(LUNA_SLOT_LOGITS, memory_.logits));
  LUNA_TRY(void* candidates, bind_output(LUNA_SLOT_CANDIDATES, memory_.candidates));
  outputs.logits = static_cast<const float*>(logits);
  outputs.candidates = static_cast<const Candidate*>(candidates);
  return {};
}

void LocalShard::abort() {
  is_aborted_ = true;
  if (const luna_comm* const comm = comm_; comm != nullptr) link_->abort(comm);
}

void LocalShard::abort_all() {
  abort();
  if (slices_) slices_->abort_all();
}

std::uint64_t LocalShard::slice_message_bytes() const {
  return slices_ ? slices_->plan().message_bytes : 0;
}

const std::string& LocalShard::slice_address() const {
  return slices_ ? slices_->address() : address();
}

Result<void> LocalShard::open_slices(const SliceTerms& terms) {
  if (!slices_ || outputs_.empty()) {
    return Error{Code::invalid_argument,
                 "device " + parts_.device->name() +
                     ": slices of a shard that was not planned for them, or is not bound"};
  }
  const auto opened = slices_->open(terms, {executable_, shard_.kv.buffer});
  return opened ? opened : opened.error().in("device " + parts_.device->name());
}

void LocalShard::abort_slices(std::uint32_t place) {
  if (slices_) slices_->abort(place);
}

void LocalShard::close_slices(std::uint32_t place) {
  if (slices_) slices_->close(place);
}

}  // namespace luna::model
