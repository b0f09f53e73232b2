// Drafts change when tokens come, never which.
#include "core/engine/speculation.hpp"

#include "support/engine_fixture.hpp"
#include "support/test_seed.hpp"
#include "support/varied_requests.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace luna::test {
namespace {

namespace json = boost::json;
using engine::continue_match;
using engine::DraftRecord;
using engine::longest_match;
using engine::n_worth_verifying;
using engine::NgramIndex;
using engine::NgramLengths;
using engine::NgramMatch;
using engine::SplitText;

/// Drafts what the test knows will come, with errors of a chance, and what it does not know at
/// random: the worst and the best drafter in one.
struct KnowingDrafter {
  std::vector<std::vector<TokenId>> texts;  // prompts with their answers
  double p_error = 0.0;
  std::mt19937_64 rng;

  static std::uint32_t draft(void* self, const SplitText& text, std::span<TokenId> out) {
    return static_cast<KnowingDrafter*>(self)->write(text, out);
  }
  std::uint32_t write(const SplitText& text, std::span<TokenId> out) {
    const auto n = static_cast<std::uint32_t>(rng() % (out.size() + 1));
    const std::vector<TokenId>* known = nullptr;
    for (const auto& candidate : texts)
      if (candidate.size() > text.size() && begins(candidate, text)) known = &candidate;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::size_t place = text.size() + i;
      const bool is_known = known != nullptr && place < known->size();
      const bool errs = std::uniform_real_distribution<>(0, 1)(rng) < p_error;
      out[i] = is_known && !errs ? (*known)[place] : static_cast<TokenId>(rng() % 264);
    }
    return n;
  }
  static bool begins(const std::vector<TokenId>& whole, const SplitText& text) {
    for (std::uint32_t i = 0; i < text.size(); ++i)
      if (whole[i] != text[i]) return false;
    return true;
  }
};

EngineOptions with_drafter(KnowingDrafter& drafter, std::uint32_t n_draft_max) {
  EngineOptions options;
  options.speculation = {.n_draft_max = n_draft_max,
                         .lengths = {},
                         .drafter = &KnowingDrafter::draft,
                         .drafter_context = &drafter};
  return options;
}

TEST(Speculation, AnswersAreThoseWithoutItWhateverTheDrafts) {
  EngineRig plain({.n_kv_blocks = 256});
  const Answers expected = ask_all(plain, 24);
  const std::uint64_t seed = test_seed();
  for (const double p_error : {0.0, 0.2, 1.0}) {
    for (const std::uint32_t n_draft_max : {1U, 4U, 31U}) {
      // Few blocks: sequences are pre-empted amid their drafts.
      KnowingDrafter drafter{expected.texts, p_error, std::mt19937_64(seed)};
      EngineRig rig({.n_kv_blocks = 14, .n_draft_rows_max = 40},
                    std::nullopt,
                    with_drafter(drafter, n_draft_max));
      const Answers answers = ask_all(rig, 24);
      for (std::size_t i = 0; i < answers.asked.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same(answers.asked[i], expected.asked[i]);
      }
      EXPECT_GT(rig.stats.n_draft_tokens.load(), 0U);
      EXPECT_GT(rig.stats.n_preempted.load(), 0U);
      EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
      if (p_error == 0.0 && n_draft_max == 4) {
        EXPECT_GT(rig.stats.n_draft_tokens_accepted.load(), 100U);
      }
      rig.expect_empty();
    }
  }
}

TEST(Speculation, EveryDraftIsBoundedByTheStepAndTheAnswer) {
  EngineRig plain;
  const Answers expected = ask_all(plain, 8);
  KnowingDrafter drafter{expected.texts, 0.0, std::mt19937_64(1)};
  // 12 rows a step, 8 sequences: little is left for drafts.
  EngineRig rig({.n_rows_max = 12, .n_seqs_max = 8, .n_draft_rows_max = 3},
                std::nullopt,
                with_drafter(drafter, 31));
  const Answers answers = ask_all(rig, 8);
  for (std::size_t i = 0; i < answers.asked.size(); ++i)
    expect_same(answers.asked[i], expected.asked[i]);
  EXPECT_GT(rig.stats.n_draft_tokens_accepted.load(), 0U);
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
  rig.expect_empty();
}

TEST(Speculation, CancelAmidADraftFreesEverything) {
  KnowingDrafter drafter{{}, 1.0, std::mt19937_64(2)};
  EngineRig rig({.n_draft_rows_max = 40, .completion = Completion::deferred},
                std::nullopt,
                with_drafter(drafter, 31));
  auto request = EngineRig::request(some_prompt(30, 2), 100);
  request->stop.ignore_eos = true;
  const Asked asked = rig.submit(std::move(request), 2);
  while (rig.stats.n_draft_tokens.load() < 20) {
    rig.engine->advance();
    rig.fake.complete();
  }
  rig.engine->cancel(asked.id);
  rig.run();
  EXPECT_EQ(asked.end(0).reason, pipeline::FinishReason::cancelled);
  rig.expect_empty();
}

TEST(Speculation, ADeviceThatFailsAmidADraftEndsItsSequencesOnly) {
  KnowingDrafter drafter{{}, 1.0, std::mt19937_64(3)};
  EngineRig rig({.n_draft_rows_max = 40}, std::nullopt, with_drafter(drafter, 8));
  auto request = EngineRig::request(some_prompt(30, 2), 100);
  request->stop.ignore_eos = true;
  const Asked lost = rig.submit(std::move(request));
  for (int i = 0; i < 5; ++i)
    rig.engine->advance();
  rig.fake.devices[0].fail_next_step = true;
  rig.run();
  EXPECT_EQ(lost.end().reason, pipeline::FinishReason::failed);
  const Asked next = rig.submit(EngineRig::request(some_prompt(10, 1), 5));
  rig.run();
  EXPECT_EQ(next.end().reason, pipeline::FinishReason::length);
  rig.expect_empty();
}

TEST(Speculation, CaseUnitSpec1) {
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  json::value table;
  for (std::string line; std::getline(file, line);)
    if (line.find("\"UNIT-SPEC-1\"") != std::string::npos) table = json::parse(line);
  ASSERT_TRUE(table.is_object());
  const json::array& runs = table.at("input").at("runs").as_array();
  const json::array& results = table.at("expected").at("results").as_array();
  ASSERT_EQ(runs.size(), 5U);
  const auto ids = [](const json::value& list) {
    std::vector<TokenId> tokens;
    for (const json::value& id : list.as_array())
      tokens.push_back(static_cast<TokenId>(id.to_number<int>()));
    return tokens;
  };
  constexpr std::uint32_t kPrompt = 10;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(r);
    // The prompt gives a token of its own; the draft stands behind that.
    std::vector<TokenId> forced = {99};
    for (const TokenId id : ids(runs[r].at("target_argmax_at_each_place")))
      forced.push_back(id);
    const auto drafter = [](void* draft, const SplitText& text, std::span<TokenId> out) {
      const auto& tokens = *static_cast<std::vector<TokenId>*>(draft);
      if (text.size() != kPrompt + 1) return 0U;
      std::copy(tokens.begin(), tokens.end(), out.begin());
      return static_cast<std::uint32_t>(tokens.size());
    };
    std::vector<TokenId> draft = ids(runs[r].at("draft"));
    EngineOptions options;
    options.speculation = {
        .n_draft_max = 8, .lengths = {}, .drafter = drafter, .drafter_context = &draft};
    EngineRig rig({.n_draft_rows_max = 8, .forced = forced, .forced_from = kPrompt - 1},
                  std::nullopt,
                  options);
    auto request = EngineRig::request(some_prompt(kPrompt, 1), 20);
    request->stop.ignore_eos = true;
    const Asked asked = rig.submit(std::move(request));
    rig.engine->advance();  // the prompt
    rig.engine->advance();  // the draft
    ASSERT_EQ(asked.tokens().size(), 1U);
    EXPECT_EQ(rig.fake.devices[0].n_rows_last, 1 + draft.size());
    EXPECT_EQ(rig.fake.devices[0].first_position_last, kPrompt);
    rig.engine->advance();
    const std::vector<TokenId> tokens = asked.tokens();
    EXPECT_EQ(std::vector<TokenId>(tokens.begin() + 1, tokens.end()), ids(results[r].at("output")));
    EXPECT_EQ(rig.stats.n_draft_tokens_accepted.load(),
              results[r].at("accepted").to_number<std::uint64_t>());
    // The next step begins where the cache ends.
    EXPECT_EQ(rig.fake.devices[0].first_position_last,
              kPrompt + results[r].at("cache_length_growth").to_number<std::uint32_t>());
    rig.run();
    rig.expect_empty();
  }
}

TEST(Speculation, RepeatedTextTakesFewSteps) {
  for (const float temperature : {0.0F, 1.0F}) {
    EngineOptions options;
    options.speculation = {.n_draft_max = 8, .lengths = {.n_min = 2, .n_max = 4}};
    // The time of a step does not grow with its rows here.
    EngineRig rig(
        {.n_draft_rows_max = 32, .completion = Completion::deferred}, std::nullopt, options);
    auto request = EngineRig::request(some_prompt(20, 1), 100);
    request->sampling.temperature = temperature;
    request->sampling.logit_bias = {{kTheToken, 100.0F}};
    request->logprobs = {.enabled = true, .n_top = 3};
    auto copy = std::make_unique<SequenceRequest>(*request);
    const Asked asked = rig.submit(std::move(request), 2);
    rig.run();
    EngineRig plain;
    expect_same(asked, [&] {
      const Asked other = plain.submit(std::move(copy), 2);
      plain.run();
      return other;
    }());
    EXPECT_LT(rig.stats.n_steps.load(), 40U) << "of 100 tokens";
    EXPECT_GT(rig.stats.n_draft_tokens_accepted.load(), 120U) << "of 200 tokens";
    rig.expect_empty();
  }
}

TEST(Speculation, NothingIsOfferedBeforeAStepWasMeasured) {
  EngineOptions options;
  options.speculation = {.n_draft_max = 8, .lengths = {.n_min = 1, .n_max = 4}};
  EngineRig rig({.n_draft_rows_max = 32}, std::nullopt, options);
  auto request = EngineRig::request(some_prompt(20, 1), 50);
  request->sampling.logit_bias = {{kTheToken, 100.0F}};
  const Asked asked = rig.submit(std::move(request));
  while (!asked.ended())
    rig.engine->advance();  // steps take no time
  EXPECT_EQ(rig.stats.n_draft_tokens.load(), 0U);
}

TEST(Speculation, WhereRowsFillTheStepDraftsAreOnlyTriedNowAndThen) {
  EngineOptions options;
  options.speculation = {.n_draft_max = 8, .lengths = {.n_min = 2, .n_max = 4}};
  EngineRig rig(
      {.n_positions_max = 1024, .n_draft_rows_max = 32, .completion = Completion::deferred},
      std::nullopt,
      options);
  auto request = EngineRig::request(some_prompt(20, 1), 400);
  request->sampling.logit_bias = {{kTheToken, 100.0F}};
  const Asked asked = rig.submit(std::move(request));
  while (!asked.ended()) {
    rig.engine->advance();
    if (rig.fake.complete()) rig.clock.advance(Nanoseconds(1000) * rig.fake.devices[0].n_rows_last);
  }
  EXPECT_GT(rig.stats.n_draft_tokens.load(), 0U);
  EXPECT_LT(rig.stats.n_draft_tokens.load(), 40U) << "of 400 tokens, all of which repeat";
  rig.expect_empty();
}

TEST(Speculation, DraftEndsWhereARowCostsWhatItBrings) {
  EXPECT_EQ(n_worth_verifying(1.0, 0.1, 8), 8U);
  EXPECT_EQ(n_worth_verifying(1.0, 1.0, 8), 0U) << "rows fill the step: nothing pays";
  EXPECT_EQ(n_worth_verifying(0.9, 0.0, 31), 31U) << "rows cost nothing";
  EXPECT_EQ(n_worth_verifying(0.0, 0.1, 8), 0U);
  EXPECT_EQ(n_worth_verifying(0.1, 0.1, 8), 0U);
  const std::uint32_t likely = n_worth_verifying(0.9, 0.1, 31);
  const std::uint32_t doubtful = n_worth_verifying(0.5, 0.1, 31);
  EXPECT_GT(likely, 10U);
  EXPECT_GT(doubtful, 0U);
  EXPECT_LT(doubtful, 5U);
  EXPECT_LT(n_worth_verifying(0.9, 0.4, 31), likely);
}

TEST(Speculation, RecordFollowsWhatIsSeen) {
  constexpr double kShare = 0.15;  // one sequence alone
  DraftRecord record;
  for (int i = 0; i < 20; ++i)
    record.note(8, false);
  EXPECT_EQ(n_worth_verifying(record.p_right(8), kShare, 8), 0U);
  EXPECT_GT(n_worth_verifying(record.p_right(20), kShare, 8), 0U) << "another class of matches";
  // Drafts that are only watched bring it back.
  int n_seen = 0;
  while (n_worth_verifying(record.p_right(8), kShare, 8) == 0) {
    record.note(8, true);
    ASSERT_LT(++n_seen, 10);
  }
  for (int i = 0; i < 40; ++i)
    record.note(8, true);
  EXPECT_EQ(n_worth_verifying(record.p_right(8), kShare, 8), 8U);
}

/// All lengths, all places: what the index must find.
std::optional<NgramMatch> longest_match_by_search(const SplitText& text,
                                                  const NgramLengths& lengths) {
  const std::uint32_t size = text.size();
  for (std::uint32_t n = std::min(lengths.n_max, size); n >= lengths.n_min; --n) {
    for (std::uint32_t end = size - 1; end >= n; --end) {
      std::uint32_t same = 0;
      while (same < std::min(engine::kMatchMax, end) &&
             text[end - same - 1] == text[size - same - 1])
        ++same;
      if (same >= n) return NgramMatch{.end = end, .n_tokens = same};
    }
  }
  return std::nullopt;
}

TEST(NgramIndex, FindsTheLastPlaceOfTheLongestNgram) {
  std::mt19937_64 rng(test_seed());
  for (std::uint32_t round = 0; round < 60; ++round) {
    const NgramLengths lengths{.n_min = 1 + round % 3, .n_max = 3 + round % 6};
    const TokenId n_words = 2 + round % 20;
    std::vector<TokenId> prompt(1 + rng() % 60);
    for (TokenId& token : prompt)
      token = static_cast<TokenId>(rng() % n_words);
    std::vector<TokenId> output;
    NgramIndex of_prompt(lengths, prompt.size());
    for (std::uint32_t end = 1; end <= prompt.size(); ++end)
      of_prompt.add({prompt, {}}, end);
    NgramIndex of_output(lengths, 100);
    for (std::uint32_t i = 0; i < 100; ++i) {
      if (i > 0) of_output.add({prompt, output}, static_cast<std::uint32_t>(prompt.size()) + i);
      output.push_back(static_cast<TokenId>(rng() % n_words));
      const SplitText text{prompt, output};
      const auto found = longest_match(text, lengths, of_prompt, of_output);
      const auto expected = longest_match_by_search(text, lengths);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (!found) continue;
      EXPECT_EQ(found->end, expected->end);
      EXPECT_EQ(found->n_tokens, expected->n_tokens);
    }
  }
}

TEST(NgramIndex, AMatchAtTheEndGoesRound) {
  const std::vector<TokenId> prompt = {7, 1, 2, 3, 1, 2, 3};
  const SplitText text{prompt, {}};
  std::vector<TokenId> draft(8);
  continue_match(text, {.end = 4, .n_tokens = 3}, draft);
  EXPECT_THAT(draft, ::testing::ElementsAre(1, 2, 3, 1, 2, 3, 1, 2));
}

// Equal hashes cost a few probes and forget old places; they give no wrong ones and no long runs.
TEST(NgramIndex, ATextOfOneTokenCostsNoMoreThanAnyOther) {
  const std::vector<TokenId> prompt(5000, 3);
  const NgramLengths lengths{.n_min = 1, .n_max = engine::kNgramMax};
  NgramIndex index(lengths, prompt.size());
  for (std::uint32_t end = 1; end < prompt.size(); ++end)
    index.add({prompt, {}}, end);
  const auto match = longest_match({prompt, {}}, lengths, index, NgramIndex(lengths, 1));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, prompt.size() - 1);
  EXPECT_EQ(match->n_tokens, engine::kMatchMax);
}

}  // namespace
}  // namespace luna::test
