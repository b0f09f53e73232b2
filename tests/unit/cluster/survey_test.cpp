// Devices of workers are weighed and timed where they are, and layers go by what they say.
#include "core/model/local_shard.hpp"
#include "core/model/model_identity.hpp"
#include "core/model/shard_manifest.hpp"
#include "core/model/shard_writer.hpp"
#include "core/model/speed_probe.hpp"
#include "core/model/weight_names.hpp"
#include "unit/cluster/cluster_rig.hpp"

namespace luna::cluster {
namespace {

using ::testing::HasSubstr;

class SurveyOfWorkers : public Cluster {
 protected:
  void SetUp() override {
    Cluster::SetUp();
    is_timed_ = true;
    auto file = model::ModelFile::open(path_);
    ASSERT_TRUE(file) << file.error().message();
    file_.emplace(std::move(*file));
    ASSERT_TRUE(file_->file->open_tensors(model::survey_tensors(file_->config)));
    source_ = std::make_unique<model::WeightSource>(*file_->file, file_->config, gateway_.quants);
    const auto identity = model::model_identity(path_);
    ASSERT_TRUE(identity);
    order_ = {"./tiny.gguf", *identity, {}, true};
    const model::ModelOptions options = model_options();
    order_.program.numerics = options.numerics;
    order_.program.kv_dtype = options.kv_dtype;
    order_.program.n_candidates = options.n_candidates;
    order_.program.n_lanes = 2;
    order_.program.limits = options.limits;
    order_.program.limits.n_positions_max = file_->config.context_length;
    open_controller();
  }
  [[nodiscard]] TestWorker::Options timed_worker(const std::string& name) const {
    TestWorker::Options options = worker(name);
    options.speed_cache = folder_ / name;
    return options;
  }
  Result<model::SurveyAnswer> ask(std::size_t i) {
    return controller_->devices()[i]->planner()->survey(order_);
  }
  /// From now on a worker takes its device for one with this time for a layer.
  void write_speed(const std::string& worker, double layer_ns) {
    model::Device* device = gateway_.add_device("like " + worker);
    const auto key = model::probe_key(*device, {&file_->config, source_.get(), order_.program});
    ASSERT_TRUE(key);
    model::DeviceSpeed speed;
    speed.layer = model::RowTimes({{1, layer_ns}, {256, 256 * layer_ns}});
    speed.head = model::RowTimes({{1, 1}});
    int n_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / worker)) {
      if (entry.path().extension() != ".json") continue;
      ++n_files;
      std::ofstream(entry.path(), std::ios::binary) << model::speed_text(*key, speed);
    }
    ASSERT_EQ(n_files, 1);
  }

  std::optional<model::ModelFile> file_;
  std::unique_ptr<model::WeightSource> source_;
  model::SurveyOrder order_;
};

TEST_F(SurveyOfWorkers, SaysWhatOneOfThisProcessWould) {
  TestWorker one(timed_worker("w0"));
  ASSERT_TRUE(has_devices(1));
  const auto answer = ask(0);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->at_hand, (model::LayerRange{0, 4}));
  ASSERT_TRUE(answer->device);
  ASSERT_TRUE(*answer->device) << answer->device->error().message();
  const model::DeviceSurvey& told = **answer->device;
  model::KnownSpeeds known;
  const model::ModelBytes bytes = model::weigh_model(file_->config, *file_->file);
  const auto here = model::survey_device({&file_->config,
                                          source_.get(),
                                          &bytes,
                                          order_.program,
                                          gateway_.add_device("local"),
                                          folder_ / "w0"},
                                         known);
  ASSERT_TRUE(here) << here.error().message();
  // The worker's measurement was found: no other would be equal.
  EXPECT_EQ(told.speed.step_ns, here->speed.step_ns);
  EXPECT_EQ(told.speed.layer.at(100), here->speed.layer.at(100));
  EXPECT_EQ(told.layer_bytes, here->layer_bytes);
  EXPECT_EQ(told.kv_token_bytes, here->kv_token_bytes);
  EXPECT_EQ(told.fixed_bytes, here->fixed_bytes);
  const auto again = ask(0);
  ASSERT_TRUE(again && again->device && *again->device);
  EXPECT_EQ((*again->device)->speed.step_ns, told.speed.step_ns);
  order_.is_timed = false;
  const auto untimed = ask(0);
  ASSERT_TRUE(untimed);
  EXPECT_FALSE(untimed->device);
}

TEST_F(SurveyOfWorkers, DecidesWhereLayersGo) {
  for (const bool is_first_slow : {true, false}) {
    {
      TestWorker first(timed_worker("w0"));
      TestWorker second(timed_worker("w1"));
      ASSERT_TRUE(has_devices(2));
      ASSERT_TRUE(ask(0) && ask(1));  // each writes its file
    }
    ASSERT_TRUE(has_devices(0));
    write_speed("w0", is_first_slow ? 9e6 : 1e6);
    write_speed("w1", is_first_slow ? 1e6 : 9e6);
    TestWorker first(timed_worker("w0"));
    TestWorker second(timed_worker("w1"));
    ASSERT_TRUE(has_devices(2));
    const auto model = load(controller_->devices());
    ASSERT_TRUE(model) << model.error().message();
    const auto layers = (*model)->layers();
    EXPECT_EQ(layers[0].count, is_first_slow ? 1U : 3U);
    EXPECT_EQ(layers[1].count, is_first_slow ? 3U : 1U);
    EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected_logits(kPrompt));
  }
}

TEST_F(SurveyOfWorkers, TimesNoDeviceThatReachesSomeLayersOnly) {
  model::SplitOptions split;
  split.source = path_;
  split.folder = folder_ / "shards";
  split.n_shards = 2;
  ASSERT_TRUE(model::split_model(split));
  std::filesystem::remove(split.folder / model::shard_file_name(1));
  const auto identity = model::model_identity(split.folder);
  ASSERT_TRUE(identity);
  order_.identity = *identity;
  TestWorker::Options some = timed_worker("w0");
  some.model = split.folder;
  TestWorker one(some);
  ASSERT_TRUE(has_devices(1));
  const auto answer = ask(0);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->at_hand.count, 2U);
  ASSERT_TRUE(answer->device && !*answer->device);
  EXPECT_THAT(answer->device->error().message(), HasSubstr("2 of 4 layers are here"));
}

}  // namespace
}  // namespace luna::cluster
