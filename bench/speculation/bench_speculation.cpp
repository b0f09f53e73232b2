// Decoding with n-gram drafts against decoding without, in turns within one process:
//   bench_speculation --model FILE [--threads N] [--rounds N] [--tokens N] [--only WORKLOAD]
//                     [--draft N] [--min N] [--max N]
// One model, two engines on it that run in turns. Every pair must give the same tokens. Timed is
// from the first token to the last; a ratio above 1 says how many times sooner the last one came.
#include "core/engine/engine.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "tests/support/direct_model.hpp"
#include "tests/support/program_options.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <span>

namespace luna {
namespace {

using pipeline::TokenId;
using Seconds = std::chrono::duration<double>;

constexpr std::uint32_t kPositionsMax = 2048;
constexpr std::uint32_t kSequencesMax = 16;
constexpr std::uint32_t kDraftRowsMax = 32;
constexpr std::uint32_t kStepTokensMax = 512;

/// What is asked, how often at the same time, and how it is drawn.
struct Workload {
  std::string name;
  std::string prompt;
  float temperature = 0.0F;
  std::uint32_t n_sequences = 1;
};

std::string chat(const std::string& question) {
  return "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
         "Face<|im_end|>\n<|im_start|>user\n" +
         question + "<|im_end|>\n<|im_start|>assistant\n";
}

std::string source_file(const char* name, std::size_t n_lines) {
  std::ifstream file(std::string(LUNA_SOURCE_DIR) + "/" + name);
  std::string text;
  std::string line;
  for (std::size_t i = 0; i < n_lines && std::getline(file, line); ++i)
    text += line + "\n";
  return text;
}

std::vector<Workload> workloads() {
  const std::string code = source_file("core/engine/sequence.cpp", 40);
  // The answer begins as an editor's completion would: the model goes on with the file.
  const std::string edit =
      chat("Rename the variable `slot` to `place` and give the whole file:\n```cpp\n" + code +
           "```") +
      "```cpp\n" + code.substr(0, code.find("namespace"));
  std::string list = "The inventory of the museum, one line an object:\n";
  for (int i = 1; i <= 12; ++i)
    list += "- object number " + std::to_string(i) +
            ": a small clay vessel, found near the river, in good condition\n";
  const std::string story = chat("Write a long story about a lighthouse keeper and a storm.");
  const std::string essay = chat("Explain how photosynthesis works, in detail.");
  return {{"code edit", edit},
          {"repeated text", list},
          {"code edit, sampled at 0.7", edit, 0.7F},
          {"prose, greedy", essay},
          {"prose, sampled at 1.0", story, 1.0F},
          {"prose, sampled at 1.0, 8 at once", story, 1.0F, 8},
          {"code edit, 8 at once", edit, 0.0F, 8}};
}

/// One engine on the model, turned by the caller.
struct Runner {
  plugin::Instance<luna_scheduler_if> scheduler;
  telemetry::EngineStats stats;
  std::unique_ptr<engine::Engine> engine;
};

struct Outcome {
  Seconds decoding{0};
  std::vector<TokenId> tokens;  // of all sequences, one after the other
  std::string text;             // of the first
};

/// Runs the workload once on an engine. Sequences differ by their seeds alone.
class Bench {
 public:
  Bench(const text::Tokenizer& tokenizer, Clock& clock, std::uint32_t n_tokens)
      : tokenizer_(tokenizer), clock_(clock), n_tokens_(n_tokens) {}

  Result<Outcome> run(Runner& runner, const Workload& workload, std::uint64_t seed) {
    LUNA_TRY(const auto prompt, tokenizer_.encode(workload.prompt, text::SpecialTokens::recognise));
    std::vector<std::shared_ptr<pipeline::TokenStream>> streams;
    for (std::uint32_t s = 0; s < workload.n_sequences; ++s) {
      auto request = std::make_unique<engine::SequenceRequest>();
      request->id = ++last_id_;
      request->prompt = prompt;
      request->sampling.temperature = workload.temperature;
      request->sampling.seed = seed * 1000 + s;
      request->stop.n_generated_max = n_tokens_;
      request->stop.ignore_eos = true;
      request->arrival = clock_.now();
      streams.push_back(std::make_shared<pipeline::TokenStream>(
          n_tokens_,
          pipeline::TokenStream::text_bytes_for(n_tokens_, tokenizer_.token_bytes_max()),
          0));
      request->streams = {streams.back()};
      LUNA_TRY(runner.engine->submit(std::move(request)));
    }
    const auto all = [&](auto holds) { return std::all_of(streams.begin(), streams.end(), holds); };
    Nanoseconds first{0};
    while (!all([](const auto& stream) { return stream->view().end.has_value(); })) {
      if (!runner.engine->advance()) runner.engine->wait();
      if (first.count() == 0 && all([](const auto& s) { return !s->view().tokens.empty(); }))
        first = clock_.now();
    }
    Outcome outcome{.decoding = clock_.now() - first, .tokens = {}, .text = {}};
    for (const auto& stream : streams)
      for (const pipeline::TokenRecord& record : stream->view().tokens)
        outcome.tokens.push_back(record.token_id);
    outcome.text = streams.front()->view().text;
    return outcome;
  }

 private:
  const text::Tokenizer& tokenizer_;
  Clock& clock_;
  const std::uint32_t n_tokens_;
  std::uint64_t last_id_ = 0;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Sides {
  Runner plain;
  Runner drafting;
};

Result<void> compare(Bench& bench, Sides& sides, const Workload& workload, std::uint32_t n_rounds) {
  std::vector<double> ratios;
  std::vector<double> rates;
  const std::uint64_t n_drafted = sides.drafting.stats.n_draft_tokens.load();
  const std::uint64_t n_accepted = sides.drafting.stats.n_draft_tokens_accepted.load();
  for (std::uint32_t round = 0; round <= n_rounds; ++round) {
    // Each goes first every other time; the first pair only warms up.
    const bool drafting_first = round % 2 == 1;
    LUNA_TRY(const Outcome a,
             bench.run(drafting_first ? sides.drafting : sides.plain, workload, round));
    LUNA_TRY(const Outcome b,
             bench.run(drafting_first ? sides.plain : sides.drafting, workload, round));
    if (a.tokens != b.tokens)
      return Error{Code::internal, workload.name + ": drafts have changed the answer"};
    const Outcome& plain = drafting_first ? b : a;
    const Outcome& drafted = drafting_first ? a : b;
    if (round == 0) std::cerr << "--- " << workload.name << "\n" << a.text << "\n";
    if (round == 0) continue;
    ratios.push_back(plain.decoding / drafted.decoding);
    rates.push_back(static_cast<double>(a.tokens.size()) / drafted.decoding.count());
  }
  const double drafted = static_cast<double>(sides.drafting.stats.n_draft_tokens - n_drafted);
  const double accepted =
      static_cast<double>(sides.drafting.stats.n_draft_tokens_accepted - n_accepted);
  std::printf("| %s | %.2f | %.2f..%.2f | %.0f | %.0f %% |\n",
              workload.name.c_str(),
              quantile(ratios, 0.5),
              quantile(ratios, 0.1),
              quantile(ratios, 0.9),
              quantile(rates, 0.5),
              drafted > 0 ? 100.0 * accepted / drafted : 0.0);
  std::fflush(stdout);
  return {};
}

model::ModelOptions model_options(const std::string& path) {
  model::ModelOptions model;
  model.name = "main";
  model.path = path;
  model.limits = {.n_rows_max = kStepTokensMax,
                  .n_seqs_max = kSequencesMax,
                  .n_out_rows_max = kSequencesMax + kDraftRowsMax,
                  .n_positions_max = kPositionsMax};
  model.kv_blocks_max = kSequencesMax * kPositionsMax / model.kv_block_tokens;
  return model;
}

Result<void> run(std::span<char*> arguments) {
  LUNA_TRY(const ProgramOptions options,
           ProgramOptions::read(arguments,
                                {{"--model", ""},
                                 {"--threads", "2"},
                                 {"--rounds", "30"},
                                 {"--tokens", "128"},
                                 {"--only", ""},
                                 {"--draft", "8"},
                                 {"--min", "2"},
                                 {"--max", "4"}},
                                {"--model"}));
  const std::string& path = options.text("--model");
  DirectModel::Options direct{.plugin_folder = LUNA_PLUGIN_DIR, .model = model_options(path)};
  LUNA_TRY(direct.n_threads, options.number("--threads"));
  LUNA_TRY(const auto loaded, DirectModel::load(direct));
  LUNA_TRY(text::Vocabulary vocabulary, model::load_vocabulary(path));
  LUNA_TRY(const text::Tokenizer tokenizer, text::Tokenizer::create(std::move(vocabulary)));

  Sides sides;
  for (Runner* runner : {&sides.plain, &sides.drafting}) {
    LUNA_TRY(runner->scheduler, loaded->catalog().create<luna_scheduler_if>("static", {}));
    engine::EngineOptions engine_options;
    engine_options.prefix_cache = false;  // both write the same blocks
    if (runner == &sides.drafting) {
      LUNA_TRY(engine_options.speculation.n_draft_max, options.number("--draft"));
      LUNA_TRY(engine_options.speculation.lengths.n_min, options.number("--min"));
      LUNA_TRY(engine_options.speculation.lengths.n_max, options.number("--max"));
    }
    LUNA_TRY(runner->engine,
             engine::Engine::create({{&loaded->compiled()},
                                     runner->scheduler,
                                     tokenizer,
                                     loaded->clock(),
                                     runner->stats,
                                     [](void*) {},
                                     nullptr},
                                    engine_options));
  }
  LUNA_TRY(const std::uint32_t n_rounds, options.number("--rounds"));
  LUNA_TRY(const std::uint32_t n_tokens, options.number("--tokens"));
  Bench bench(tokenizer, loaded->clock(), n_tokens);
  std::printf("| workload | times as fast | 10 %%..90 %% | tokens/s | drafts accepted |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  for (const Workload& workload : workloads()) {
    const std::string& only = options.text("--only");
    if (!only.empty() && workload.name.find(only) == std::string::npos) continue;
    LUNA_TRY(compare(bench, sides, workload, n_rounds));
  }
  return {};
}

}  // namespace
}  // namespace luna

int main(int argc, char** argv) {
  if (const luna::Result<void> done = luna::run({argv, static_cast<std::size_t>(argc)}); !done) {
    std::cerr << "bench_speculation: " << done.error().message() << "\n";
    return 1;
  }
  return 0;
}
