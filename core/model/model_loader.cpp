#include "core/model/model_loader.hpp"

#include "core/base/log.hpp"
#include "core/model/shard_file.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <thread>

namespace luna::model {

/// One load. Everything it makes goes into the Model at once, whose destructor gives it back.
class ModelLoader {
 public:
  ModelLoader(const ModelOptions& options, const ModelResources& resources)
      : options_(options), resources_(resources), model_(new Model) {}

  Result<std::unique_ptr<Model>> load() {
    LUNA_TRY(auto file, open_weight_file(options_.path));
    LUNA_TRY(read_config(*file));
    LUNA_TRY(check_devices());
    LUNA_TRY(place(*file));
    LUNA_TRY(open_weights(*file));
    WeightSource source(*file, resources_.quants);
    LUNA_TRY(write_programs(source));
    LUNA_TRY(plan_links());
    LUNA_TRY(take_memory());
    LUNA_TRY(pack(source));
    file.reset();  // its pages go before those of the KV come
    LUNA_TRY(compile());
    LUNA_TRY(connect());
    for (std::size_t i = 0; i < drafts_.size(); ++i)
      LUNA_TRY(bind(i));
    publish();
    return std::move(model_);
  }

 private:
  Result<void> read_config(const WeightFile& file) {
    if (file.container() != LUNA_CONTAINER_GGUF) {
      return Error{Code::unsupported,
                   options_.path.string() + ": weights are loaded from GGUF files only, so far"};
    }
    LUNA_TRY(const auto shard, read_shard_keys(file));
    if (shard && shard->count > 1) {
      return Error{Code::invalid_argument,
                   options_.path.string() + ": shard " + std::to_string(shard->index) + " of " +
                       std::to_string(shard->count) +
                       ": the path of a model in shards is their folder"};
    }
    auto config = read_model_config(file);
    if (!config) return config.error().in(options_.path.string());
    config_ = std::move(*config);
    if (Result<void> whole = check_weights(config_, file); !whole)
      return whole.error().in(options_.path.string());

    program_.numerics = options_.numerics;
    program_.kv_dtype = options_.kv_dtype;
    program_.kv_block_tokens = options_.kv_block_tokens;
    program_.prunes = options_.prune_keep_percent < 100;
    program_.n_candidates = std::min(options_.n_candidates, config_.vocab_size);
    const auto n_devices = static_cast<std::uint32_t>(resources_.devices.size());
    program_.n_lanes = std::min(options_.n_lanes != 0 ? options_.n_lanes : n_devices, kLanesMax);
    program_.limits = options_.limits;
    if (program_.limits.n_positions_max == 0)
      program_.limits.n_positions_max = config_.context_length;
    if (program_.limits.n_positions_max > config_.context_length) {
      return Error{Code::invalid_argument,
                   "sequences of " + std::to_string(program_.limits.n_positions_max) +
                       " tokens: the model was trained for at most " +
                       std::to_string(config_.context_length)};
    }
    return {};
  }

  [[nodiscard]] Result<void> check_devices() const {
    if (resources_.devices.empty()) return Error{Code::invalid_argument, "no device is given"};
    if (resources_.devices.size() > 1 && !resources_.collective) {
      return Error{Code::invalid_argument,
                   std::to_string(resources_.devices.size()) +
                       " devices need a transport that offers " LUNA_EXT_COLLECTIVE};
    }
    for (const Device* device : resources_.devices) {
      const luna_device_info& info = device->info();
      const std::string where =
          "device " + device->name() + " (backend " + device->backend_name() + "): ";
      if (!has_bit(info.numerics, options_.numerics)) {
        return Error{Code::unsupported,
                     where + "numerics " + numerics_name(options_.numerics) +
                         " is not built; it computes " + names(info.numerics, numerics_name)};
      }
      if (!has_bit(info.kv_dtypes, options_.kv_dtype)) {
        return Error{Code::unsupported,
                     where + "a KV cache of " + dtype_name(options_.kv_dtype) +
                         " is not built; it keeps " + names(info.kv_dtypes, dtype_name)};
      }
    }
    return {};
  }

  static bool has_bit(std::uint32_t bits, std::uint32_t number) {
    return number < 32 && (bits >> number & 1u) != 0;
  }
  static std::string names(std::uint32_t bits, std::string (*name)(std::uint32_t)) {
    std::string text;
    for (std::uint32_t number = 0; number < 32; ++number)
      if (has_bit(bits, number)) text += (text.empty() ? "" : ", ") + name(number);
    return text.empty() ? "none" : text;
  }

  Result<void> place(const WeightFile& file) {
    if (options_.layers) {
      LUNA_TRY(check_layers(*options_.layers, config_.n_layers, resources_.devices.size()));
      model_->layers_ = *options_.layers;
      return {};
    }
    ModelBytes bytes = weigh_model(config_, file);
    // A tied head costs its device a copy, unless that device has the embedding anyway.
    if (config_.tied_head && resources_.devices.size() == 1) bytes.head = 0;
    std::vector<std::uint64_t> budgets;
    for (const Device* device : resources_.devices)
      budgets.push_back(device->memory_bytes_left());
    LUNA_TRY(model_->layers_, balance_layers(bytes, budgets));
    return {};
  }

  /// Opens the parts of the file that hold what the devices here need.
  Result<void> open_weights(WeightFile& file) {
    std::vector<std::string> names;
    for (const ShardSpec& spec : make_shards(model_->layers_))
      for (std::string& name : shard_weight_names(config_, spec))
        names.push_back(std::move(name));
    return file.open_tensors(names);
  }

  Result<void> write_programs(WeightSource& source) {
    const std::vector<ShardSpec> specs = make_shards(model_->layers_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      ShardDraft& draft = drafts_.emplace_back();
      draft.device = resources_.devices[i];
      draft.spec = specs[i];
      for (const std::string& name : shard_weight_names(config_, draft.spec)) {
        LUNA_TRY(ShardWeight weight, source.describe(name));
        draft.weights.push_back(std::move(weight));
      }
      LUNA_TRY(draft.program, build_program(config_, draft.spec, draft.weights, program_));
      const luna_program program = draft.program.abi();
      std::vector<std::uint8_t> per_op(program.n_ops);
      luna_err err = make_err();
      const Device& device = *draft.device;
      const luna_status status =
          device.backend().supports(device.handle(), &program, per_op.data(), &err);
      LUNA_TRY(to_result(status, err, "device " + device.name() + ": supports"));
      const auto missing = std::ranges::find(per_op, std::uint8_t{0});
      if (missing != per_op.end()) {
        const auto op = static_cast<std::size_t>(missing - per_op.begin());
        return Error{Code::unsupported,
                     "device " + device.name() + ": op " +
                         std::string(op_name(program.ops[op].op)) + ": " +
                         std::string(text_of(err))};
      }
    }
    return {};
  }

  Result<void> plan_links() {
    message_bytes_.resize(drafts_.size());
    if (drafts_.size() < 2) return {};
    // The address tells apart two models of one name in one process.
    std::string group = "model/" + options_.name + "/" +
                        std::to_string(reinterpret_cast<std::uintptr_t>(model_.get()));
    const std::uint64_t message_bytes_max =
        std::uint64_t{program_.limits.n_rows_max} * config_.hidden_size * sizeof(float);
    links_.emplace(*resources_.collective,
                   drafts_,
                   DeviceLinks::Options{.message_bytes_max = message_bytes_max,
                                        .n_lanes = program_.n_lanes,
                                        .group = std::move(group)});
    for (std::uint32_t rank = 0; rank < drafts_.size(); ++rank) {
      LUNA_TRY(message_bytes_[rank], links_->bytes(rank));
    }
    return {};
  }

  Result<void> take_memory() {
    LUNA_TRY(model_->memory_,
             plan_memory(config_, drafts_, program_, message_bytes_, options_.kv_blocks_max));
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      const ShardMemory& memory = model_->memory_.shards[i];
      Device* device = drafts_[i].device;
      device->take_memory(memory.total());
      Model::Holding& holding = model_->holdings_.emplace_back();
      holding.device = device;
      holding.memory_bytes = memory.total();
      logger("model")->info(
          "shard placed model={} device={} layers={}..{} weights={} scratch={} "
          "outputs={} messages={} kv={} kv_blocks={}",
          options_.name,
          device->name(),
          drafts_[i].spec.layers.first,
          drafts_[i].spec.layers.end(),
          bytes_text(memory.weights),
          bytes_text(memory.scratch),
          bytes_text(memory.logits + memory.candidates),
          bytes_text(memory.messages),
          bytes_text(memory.kv),
          model_->memory_.n_kv_blocks);
    }
    return {};
  }

  Result<void> pack(const WeightSource& source) {
    const std::uint32_t n_threads = options_.n_load_threads != 0
                                        ? options_.n_load_threads
                                        : std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::vector<std::uint64_t>> handles;
    Result<void> loaded =
        load_weights(drafts_, source, {options_.numerics, n_threads, options_.progress}, handles);
    for (std::size_t i = 0; i < handles.size(); ++i)
      model_->holdings_[i].weights = std::move(handles[i]);
    return loaded;
  }

  Result<void> compile() {
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      Model::Holding& holding = model_->holdings_[i];
      const luna_program program = drafts_[i].program.abi();
      luna_err err = make_err();
      const Device& device = *holding.device;
      const luna_status status =
          device.backend().compile(device.handle(),
                                   &program,
                                   holding.weights.data(),
                                   static_cast<std::uint32_t>(holding.weights.size()),
                                   &holding.executable,
                                   &err);
      LUNA_TRY(to_result(status, err, "device " + device.name() + ": compile"));
    }
    return {};
  }

  /// Opens one communicator a device, where there are several.
  Result<void> connect() {
    if (!links_) return {};
    model_->collective_ = resources_.collective;
    for (std::uint32_t rank = 0; rank < drafts_.size(); ++rank) {
      LUNA_TRY(model_->holdings_[rank].comm, links_->open(rank));
    }
    model_->compiled_.abort_comms = [](void* model) { static_cast<Model*>(model)->abort_steps(); };
    model_->compiled_.abort_context = model_.get();
    return {};
  }

  /// Allocates what is bound at submit, and binds it.
  Result<void> bind(std::size_t i) {
    const ShardMemory& memory = model_->memory_.shards[i];
    const Program& program = drafts_[i].program;
    Model::Holding& holding = model_->holdings_[i];
    Shard& shard = model_->compiled_.shards.emplace_back();
    shard.device_name = holding.device->name();
    shard.backend = &holding.device->backend();
    shard.executable = holding.executable;
    std::vector<luna_bind> shared;  // by all lanes
    if (const auto slot = program.bound_slot(LUNA_SLOT_KV)) {
      LUNA_TRY(const Buffer buffer, alloc(holding, LUNA_BUFFER_KV, memory.kv));
      shared.push_back({.slot = *slot, .pad = 0, .buffer = buffer.handle, .comm = nullptr});
    }
    if (const auto slot = program.bound_slot(LUNA_SLOT_COMM))
      shared.push_back({.slot = *slot, .pad = 0, .buffer = 0, .comm = holding.comm});
    model_->compiled_.outputs.resize(program_.n_lanes);
    for (StepOutputs& outputs : model_->compiled_.outputs) {
      std::vector<luna_bind>& binds = shard.binds.emplace_back(shared);
      const auto bind_output = [&](std::uint32_t slot_kind, std::uint64_t bytes) -> Result<void*> {
        const auto slot = program.bound_slot(slot_kind);
        if (!slot) return nullptr;
        LUNA_TRY(const Buffer buffer, alloc(holding, LUNA_BUFFER_OUT, bytes / program_.n_lanes));
        binds.push_back({.slot = *slot, .pad = 0, .buffer = buffer.handle, .comm = nullptr});
        return buffer.host;
      };
      LUNA_TRY(void* logits, bind_output(LUNA_SLOT_LOGITS, memory.logits));
      LUNA_TRY(void* candidates, bind_output(LUNA_SLOT_CANDIDATES, memory.candidates));
      if (logits != nullptr) outputs.logits = static_cast<const float*>(logits);
      if (candidates != nullptr) outputs.candidates = static_cast<const Candidate*>(candidates);
    }
    return {};
  }

  struct Buffer {
    std::uint64_t handle = 0;
    void* host = nullptr;
  };
  static Result<Buffer> alloc(Model::Holding& holding, std::uint32_t kind, std::uint64_t bytes) {
    Buffer buffer;
    luna_err err = make_err();
    const Device& device = *holding.device;
    const luna_status status =
        device.backend().alloc(device.handle(), kind, bytes, &buffer.handle, &buffer.host, &err);
    LUNA_TRY(to_result(status, err, "device " + device.name() + ": alloc"));
    holding.buffers.push_back(buffer.handle);
    if (kind == LUNA_BUFFER_OUT && buffer.host == nullptr)
      return Error{Code::internal, "device " + device.name() + ": an output without an address"};
    return buffer;
  }

  void publish() {
    CompiledModel& compiled = model_->compiled_;
    compiled.name = options_.name;
    compiled.config = std::move(config_);
    compiled.limits = program_.limits;
    compiled.kv_block_tokens = program_.kv_block_tokens;
    compiled.prune_keep_percent = options_.prune_keep_percent;
    compiled.n_kv_blocks = model_->memory_.n_kv_blocks;
    for (const ShardMemory& memory : model_->memory_.shards)
      compiled.kv_block_bytes += memory.kv_block;
    compiled.n_candidates = program_.n_candidates;
    if (options_.progress) options_.progress(1.0);
  }

  const ModelOptions& options_;
  const ModelResources& resources_;
  std::unique_ptr<Model> model_;
  ModelConfig config_;
  ProgramOptions program_;
  std::vector<ShardDraft> drafts_;
  std::optional<DeviceLinks> links_;          // between several devices
  std::vector<std::uint64_t> message_bytes_;  // by shard
};

Result<std::unique_ptr<Model>> Model::load(const ModelOptions& options,
                                           const ModelResources& resources) {
  auto model = ModelLoader(options, resources).load();
  if (!model) return model.error().in("model " + options.name);
  return model;
}

Model::~Model() {
  for (Holding& holding : holdings_) {
    if (holding.executable != nullptr) holding.device->backend().release(holding.executable);
  }
  for (Holding& holding : holdings_) {
    if (holding.comm != nullptr) collective_->table->close(collective_->self, holding.comm);
  }
  for (Holding& holding : holdings_) {
    const luna_backend_if& backend = holding.device->backend();
    for (const std::uint64_t buffer : holding.buffers)
      backend.free_buffer(holding.device->handle(), buffer);
    for (const std::uint64_t weight : holding.weights)
      backend.weight_free(holding.device->handle(), weight);
    holding.device->give_memory_back(holding.memory_bytes);
  }
}

void Model::abort_steps() {
  if (!collective_) return;
  for (const Holding& holding : holdings_) {
    if (holding.comm == nullptr) continue;
    collective_->table->abort(collective_->self, holding.comm);
    return;  // the group is aborted as a whole
  }
}

}  // namespace luna::model
