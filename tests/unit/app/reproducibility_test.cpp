// Who else is in the step, how a prompt is cut, what the prefix cache gives, pre-emption and
// threads: none of it changes a bit of a sequence's logits. A tiny model on the CPU backend.
#include "core/app/reproducibility_check.hpp"
#include "core/model/model_loader.hpp"
#include "core/pipeline/engine_runner.hpp"
#include "support/engine_fixture.hpp"
#include "support/moving_policy.hpp"
#include "support/shipped_plugins.hpp"
#include "support/test_seed.hpp"
#include "support/tiny_model_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace luna::app {
namespace {

using pipeline::TokenId;

constexpr std::uint32_t kVocabSize = 264;
constexpr std::uint32_t kPromptTokens = 300;  // more than one partition of the attention
constexpr std::uint32_t kGeneratedTokens = 24;

/// What may differ without changing a bit, but for the first two.
struct TinySetup {
  std::uint32_t numerics = LUNA_NUMERICS_I12;
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;
  std::uint32_t n_threads = 1;
  std::uint32_t n_devices = 1;   // in a row, as many steps in flight
  std::uint32_t n_groups = 1;    // of so many devices
  bool is_tensor_split = false;  // side by side instead of in a row
  bool moves = false;            // each sequence, now and then, to the next group
  std::uint32_t n_rows_max = 512;
  std::uint32_t n_kv_blocks = 512;
  bool drafts_for_itself = false;  // the same file is its draft model
  engine::EngineOptions engine;
};

/// The tiny model's file; gone at the end.
class TinyFile : public test::TinyModelFile {
 public:
  explicit TinyFile(std::uint32_t n_layers = 2, std::uint32_t n_kv_heads = 1)
      : TinyModelFile(
            "reproducibility" + std::to_string(n_layers) + "_" + std::to_string(n_kv_heads),
            shape_of(n_layers, std::max(2U, n_kv_heads), n_kv_heads)) {}

 private:
  static test::TinyShape shape_of(std::uint32_t n_layers,
                                  std::uint32_t n_heads,
                                  std::uint32_t n_kv_heads) {
    return {.n_layers = n_layers,
            .hidden_size = 32 * n_heads,
            .n_heads = n_heads,
            .n_kv_heads = n_kv_heads,
            .ffn_size = 96,
            .vocab_size = kVocabSize,
            .context_length = 512,
            .is_quantized = true};
  }
};

/// The model with its engine, which runs while the test waits for it.
class TinyServer {
 public:
  static Result<std::unique_ptr<TinyServer>> make(const TinyFile& file, const TinySetup& setup) {
    std::unique_ptr<TinyServer> server(new TinyServer);
    model::DeviceOptions device_options;
    device_options.memory_bytes = std::uint64_t{256} << 20U;
    device_options.n_threads = setup.n_threads;
    std::vector<model::Device*> devices;
    for (std::uint32_t d = 0; d < setup.n_groups * setup.n_devices; ++d) {
      device_options.name = "a" + std::to_string(d);
      LUNA_TRY(auto device, model::Device::open(server->backend_, device_options));
      devices.push_back(server->devices_.emplace_back(std::move(device)).get());
    }
    model::ModelOptions options;
    options.name = "tiny";
    options.path = file.path();
    options.numerics = setup.numerics;
    options.kv_dtype = setup.kv_dtype;
    options.is_tensor_split = setup.is_tensor_split;
    options.limits = {.n_rows_max = setup.n_rows_max,
                      .n_seqs_max = 64,
                      .n_out_rows_max = 128,  // as many for drafts as for sequences
                      .n_positions_max = 0};
    options.kv_blocks_max = setup.n_kv_blocks;
    if (setup.moves) server->scheduler_ = test::mover(test::at_times(test::test_seed(), 6));
    std::vector<const model::CompiledModel*> compiled;
    for (std::uint32_t g = 0; g < setup.n_groups; ++g) {
      const auto group = std::span(devices).subspan(g * setup.n_devices, setup.n_devices);
      LUNA_TRY(auto model,
               model::Model::load(options, {server->quants_, group, server->collective()}));
      compiled.push_back(&server->models_.emplace_back(std::move(model))->compiled());
    }
    engine::EngineOptions engine_options = setup.engine;
    engine_options.step_tokens_max = setup.n_rows_max;
    if (setup.drafts_for_itself) {
      options.name = "draft";
      options.kv_blocks_max = 128;
      options.limits = {.n_rows_max = 128, .n_seqs_max = 8, .n_out_rows_max = 8};
      LUNA_TRY(server->draft_model_,
               model::Model::load(options, {server->quants_, devices, server->collective()}));
      engine_options.speculation.draft_model = &server->draft_model_->compiled();
    }
    LUNA_TRY(server->engine_,
             engine::Engine::create({std::move(compiled),
                                     server->scheduler_,
                                     server->tokenizer_,
                                     server->clock_,
                                     server->stats,
                                     [](void*) {},
                                     nullptr},
                                    engine_options));
    server->runner_ = std::make_unique<pipeline::EngineRunner>(*server->engine_);
    return server;
  }

  std::vector<Reproduction> reproduce(float temperature,
                                      const std::vector<ReproductionSetting>& settings) {
    pipeline::PipelineModel view;
    view.name = "tiny";
    view.runner = runner_.get();
    view.tokenizer = &tokenizer_;
    view.context_tokens_max = models_.front()->compiled().limits.n_positions_max;
    engine::SequenceRequest asked;
    std::mt19937 random(test::test_seed());
    for (std::uint32_t i = 0; i < kPromptTokens; ++i)
      asked.prompt.push_back(static_cast<TokenId>(random() % kVocabSize));
    asked.sampling.temperature = temperature;
    asked.sampling.seed = 7;
    asked.stop.n_generated_max = kGeneratedTokens;
    asked.stop.ignore_eos = true;
    const auto wait = [this] {
      if (!engine_->advance()) engine_->wait();
      return true;
    };
    auto runs = app::reproduce(view, asked, settings, wait);
    EXPECT_TRUE(runs) << runs.error().message();
    EXPECT_EQ(engine_->audit_kv(), "");
    return runs ? std::move(runs).value() : std::vector<Reproduction>{};
  }

  telemetry::EngineStats stats;

 private:
  TinyServer() = default;

  [[nodiscard]] model::Collective collective() const { return test::collective_of(transport_); }

  RealClock clock_;
  text::Tokenizer tokenizer_ = test::tiny_tokenizer();
  plugin::Instance<luna_backend_if> backend_ = test::shipped_backend("backend_cpu");
  std::vector<plugin::Instance<luna_quant_if>> quants_ = test::shipped_quants();
  plugin::Instance<luna_transport_if> transport_ = test::shipped_transport("transport_inproc");
  plugin::Instance<luna_scheduler_if> scheduler_ = test::static_scheduler();
  std::vector<std::unique_ptr<model::Device>> devices_;
  std::unique_ptr<model::Model> draft_model_;
  std::vector<std::unique_ptr<model::Model>> models_;  // one a group
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<pipeline::EngineRunner> runner_;
};

/// Every class of arithmetic that the backend has, under each of which the promise holds for
/// itself.
std::vector<TinySetup> classes() {
  std::vector<TinySetup> setups;
  for (const std::uint32_t numerics : {LUNA_NUMERICS_I12, LUNA_NUMERICS_I8, LUNA_NUMERICS_BF16}) {
    for (const std::uint32_t kv : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
      TinySetup setup;
      setup.numerics = numerics;
      setup.kv_dtype = kv;
      setups.push_back(setup);
    }
  }
  return setups;
}

std::string name_of(const TinySetup& setup, float temperature) {
  return "numerics " + std::to_string(setup.numerics) + " kv " + std::to_string(setup.kv_dtype) +
         " threads " + std::to_string(setup.n_threads) + " temperature " +
         std::to_string(temperature);
}

class Reproducibility : public ::testing::Test {
 protected:
  const TinyFile file_;
};

TEST_F(Reproducibility, BatchChunkPrefixAndThreadsChangeNoBit) {
  for (TinySetup setup : classes()) {
    for (const float temperature : {0.0F, 1.0F}) {
      std::optional<Reproduction> first;
      for (const std::uint32_t n_threads : {1U, 2U}) {
        setup.n_threads = n_threads;
        setup.engine.prefix_hash_seed = n_threads;
        SCOPED_TRACE(name_of(setup, temperature));
        const auto server = TinyServer::make(file_, setup);
        ASSERT_TRUE(server);
        const auto settings = reproduction_settings();
        const std::vector<Reproduction> runs = (*server)->reproduce(temperature, settings);
        ASSERT_EQ(runs.size(), settings.size() + 1);
        EXPECT_EQ(runs[0].tokens.size(), kGeneratedTokens);
        for (std::size_t i = 1; i < runs.size(); ++i) {
          SCOPED_TRACE(runs[i].setting);
          EXPECT_TRUE(runs[i].is_same);
          const ReproductionSetting& setting = settings[i - 1];
          EXPECT_EQ(runs[i].end.trace.n_beside_max, setting.n_beside);
          const std::uint32_t chunk = setting.prompt_chunk_tokens_max.value_or(kPromptTokens);
          EXPECT_EQ(runs[i].end.trace.n_prompt_steps, (kPromptTokens + chunk - 1) / chunk);
        }
        const auto hit = std::find_if(runs.begin(), runs.end(), [](const Reproduction& run) {
          return run.setting == "prefix hit";
        });
        ASSERT_NE(hit, runs.end());
        EXPECT_EQ(hit->end.n_cached, kPromptTokens / 32 * 32);
        // Another process with other threads: the same bits.
        if (!first) first = runs[0];
        EXPECT_EQ(runs[0].tokens, first->tokens);
        EXPECT_EQ(runs[0].end.trace.logits_hash, first->end.trace.logits_hash);
      }
    }
  }
}

TEST_F(Reproducibility, PipelinesWithAStepOnEachDeviceChangeNoBit) {
  const TinyFile file(3);
  for (const float temperature : {0.0F, 1.0F}) {
    std::optional<Reproduction> first;
    for (const std::uint32_t n_devices : {1U, 2U, 3U}) {
      SCOPED_TRACE("pipeline of " + std::to_string(n_devices));
      TinySetup setup;
      setup.n_devices = n_devices;
      const auto server = TinyServer::make(file, setup);
      ASSERT_TRUE(server) << server.error().message();
      EXPECT_EQ((*server)->stats.n_steps_in_flight_max.load(), n_devices);
      const std::vector<Reproduction> runs =
          (*server)->reproduce(temperature, reproduction_settings());
      ASSERT_FALSE(runs.empty());
      if (!first) first = runs[0];
      for (const Reproduction& run : runs) {
        SCOPED_TRACE(run.setting);
        EXPECT_EQ(run.tokens, first->tokens);
        EXPECT_EQ(run.end.trace.logits_hash, first->end.trace.logits_hash);
        // The others fill the other steps, and what is left of its own.
        if (run.setting == "beside 31") {
          EXPECT_EQ(run.end.trace.n_steps_beside_max, n_devices - 1);
          EXPECT_GE(run.end.trace.n_beside_max, 31U / n_devices - 1);
        }
      }
    }
  }
}

TEST_F(Reproducibility, SeveralGroupsOfDevicesChangeNoBit) {
  const TinyFile file(3);
  for (const float temperature : {0.0F, 1.0F}) {
    std::optional<Reproduction> first;
    for (const auto& [n_groups, n_devices] : {std::pair(1U, 1U), {2U, 1U}, {3U, 1U}, {2U, 2U}}) {
      SCOPED_TRACE(std::to_string(n_groups) + " groups of " + std::to_string(n_devices));
      TinySetup setup;
      setup.n_devices = n_devices;
      setup.n_groups = n_groups;
      const auto server = TinyServer::make(file, setup);
      ASSERT_TRUE(server) << server.error().message();
      const std::vector<Reproduction> runs =
          (*server)->reproduce(temperature, reproduction_settings());
      ASSERT_FALSE(runs.empty());
      if (!first) first = runs[0];
      for (const Reproduction& run : runs) {
        SCOPED_TRACE(run.setting);
        EXPECT_EQ(run.tokens, first->tokens);
        EXPECT_EQ(run.end.trace.logits_hash, first->end.trace.logits_hash);
      }
      for (std::uint32_t g = 0; g < n_groups; ++g)
        EXPECT_GT((*server)->stats.groups[g].n_steps.load(), 100U);
    }
  }
}

TEST_F(Reproducibility, MovesBetweenGroupsChangeNoBit) {
  const TinyFile file(3);
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
    for (const std::uint32_t n_devices : {1U, 2U}) {
      SCOPED_TRACE("kv " + std::to_string(kv_dtype) + " devices " + std::to_string(n_devices));
      TinySetup setup;
      setup.kv_dtype = kv_dtype;
      setup.n_devices = n_devices;
      const auto alone = TinyServer::make(file, setup);
      setup.n_groups = 2;
      setup.moves = true;
      const auto server = TinyServer::make(file, setup);
      ASSERT_TRUE(alone && server);
      const std::vector<Reproduction> expected = (*alone)->reproduce(1.0F, {});
      const std::vector<Reproduction> runs = (*server)->reproduce(1.0F, reproduction_settings());
      ASSERT_FALSE(runs.empty());
      for (const Reproduction& run : runs) {
        SCOPED_TRACE(run.setting);
        EXPECT_EQ(run.tokens, expected[0].tokens);
        EXPECT_EQ(run.end.trace.logits_hash, expected[0].end.trace.logits_hash);
      }
      EXPECT_GT((*server)->stats.n_moves.load(), 0U);
      EXPECT_EQ((*server)->stats.n_moves_failed.load(), 0U);
    }
  }
}

TEST_F(Reproducibility, TensorSplitsChangeNoBit) {
  const TinyFile file(2, 3);  // three KV heads: two devices have two and one of them
  for (TinySetup setup : classes()) {
    std::optional<Reproduction> first;
    for (const std::uint32_t n_devices : {1U, 2U, 3U}) {
      if (n_devices == 3 && setup.kv_dtype == LUNA_DTYPE_I8) continue;  // 3 threads on few cores
      setup.n_devices = n_devices;
      setup.is_tensor_split = true;
      setup.n_threads = n_devices == 1 ? 2 : 1;
      SCOPED_TRACE(name_of(setup, 1.0F) + " devices " + std::to_string(n_devices));
      const auto server = TinyServer::make(file, setup);
      ASSERT_TRUE(server) << server.error().message();
      EXPECT_EQ((*server)->stats.n_steps_in_flight_max.load(), 1U);
      const std::vector<Reproduction> runs = (*server)->reproduce(1.0F, reproduction_settings());
      ASSERT_FALSE(runs.empty());
      if (!first) first = runs[0];
      for (const Reproduction& run : runs) {
        SCOPED_TRACE(run.setting);
        EXPECT_EQ(run.tokens, first->tokens);
        EXPECT_EQ(run.end.trace.logits_hash, first->end.trace.logits_hash);
      }
    }
  }
}

TEST_F(Reproducibility, PreemptionAndSmallStepsChangeNoBit) {
  for (TinySetup setup : classes()) {
    for (const float temperature : {0.0F, 1.0F}) {
      SCOPED_TRACE(name_of(setup, temperature));
      const auto plain = TinyServer::make(file_, setup);
      ASSERT_TRUE(plain);
      const std::vector<Reproduction> expected = (*plain)->reproduce(temperature, {});
      ASSERT_EQ(expected.size(), 1U);
      // The others grow until the last that came in must give its blocks up.
      TinySetup tight = setup;
      tight.n_kv_blocks = 21;
      tight.n_rows_max = 65;
      tight.engine.prefix_cache = temperature > 0.0F;
      const auto server = TinyServer::make(file_, tight);
      ASSERT_TRUE(server);
      const std::vector<Reproduction> runs =
          (*server)->reproduce(temperature, {{.name = "beside 6", .n_beside = 6}});
      ASSERT_EQ(runs.size(), 2U);
      EXPECT_EQ(runs[0].end.trace.logits_hash, expected[0].end.trace.logits_hash);
      EXPECT_EQ(runs[0].end.trace.n_prompt_steps, 5U);
      EXPECT_TRUE(runs[1].is_same);
      EXPECT_GT(runs[1].end.trace.n_preempted, 0U);
    }
  }
}

/// Offers what the answer will be, but for the last token of each draft.
std::uint32_t draft_from(void* answer, const engine::SplitText& text, std::span<TokenId> draft) {
  const auto& tokens = *static_cast<const std::vector<TokenId>*>(answer);
  const std::size_t n =
      std::min(draft.size(), tokens.size() - std::min(tokens.size(), text.output.size()));
  if (n == 0) return 0;
  std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(tokens.size() - text.output.size()),
              n,
              draft.begin());
  draft[n - 1] = (draft[n - 1] + 1) % kVocabSize;
  return static_cast<std::uint32_t>(n);
}

std::vector<ReproductionSetting> draft_settings() {
  return {{.name = "drafts", .drafts = engine::Drafts::always},
          {.name = "drafts beside 6", .n_beside = 6, .drafts = engine::Drafts::always}};
}

TEST_F(Reproducibility, DraftsChangeNoBit) {
  for (TinySetup setup : classes()) {
    for (const float temperature : {0.0F, 1.0F}) {
      SCOPED_TRACE(name_of(setup, temperature));
      const auto plain = TinyServer::make(file_, setup);
      ASSERT_TRUE(plain);
      const std::vector<Reproduction> expected = (*plain)->reproduce(temperature, {});
      ASSERT_EQ(expected.size(), 1U);
      std::vector<TokenId> answer = expected[0].tokens;
      TinySetup drafting = setup;
      drafting.engine.speculation = {
          .n_draft_max = 6, .lengths = {}, .drafter = &draft_from, .drafter_context = &answer};
      const auto server = TinyServer::make(file_, drafting);
      ASSERT_TRUE(server);
      const std::vector<Reproduction> runs = (*server)->reproduce(temperature, draft_settings());
      ASSERT_EQ(runs.size(), 3U);
      EXPECT_EQ(runs[0].tokens, answer);
      EXPECT_EQ(runs[0].end.trace.logits_hash, expected[0].end.trace.logits_hash);
      EXPECT_EQ(runs[0].end.trace.n_drafted, 0U);
      EXPECT_TRUE(runs[1].is_same && runs[2].is_same);
      EXPECT_GT((*server)->stats.n_draft_tokens_accepted.load(), kGeneratedTokens);
      EXPECT_GT((*server)->stats.n_draft_tokens.load(),
                (*server)->stats.n_draft_tokens_accepted.load());
    }
  }
}

TEST_F(Reproducibility, ADraftModelChangesNoBit) {
  for (TinySetup setup : classes()) {
    for (const float temperature : {0.0F, 1.0F}) {
      SCOPED_TRACE(name_of(setup, temperature));
      setup.drafts_for_itself = true;
      setup.engine.speculation.n_draft_max = 4;
      const auto server = TinyServer::make(file_, setup);
      ASSERT_TRUE(server) << server.error().message();
      const std::vector<Reproduction> runs = (*server)->reproduce(temperature, draft_settings());
      ASSERT_EQ(runs.size(), 3U);
      EXPECT_EQ(runs[0].end.trace.n_drafted, 0U);
      EXPECT_TRUE(runs[1].is_same && runs[2].is_same);
      // Greedy, all are right but for the few that would follow the last token.
      const std::uint32_t n_drafted = runs[1].end.trace.n_drafted;
      if (temperature == 0.0F) {
        EXPECT_LT(n_drafted, kGeneratedTokens);
      }
      EXPECT_GT(n_drafted, kGeneratedTokens / 3);
      EXPECT_EQ((*server)->stats.n_draft_failures.load(), 0U);
    }
  }
}

TEST_F(Reproducibility, ADifferenceOfOneTokenIsSeen) {
  const auto server = TinyServer::make(file_, {});
  ASSERT_TRUE(server);
  const std::vector<Reproduction> greedy = (*server)->reproduce(0.0F, {});
  const std::vector<Reproduction> drawn = (*server)->reproduce(1.0F, {});
  ASSERT_EQ(greedy.size() + drawn.size(), 2U);
  EXPECT_NE(greedy[0].tokens, drawn[0].tokens);
  EXPECT_NE(greedy[0].end.trace.logits_hash, drawn[0].end.trace.logits_hash);
}

}  // namespace
}  // namespace luna::app
