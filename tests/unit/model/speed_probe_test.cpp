// Devices are timed by their own programs, measurements are kept, and layers placed by them.
#include "core/model/speed_probe.hpp"

#include "core/model/device_row.hpp"
#include "core/model/link_probe.hpp"
#include "core/model/model_loader.hpp"
#include "core/model/weight_names.hpp"
#include "support/plugin_fixture.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <thread>

namespace luna::model {
namespace {

using ::testing::HasSubstr;

class SpeedProbe : public ::testing::Test {
 protected:
  void SetUp() override {
    backend_ = make<luna_backend_if>("backend_reference", LUNA_KIND_BACKEND);
    transport_ = make<luna_transport_if>("transport_inproc", LUNA_KIND_TRANSPORT);
    quants_.push_back(make<luna_quant_if>("quant_gguf", LUNA_KIND_QUANT));
    const std::filesystem::path temp = ::testing::TempDir();
    path_ = temp / "speed_probe.gguf";
    cache_ = temp / "speed_probe_cache";
    std::filesystem::remove_all(cache_);
    const auto bytes =
        test::tiny_llama({.n_layers = 3, .vocab_size = 100, .context_length = 1024}, test::zeros)
            .write();
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    auto opened = open_weight_file(path_);
    ASSERT_TRUE(opened) << opened.error().message();
    file_ = std::move(*opened);
    auto config = read_model_config(*file_);
    ASSERT_TRUE(config);
    config_ = *config;
    source_ = std::make_unique<WeightSource>(*file_, config_, quants_);
    program_.numerics = LUNA_NUMERICS_F32;
    program_.limits = {
        .n_rows_max = 16, .n_seqs_max = 2, .n_out_rows_max = 4, .n_positions_max = 1024};
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove_all(cache_);
  }

  template <typename Table>
  plugin::Instance<Table> make(const char* file, const char* kind) {
    const Table* table = test::load_table<Table>(file, kind);
    const auto self = test::make_instance(*table, host_, {});
    EXPECT_TRUE(self);
    return plugin::Instance<Table>(table, *self, file);
  }
  std::unique_ptr<Device> open_device(std::uint64_t memory_bytes = 64 << 20) {
    auto device = Device::open(backend_, {.name = "a", .memory_bytes = memory_bytes});
    EXPECT_TRUE(device) << device.error().message();
    return std::move(*device);
  }
  [[nodiscard]] Collective collective() const {
    Collective collective;
    collective.table = static_cast<const luna_collective_if*>(
        transport_->head.ext(transport_.self(), LUNA_EXT_COLLECTIVE));
    collective.self = transport_.self();
    return collective;
  }
  [[nodiscard]] ProbeSubject subject() { return {&config_, source_.get(), program_}; }
  [[nodiscard]] std::vector<std::filesystem::path> cached() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(cache_))
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    return files;
  }

  test::FakeHost host_;
  std::filesystem::path path_;
  std::filesystem::path cache_;
  plugin::Instance<luna_backend_if> backend_;
  plugin::Instance<luna_transport_if> transport_;
  std::vector<plugin::Instance<luna_quant_if>> quants_;
  std::unique_ptr<WeightFile> file_;
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
  ProgramOptions program_;
};

// The host's clock stands still here, so times say nothing: each is the least there can be.
TEST_F(SpeedProbe, EverythingIsTimedAndNothingStaysOnTheDevice) {
  const auto device = open_device();
  const auto speed = probe_speed(*device, subject());
  ASSERT_TRUE(speed) << speed.error().message();
  EXPECT_GT(speed->layer.at(1), 0.0);
  EXPECT_EQ(speed->layer.points().size(), 3U);
  EXPECT_EQ(speed->layer.points().back().n_rows, 256.0);
  EXPECT_EQ(speed->head.points().size(), 2U);
  EXPECT_GT(speed->head.at(1), 0.0);
  EXPECT_GT(speed->step_ns, 0.0);
  EXPECT_TRUE(std::isfinite(speed->kv_token_ns) && speed->kv_token_ns >= 0.0);
  // All of the budget can be taken afterwards.
  std::uint64_t buffer = 0;
  void* host = nullptr;
  luna_err err = make_err();
  EXPECT_EQ(device->backend().alloc(
                device->handle(), LUNA_BUFFER_KV, device->memory_bytes(), &buffer, &host, &err),
            LUNA_OK)
      << err.text;
  device->backend().free_buffer(device->handle(), buffer);
}

TEST_F(SpeedProbe, ABudgetTooSmallForALayerIsToldNotTaken) {
  const auto device = open_device(4096);
  const auto speed = probe_speed(*device, subject());
  ASSERT_FALSE(speed);
  EXPECT_THAT(speed.error().message(), HasSubstr("device a: probe"));
}

TEST_F(SpeedProbe, AnEqualDeviceIsMeasuredOnce) {
  const auto device = open_device();
  const auto first = probe_speed(*device, subject(), cache_);
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_EQ(cached().size(), 1U);
  const auto again = probe_speed(*device, subject(), cache_);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->layer.at(17), first->layer.at(17));
  EXPECT_EQ(again->kv_token_ns, first->kv_token_ns);
  EXPECT_EQ(again->step_ns, first->step_ns);
  program_.kv_dtype = LUNA_DTYPE_F32;  // another model
  EXPECT_NE(probe_key(*device, subject()).value(), "");
  EXPECT_EQ(cached().size(), 1U);
}

// The wall clock's part differs from one measurement to the next.
TEST_F(SpeedProbe, ThoseThatStartAtOnceShareOneMeasurement) {
  std::array<double, 4> step_ns{};
  std::vector<std::thread> threads;
  for (double& found : step_ns) {
    threads.emplace_back([this, &found] {
      const auto device = open_device();
      auto file = open_weight_file(path_);
      ASSERT_TRUE(file);
      WeightSource source(**file, config_, quants_);
      const auto speed = probe_speed(*device, {&config_, &source, program_}, cache_);
      ASSERT_TRUE(speed) << speed.error().message();
      found = speed->step_ns;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(cached().size(), 1U);
  for (const double found : step_ns)
    EXPECT_EQ(found, step_ns[0]);
}

TEST_F(SpeedProbe, ASurveySaysWhatLoadingTakesAtEveryPlace) {
  const auto a = open_device();
  const auto b = open_device();
  const auto c = open_device();
  const std::vector<Device*> devices = {a.get(), b.get(), c.get()};
  ModelOptions options;
  options.name = "main";
  options.path = path_;
  options.numerics = LUNA_NUMERICS_F32;
  options.limits = program_.limits;
  options.layers = {{0, 1}, {1, 1}, {2, 1}};
  program_.n_lanes = 3;
  program_.n_candidates = options.n_candidates;
  const ModelBytes bytes = weigh_model(config_, *file_);
  KnownSpeeds known;
  const auto survey =
      survey_device({&config_, source_.get(), &bytes, program_, a.get(), cache_}, known);
  ASSERT_TRUE(survey) << survey.error().message();
  const auto model = Model::load(options, {quants_, devices, collective()});
  ASSERT_TRUE(model) << model.error().message();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const PlaceTerms terms = place_terms(*survey, row_place(rank, 3), 0, {});
    const ShardMemory& taken = (*model)->memory().shards[rank];
    EXPECT_EQ(terms.fixed_bytes + terms.layer_bytes[rank] -
                  message_bytes_at(row_place(rank, 3), config_, program_),
              taken.fixed() - taken.messages)
        << rank;
    EXPECT_EQ(terms.kv_token_bytes * program_.kv_block_tokens, taken.kv_block) << rank;
  }
  EXPECT_EQ(known.size(), 1U);
}

TEST_F(SpeedProbe, WhatADeviceSaysOfAnotherModelPlacesNothing) {
  const auto device = open_device();
  const std::vector<Device*> devices = {device.get()};
  DeviceSurvey survey;
  survey.speed.layer = RowTimes({{1, 10}});
  survey.speed.head = RowTimes({{1, 10}});
  survey.layer_bytes = {1, 2};
  std::vector<SurveyAnswer> answers(1);
  const auto reason = [&] {
    const auto terms = row_terms(devices, answers, 3, {1.0, 1.0});
    return terms ? std::string() : terms.error().message();
  };
  EXPECT_THAT(reason(), HasSubstr("device a was not timed"));
  answers[0].device = Error{Code::exhausted, "no room for the probe"};
  EXPECT_THAT(reason(), HasSubstr("no room for the probe"));
  answers[0].device = survey;
  EXPECT_THAT(reason(), HasSubstr("device a weighed 2 layers of 3"));
  survey.layer_bytes.push_back(3);
  answers[0].device = survey;
  EXPECT_EQ(reason(), "");
}

TEST_F(SpeedProbe, ADamagedCacheIsMeasuredAgainAndWrittenAnew) {
  const auto device = open_device();
  ASSERT_TRUE(probe_speed(*device, subject(), cache_));
  const std::filesystem::path file = cached().at(0);
  for (const std::string& text : {std::string("{"), std::string(200'000, '['), std::string()}) {
    std::ofstream(file, std::ios::binary) << text;
    ASSERT_TRUE(probe_speed(*device, subject(), cache_));
    std::ifstream written(file, std::ios::binary);
    const std::string now(std::istreambuf_iterator<char>(written), {});
    EXPECT_THAT(now, HasSubstr("\"layer\""));
  }
}

TEST(SpeedText, GoesThereAndBackAndTrustsNothing) {
  DeviceSpeed speed;
  speed.layer = RowTimes({{1, 10}, {32, 100.5}});
  speed.head = RowTimes({{1, 7}});
  speed.kv_token_ns = 0.25;
  speed.step_ns = 3;
  const std::string text = speed_text("key", speed);
  const auto back = read_speed(text, "key");
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->layer.at(32), 100.5);
  EXPECT_EQ(back->kv_token_ns, 0.25);
  EXPECT_EQ(read_speed(text, "another").error().code(), Code::not_found);
  const auto spoiled = [&](const std::string& from, const std::string& to) {
    std::string copy = text;
    copy.replace(copy.find(from), from.size(), to);
    return read_speed(copy, "key");
  };
  EXPECT_FALSE(spoiled("2.5E-1", "-1"));
  EXPECT_FALSE(spoiled("2.5E-1", "1e300"));
  EXPECT_FALSE(spoiled("2.5E-1", "\"x\""));
  EXPECT_FALSE(spoiled("[1E0,7E0]", "[1E0,0E0]"));
  EXPECT_FALSE(spoiled("[1E0,7E0]", "[1E0]"));
  EXPECT_FALSE(spoiled("[1E0,7E0]", "5"));
  EXPECT_FALSE(spoiled("3.2E1", "5E-1")) << "rows must ascend";
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_FALSE(read_speed(text.substr(0, n), "key")) << n;
}

TEST_F(SpeedProbe, ALinkIsMeasuredAsOftenAsOneLikes) {
  for (int i = 0; i < 3; ++i) {
    const auto link = measure_link(collective());
    ASSERT_TRUE(link) << link.error().message();
    EXPECT_GT(link->latency_ns, 0.0);
    EXPECT_GT(link->bytes_per_ns, 0.0);
  }
}

TEST_F(SpeedProbe, ALayoutIsDescribedAndChosenWithoutLoading) {
  const auto a = open_device();
  const auto b = open_device();
  const std::vector<Device*> devices = {a.get(), b.get()};
  ModelOptions options;
  options.name = "main";
  options.path = path_;
  options.numerics = LUNA_NUMERICS_F32;
  options.limits = program_.limits;
  options.speed.load = {.prompt = 10, .reused = 0, .output = 10, .users = 2};
  const auto problem = Model::describe_layout(options, {quants_, devices, collective()});
  ASSERT_TRUE(problem) << problem.error().message();
  EXPECT_EQ(problem->model.n_layers, 3U);
  EXPECT_GT(problem->model.layer_bytes, 0U);
  EXPECT_GT(problem->model.kv_token_bytes, 0U);
  EXPECT_EQ(problem->devices.size(), 2U);
  EXPECT_EQ(problem->pipeline_layers.size(), 2U);
  EXPECT_EQ(a->memory_bytes_left(), a->memory_bytes());
  const auto choice = choose_layout(*problem);
  ASSERT_TRUE(choice) << choice.error().message();
  EXPECT_NE(choice->layout, Layout::tensor) << "one KV head for two devices";
}

// What the loader then takes is what the choice was made by.
TEST_F(SpeedProbe, ALayoutHasTheRoomThatLoadingFinds) {
  constexpr std::uint64_t kBudget = 4 << 20;
  const auto a = open_device(kBudget);
  const auto b = open_device(kBudget);
  const std::vector<Device*> devices = {a.get(), b.get()};
  ModelOptions options;
  options.name = "main";
  options.path = path_;
  options.numerics = LUNA_NUMERICS_F32;
  options.limits = program_.limits;
  const auto problem = Model::describe_layout(options, {quants_, devices, collective()});
  ASSERT_TRUE(problem) << problem.error().message();
  const std::uint64_t block = options.kv_block_tokens;
  {
    ModelOptions parts = options;
    parts.layers.emplace();
    for (std::uint32_t first = 0; const std::uint32_t count : problem->pipeline_layers) {
      parts.layers->push_back({first, count});
      first += count;
    }
    const auto model = Model::load(parts, {quants_, devices, collective()});
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_NEAR(static_cast<double>(kv_tokens_of(*problem, Layout::pipeline)),
                static_cast<double>((*model)->memory().n_kv_blocks * block),
                static_cast<double>(block));
  }
  const auto model = Model::load(options, {quants_, std::span(devices).first(1), collective()});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_NEAR(static_cast<double>(kv_tokens_of(*problem, Layout::replicas)),
              static_cast<double>((*model)->memory().n_kv_blocks * block),
              static_cast<double>(block));
}

TEST_F(SpeedProbe, CopiesThatHoldSlicesPayForTheirMessages) {
  backend_ = make<luna_backend_if>("backend_cpu", LUNA_KIND_BACKEND);
  const auto bytes = test::tiny_llama({.n_layers = 3,
                                       .hidden_size = 64,
                                       .ffn_size = 96,
                                       .vocab_size = 264,
                                       .context_length = 1024,
                                       .is_quantized = true},
                                      test::zeros)
                         .write();
  std::ofstream(path_, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  constexpr std::uint64_t kBudget = 8 << 20;
  const auto a = open_device(kBudget);
  const auto b = open_device(kBudget);
  const std::vector<Device*> devices = {a.get(), b.get()};
  ModelOptions options;
  options.name = "main";
  options.path = path_;
  options.limits = program_.limits;
  options.n_slice_peers = 1;
  const auto problem = Model::describe_layout(options, {quants_, devices, collective()});
  ASSERT_TRUE(problem) << problem.error().message();
  EXPECT_GT(problem->devices[0].slice_bytes, 0U);
  const auto model = Model::load(options, {quants_, std::span(devices).first(1), collective()});
  ASSERT_TRUE(model) << model.error().message();
  const std::uint64_t block = options.kv_block_tokens;
  EXPECT_NEAR(static_cast<double>(kv_tokens_of(*problem, Layout::replicas)),
              static_cast<double>((*model)->memory().n_kv_blocks * block),
              static_cast<double>(block));
}

TEST_F(SpeedProbe, LayersArePlacedByWhatWasMeasured) {
  const auto a = open_device();
  const auto b = open_device();
  const std::vector<Device*> devices = {a.get(), b.get()};
  ModelOptions options;
  options.name = "main";
  options.path = path_;
  options.numerics = LUNA_NUMERICS_F32;
  options.limits = program_.limits;
  options.kv_blocks_max = 8;
  options.speed.probe = true;
  options.speed.cache = cache_;
  const auto model = Model::load(options, {quants_, devices, collective()});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(cached().size(), 1U) << "equal devices are measured once";
  EXPECT_EQ((*model)->layers()[1].end(), 3U);
}

}  // namespace
}  // namespace luna::model
