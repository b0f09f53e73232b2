// Whole loads of tiny models on the reference backend, through real plugins.
#include "core/model/model_loader.hpp"

#include "core/model/shard_writer.hpp"
#include "support/shipped_plugins.hpp"
#include "support/tiny_model_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

namespace luna::model {
namespace {

class ModelLoader : public ::testing::Test {
 protected:
  void SetUp() override {
    collective_ = test::collective_of(transport_);
    path_ =
        std::filesystem::path(::testing::TempDir()) /
        (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".gguf");
    write(test::tiny_llama({.n_layers = 3, .vocab_size = 100}, test::values_by_name));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const test::GgufParts& parts) { test::write_file(path_, parts); }
  Device* open_device(const std::string& name, std::uint64_t memory_bytes = 16 << 20) {
    auto device = Device::open(backend_, {.name = name, .memory_bytes = memory_bytes});
    EXPECT_TRUE(device) << device.error().message();
    devices_.push_back(std::move(*device));
    return devices_.back().get();
  }
  [[nodiscard]] ModelOptions options() const {
    ModelOptions options;
    options.name = "main";
    options.path = path_;
    options.numerics = LUNA_NUMERICS_F32;
    options.kv_dtype = kv_dtype_;
    options.limits = {.n_rows_max = 16, .n_seqs_max = 2, .n_out_rows_max = 4, .n_positions_max = 0};
    options.kv_blocks_max = 8;
    return options;
  }
  /// Splits the file, replacing what is in the folder.
  Result<ShardManifest> split(const std::filesystem::path& folder, std::uint32_t n_shards) const {
    SplitOptions options;
    options.source = path_;
    options.folder = folder;
    options.n_shards = n_shards;
    options.force = true;
    return split_model(options);
  }
  Result<std::unique_ptr<Model>> load(const ModelOptions& options,
                                      std::vector<Device*> devices) const {
    return Model::load(options, {quants_, devices, collective_});
  }

  std::filesystem::path path_;
  plugin::Instance<luna_backend_if> backend_ = test::shipped_backend("backend_reference");
  plugin::Instance<luna_transport_if> transport_ = test::shipped_transport("transport_inproc");
  std::vector<plugin::Instance<luna_quant_if>> quants_ = test::shipped_quants();
  Collective collective_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::uint32_t kv_dtype_ = LUNA_DTYPE_BF16;
};

/// Runs a prompt in one step and returns the logits of its last row.
std::vector<float> run_prompt(const CompiledModel& model,
                              const std::vector<std::uint32_t>& ids,
                              std::size_t lane = 0) {
  const auto n = static_cast<std::uint32_t>(ids.size());
  std::vector<std::uint32_t> positions(n);
  for (std::uint32_t i = 0; i < n; ++i)
    positions[i] = i;
  const std::vector<std::uint32_t> seq_first_row = {0, n};
  const std::vector<std::uint32_t> blocks(8, 3);  // one block suffices
  const std::vector<std::uint32_t> out_rows = {n - 1};
  const std::vector<std::uint32_t> out_flags = {LUNA_OUT_LOGITS | LUNA_OUT_CANDIDATES};
  std::atomic<std::size_t> n_done{0};
  std::vector<luna_step> steps(model.shards.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    luna_step& step = steps[i];
    step = {};
    step.struct_size = sizeof(step);
    step.n_rows = n;
    step.n_seqs = 1;
    step.n_out_rows = 1;
    step.token_ids = ids.data();
    step.positions = positions.data();
    step.seq_first_row = seq_first_row.data();
    step.block_tables = blocks.data();
    step.block_table_stride = static_cast<std::uint32_t>(blocks.size());
    step.out_rows = out_rows.data();
    step.out_flags = out_flags.data();
    step.binds = model.shards[i].binds[lane].data();
    step.n_binds = static_cast<std::uint32_t>(model.shards[i].binds[lane].size());
    step.done_context = &n_done;
    step.done = [](void* context, const luna_step_result* result) {
      EXPECT_EQ(result->status, LUNA_OK) << result->message;
      auto* count = static_cast<std::atomic<std::size_t>*>(context);
      count->fetch_add(1);
      count->notify_all();
    };
    luna_err err = make_err();
    const Shard& shard = model.shards[i];
    EXPECT_EQ(shard.backend->submit(shard.executable, &step, &err), LUNA_OK) << err.text;
  }
  for (std::size_t seen = n_done.load(); seen < steps.size(); seen = n_done.load())
    n_done.wait(seen);
  const float* const logits = model.outputs[lane].logits;
  return {logits, logits + model.config.vocab_size};
}

/// A format that knows every tensor better, and says that its rows take no memory.
luna_quant_if format_without_planes() {
  luna_quant_if table{};
  table.head.destroy = [](void*) {};
  table.score = [](void*, const luna_tensor_table*, std::uint64_t) -> std::int32_t { return 1000; };
  table.describe = [](void*,
                      const luna_tensor_table* tensors,
                      luna_str,
                      std::uint64_t entry,
                      luna_weight_desc* desc,
                      luna_err*) -> luna_status {
    const luna_tensor_entry& tensor = tensors->entries[entry];
    desc->klass = LUNA_WEIGHT_DENSE;
    desc->dtype = LUNA_DTYPE_F32;
    desc->n_rows = tensor.rank == 2 ? tensor.dims[0] : 1;
    desc->n_cols = tensor.rank == 2 ? tensor.dims[1] : tensor.dims[0];
    return LUNA_OK;
  };
  return table;
}

TEST_F(ModelLoader, DescriptionsWithoutTheirPlanesAreRefused) {
  static const luna_quant_if kTable = format_without_planes();
  quants_.emplace_back(&kTable, nullptr, "liar");
  const auto model = load(options(), {open_device("a0")});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::invalid_argument);
  EXPECT_THAT(model.error().message(), ::testing::HasSubstr("plugin liar: describe"));
  EXPECT_THAT(model.error().message(), ::testing::HasSubstr("row_bytes[0] = 0"));
}

TEST_F(ModelLoader, LoadsAndRunsAModel) {
  double share = -1.0;
  ModelOptions options = this->options();
  options.progress = [&](double now) {
    EXPECT_GE(now, share);
    share = now;
  };
  Device* device = open_device("a0");
  const auto model = load(options, {device});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(share, 1.0);
  const CompiledModel& compiled = (*model)->compiled();
  EXPECT_EQ(compiled.name, "main");
  EXPECT_EQ(compiled.limits.n_positions_max, 64u);
  EXPECT_EQ(compiled.n_kv_blocks, 8u);
  EXPECT_EQ(compiled.n_candidates, 64u);
  const auto logits = run_prompt(compiled, {5, 17, 99});
  const auto best = std::ranges::max_element(logits) - logits.begin();
  EXPECT_EQ(compiled.outputs[0].candidates[0].token_id, static_cast<std::uint32_t>(best));
  EXPECT_EQ(compiled.outputs[0].candidates[0].logit, logits[static_cast<std::size_t>(best)]);
  EXPECT_GT(*std::ranges::max_element(logits), *std::ranges::min_element(logits));
}

TEST_F(ModelLoader, ASplitModelHasTheLogitsOfTheWholeBitForBit) {
  for (const bool tied : {true, false}) {
    write(test::tiny_llama({.n_layers = 3, .vocab_size = 100, .tied_head = tied},
                           test::values_by_name));
    const auto whole = load(options(), {open_device("whole")});
    ASSERT_TRUE(whole) << whole.error().message();
    const std::vector<std::uint32_t> prompt = {1, 2, 3, 50, 99};
    const auto expected = run_prompt((*whole)->compiled(), prompt);
    for (std::size_t n_devices = 2; n_devices <= 3; ++n_devices) {
      std::vector<Device*> devices;
      for (std::size_t i = 0; i < n_devices; ++i)
        devices.push_back(open_device("d" + std::to_string(i)));
      const auto split = load(options(), devices);
      ASSERT_TRUE(split) << split.error().message();
      EXPECT_EQ((*split)->compiled().shards.size(), n_devices);
      ASSERT_EQ((*split)->compiled().n_lanes(), n_devices);
      for (std::size_t lane = 0; lane < n_devices; ++lane)
        EXPECT_EQ(run_prompt((*split)->compiled(), prompt, lane), expected) << lane;
    }
  }
}

TEST_F(ModelLoader, AFolderOfShardsHasTheLogitsOfTheFileBitForBit) {
  const std::filesystem::path folder = path_.string() + ".shards";
  const std::vector<std::uint32_t> prompt = {1, 2, 3, 50, 99};
  int n_opened = 0;
  for (const bool is_quantized : {false, true}) {
    // A tied head is in the first shard and in the last.
    const test::TinyShape shape = {
        .n_layers = 7, .vocab_size = 128, .tied_head = !is_quantized, .is_quantized = is_quantized};
    write(test::tiny_llama(shape, test::values_by_name));
    const auto whole = load(options(), {open_device("whole" + std::to_string(n_opened++))});
    ASSERT_TRUE(whole) << whole.error().message();
    const auto expected = run_prompt((*whole)->compiled(), prompt);
    for (const std::uint32_t n_shards : {1U, 2U, 3U, 7U}) {
      const auto manifest = split(folder, n_shards);
      ASSERT_TRUE(manifest) << manifest.error().message();
      for (std::size_t n_devices = 1; n_devices <= 2; ++n_devices) {
        ModelOptions options = this->options();
        options.path = folder;
        std::vector<Device*> devices;
        for (std::size_t i = 0; i < n_devices; ++i)
          devices.push_back(open_device("d" + std::to_string(n_opened++)));
        const auto model = load(options, devices);
        ASSERT_TRUE(model) << model.error().message();
        EXPECT_EQ(run_prompt((*model)->compiled(), prompt), expected)
            << n_shards << " shards, " << n_devices << " devices";
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_F(ModelLoader, AShardAloneIsRefusedAndALoneShardIsAModel) {
  const std::filesystem::path folder = path_.string() + ".shards";
  ASSERT_TRUE(split(folder, 2));
  ModelOptions options = this->options();
  options.path = folder / "shard_1.gguf";
  const auto part = load(options, {open_device("a")});
  ASSERT_FALSE(part);
  EXPECT_THAT(part.error().message(), ::testing::HasSubstr("shard 1 of 2"));
  EXPECT_THAT(part.error().message(), ::testing::HasSubstr("is their folder"));
  ASSERT_TRUE(split(folder, 1));
  options.path = folder / "shard_0.gguf";
  const auto whole = load(options, {open_device("b")});
  EXPECT_TRUE(whole) << whole.error().message();
  std::filesystem::remove_all(folder);
}

TEST_F(ModelLoader, AMissingShardIsNamedWithWhatToDo) {
  const std::filesystem::path folder = path_.string() + ".shards";
  ASSERT_TRUE(split(folder, 3));
  std::filesystem::remove(folder / "shard_1.gguf");
  ModelOptions options = this->options();
  options.path = folder;
  const auto model = load(options, {open_device("a")});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::not_found);
  EXPECT_THAT(model.error().message(),
              ::testing::AllOf(::testing::HasSubstr("shard 1 of 3: shard_1.gguf: not there"),
                               ::testing::HasSubstr("layers 1..1 are missing"),
                               ::testing::HasSubstr("`luna verify " + folder.string() + "`"),
                               ::testing::HasSubstr("--num-shards 3")));
  std::filesystem::remove_all(folder);
}

TEST_F(ModelLoader, TakesExplicitLayers) {
  ModelOptions options = this->options();
  options.layers = std::vector<LayerRange>{{0, 1}, {1, 2}};
  const auto model = load(options, {open_device("a"), open_device("b")});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ((*model)->layers()[1], (LayerRange{1, 2}));
  // The second receives the first's rows: of two steps in flight, 16 rows each.
  const std::uint64_t row_bytes = (*model)->compiled().config.hidden_size * sizeof(float);
  EXPECT_EQ((*model)->memory().shards[0].messages, 0U);
  EXPECT_EQ((*model)->memory().shards[1].messages, 2 * 16 * row_bytes);
  options.layers = std::vector<LayerRange>{{0, 1}, {2, 1}};
  EXPECT_FALSE(load(options, {open_device("c"), open_device("d")}));
}

TEST_F(ModelLoader, ATensorSplitHasTheBitsOfOneDevice) {
  const std::vector<std::uint32_t> prompt = {5, 17, 99, 3, 3, 42};
  for (const bool is_quantized : {false, true}) {
    write(test::tiny_llama({.n_layers = 2,
                            .hidden_size = 96,
                            .n_heads = 6,
                            .n_kv_heads = 3,
                            .ffn_size = 160,
                            .vocab_size = 100,
                            .tied_head = !is_quantized,
                            .is_quantized = is_quantized},
                           test::values_by_name));
    const auto alone = load(options(), {open_device("a" + std::to_string(devices_.size()))});
    ASSERT_TRUE(alone) << alone.error().message();
    const auto expected = run_prompt((*alone)->compiled(), prompt);
    for (const std::uint32_t n_devices : {2U, 3U}) {
      ModelOptions options = this->options();
      options.is_tensor_split = true;
      std::vector<Device*> devices;
      for (std::uint32_t d = 0; d < n_devices; ++d)
        devices.push_back(open_device("t" + std::to_string(devices_.size())));
      const auto split = load(options, devices);
      ASSERT_TRUE(split) << split.error().message();
      EXPECT_EQ((*split)->compiled().n_lanes(), 1U);
      EXPECT_EQ((*split)->layers()[1], (LayerRange{0, 2}));
      EXPECT_EQ((*split)->compiled().kv_block_bytes, (*alone)->compiled().kv_block_bytes);
      EXPECT_EQ(run_prompt((*split)->compiled(), prompt), expected) << n_devices;
    }
  }
}

TEST_F(ModelLoader, ATensorSplitThatCannotBeSaysWhy) {
  ModelOptions options = this->options();
  options.is_tensor_split = true;
  options.layers = std::vector<LayerRange>{{0, 1}, {1, 2}};
  const auto ranges = load(options, {open_device("a"), open_device("b")});
  ASSERT_FALSE(ranges);
  EXPECT_THAT(ranges.error().message(), ::testing::HasSubstr("each device has a part of all"));
  options.layers.reset();
  options.prune_keep_percent = 50;
  const auto pruned = load(options, {open_device("c"), open_device("d")});
  ASSERT_FALSE(pruned);
  EXPECT_THAT(pruned.error().message(), ::testing::HasSubstr("prune_keep_percent"));
}

TEST_F(ModelLoader, EachStepInFlightHasOutputsOfItsOwn) {
  ModelOptions options = this->options();
  std::uint64_t bytes = 0;
  for (const std::uint32_t n_lanes : {0U, 1U, 3U, 99U}) {
    options.n_lanes = n_lanes;
    const auto model = load(options, {open_device("lanes" + std::to_string(n_lanes))});
    ASSERT_TRUE(model) << model.error().message();
    const CompiledModel& compiled = (*model)->compiled();
    EXPECT_EQ(compiled.n_lanes(), std::clamp(n_lanes, 1U, kLanesMax));
    if (n_lanes == 0) bytes = (*model)->memory().shards[0].logits;
    EXPECT_EQ((*model)->memory().shards[0].logits, bytes * compiled.n_lanes());
    const auto logits = run_prompt(compiled, {5, 17, 99});
    for (std::size_t lane = 1; lane < compiled.n_lanes(); ++lane) {
      EXPECT_NE(compiled.outputs[lane].logits, compiled.outputs[lane - 1].logits);
      EXPECT_EQ(run_prompt(compiled, {5, 17, 99}, lane), logits);
    }
  }
}

TEST_F(ModelLoader, GivesItsMemoryBack) {
  Device* device = open_device("a0");
  {
    const auto model = load(options(), {device});
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(device->memory_bytes_left(),
              device->memory_bytes() - (*model)->memory().shards[0].total());
  }
  EXPECT_EQ(device->memory_bytes_left(), device->memory_bytes());
  EXPECT_TRUE(load(options(), {device}));
}

TEST_F(ModelLoader, KvTakesTheMemoryThatIsLeft) {
  ModelOptions options = this->options();
  options.kv_blocks_max = std::nullopt;
  Device* device = open_device("a0", 4 << 20);
  const auto model = load(options, {device});
  ASSERT_TRUE(model) << model.error().message();
  const ShardMemory& memory = (*model)->memory().shards[0];
  EXPECT_LT(device->memory_bytes_left(), memory.kv_block);
  EXPECT_EQ(memory.kv, memory.kv_block * (*model)->compiled().n_kv_blocks);
}

TEST_F(ModelLoader, RefusesADeviceThatIsTooSmallWithTheNumbers) {
  Device* device = open_device("a0", 64 << 10);
  const auto model = load(options(), {device});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::exhausted);
  EXPECT_THAT(model.error().message(),
              ::testing::AllOf(::testing::HasSubstr("device a0"),
                               ::testing::HasSubstr("weights"),
                               ::testing::HasSubstr("64.0 KiB are left")));
  EXPECT_EQ(device->memory_bytes_left(), device->memory_bytes());
}

/// The reference backend, but for the classes and KV types it owns up to.
luna_backend_if limited_backend(const luna_backend_if& real) {
  static luna_status (*device_info)(void*, std::uint32_t, luna_device_info*) = nullptr;
  device_info = real.device_info;
  luna_backend_if limited = real;
  limited.head.destroy = [](void*) {};  // the real instance does it
  limited.device_info = [](void* self, std::uint32_t index, luna_device_info* info) {
    const luna_status status = device_info(self, index, info);
    info->numerics = 1u << LUNA_NUMERICS_I12;
    info->kv_dtypes = 1u << LUNA_DTYPE_BF16;
    return status;
  };
  return limited;
}

TEST_F(ModelLoader, RefusesWhatADeviceCannotComputeByName) {
  const luna_backend_if table = limited_backend(backend_.table());
  const plugin::Instance<luna_backend_if> limited(&table, backend_.self(), "limited");
  const auto device = Device::open(limited, {.name = "a0", .memory_bytes = 16 << 20});
  ASSERT_TRUE(device) << device.error().message();
  ModelOptions options = this->options();
  options.numerics = LUNA_NUMERICS_I8;
  auto model = load(options, {device->get()});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::unsupported);
  EXPECT_THAT(model.error().message(),
              ::testing::HasSubstr("numerics i8 is not built; it computes i12"));
  options.numerics = LUNA_NUMERICS_I12;
  options.kv_dtype = LUNA_DTYPE_I8;
  model = load(options, {device->get()});
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message(),
              ::testing::HasSubstr("a KV cache of int8 is not built; it keeps bf16"));
}

TEST_F(ModelLoader, RefusesWrongOptions) {
  ModelOptions options = this->options();
  options.path = "/no/such/file.gguf";
  auto model = load(options, {open_device("a0")});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::not_found);
  EXPECT_FALSE(load(this->options(), {}));
  options = this->options();
  options.limits.n_positions_max = 65;  // trained for 64
  EXPECT_FALSE(load(options, {open_device("a1")}));
  std::vector<Device*> two = {open_device("a2"), open_device("a3")};
  EXPECT_FALSE(Model::load(this->options(), {quants_, two, std::nullopt}));
}

TEST_F(ModelLoader, RefusesTypesThatNoPluginDecodesByName) {
  test::GgufParts parts = test::tiny_llama({.hidden_size = 256, .ffn_size = 256});
  parts.tensor("blk.0.attn_q.weight").type = 16;  // IQ2_XXS: fewer bytes than are there
  write(parts);
  const auto model = load(options(), {open_device("a0")});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::unsupported);
  EXPECT_THAT(model.error().message(), ::testing::HasSubstr("IQ2_XXS"));
}

}  // namespace
}  // namespace luna::model
