// A draft model changes when tokens come, never which; and costs no request its answer.
#include "core/engine/draft_lengths.hpp"
#include "support/engine_fixture.hpp"
#include "support/varied_requests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace luna::test {
namespace {

using engine::choose_draft_lengths;
using engine::DraftCandidate;
using engine::Drafts;

/// An engine beside which a draft model lies.
struct DraftRig {
  DraftRig(const FakeModelOptions& model,
           const FakeModelOptions& draft_model,
           std::uint32_t n_draft_max = 4)
      : draft(draft_model), rig(model, std::nullopt, options_for(draft, n_draft_max)) {}

  static EngineOptions options_for(const FakeModel& draft, std::uint32_t n_draft_max) {
    EngineOptions options;
    options.speculation.n_draft_max = n_draft_max;
    options.speculation.draft_model = &draft.compiled;
    return options;
  }
  void expect_empty() {
    rig.expect_empty();
    EXPECT_EQ(rig.stats.n_draft_kv_blocks_used.load(), 0U);
    EXPECT_THAT(draft.faults(), ::testing::IsEmpty());
  }

  FakeModel draft;
  EngineRig rig;
};

/// All choices of 24 varied requests, whatever drafts cost; the same without drafts.
void expect_plain_answers(DraftRig& drafting) {
  EngineRig plain({.n_kv_blocks = 256});
  const Answers expected = ask_all(plain, 24);
  const Answers answers = ask_all(drafting.rig, 24, Drafts::always);
  for (std::size_t i = 0; i < answers.asked.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(answers.asked[i], expected.asked[i]);
  }
  EXPECT_EQ(drafting.rig.stats.n_plans_rejected.load(), 0U);
  drafting.expect_empty();
}

std::unique_ptr<SequenceRequest> long_request(Drafts drafts, std::uint32_t n_generated = 100) {
  auto request = EngineRig::request(some_prompt(30, 2), n_generated);
  request->stop.ignore_eos = true;
  request->drafts = drafts;
  return request;
}

double accepted_ratio(const telemetry::EngineStats& stats) {
  return static_cast<double>(stats.n_draft_tokens_accepted.load()) /
         static_cast<double>(stats.n_draft_tokens.load());
}

TEST(DraftModel, AnswersAreThoseWithoutItWhateverTheModel) {
  for (const std::uint64_t weights : {0U, 1U}) {
    for (const std::uint32_t n_draft_max : {1U, 4U, 31U}) {
      SCOPED_TRACE(n_draft_max);
      // Few blocks: sequences are pre-empted amid their drafts.
      DraftRig drafting({.n_kv_blocks = 14, .n_draft_rows_max = 40},
                        {.n_kv_blocks = 64, .weights = weights},
                        n_draft_max);
      expect_plain_answers(drafting);
      EXPECT_GT(drafting.rig.stats.n_preempted.load(), 0U);
      EXPECT_GT(drafting.rig.stats.n_draft_tokens.load(), 100U);
      if (weights == 1) {
        EXPECT_LT(accepted_ratio(drafting.rig.stats), 0.1);
      }
    }
  }
}

TEST(DraftModel, TheModelItselfIsAlwaysRight) {
  DraftRig drafting({.n_draft_rows_max = 40}, {});
  const Asked asked = drafting.rig.submit(long_request(Drafts::always));
  drafting.rig.run();
  EXPECT_EQ(accepted_ratio(drafting.rig.stats), 1.0);
  // The prompt, then five tokens a step.
  EXPECT_EQ(drafting.rig.stats.n_steps.load(), 1U + 20U);
  EXPECT_EQ(asked.end().trace.n_drafted, drafting.rig.stats.n_draft_tokens.load());
  drafting.expect_empty();
}

TEST(DraftModel, RequestsThatWishNoDraftsHaveNone) {
  DraftRig drafting({.n_draft_rows_max = 40}, {});
  drafting.rig.submit(long_request(Drafts::never));
  drafting.rig.run();
  EXPECT_EQ(drafting.rig.stats.n_draft_steps.load(), 0U);
}

TEST(DraftModel, SmallStepsFewSequencesAndAShortContextChangeNoAnswer) {
  DraftRig drafting({.n_draft_rows_max = 40},
                    {.n_kv_blocks = 64, .n_rows_max = 13, .n_seqs_max = 3, .n_positions_max = 100});
  expect_plain_answers(drafting);
  EXPECT_GT(drafting.rig.stats.n_draft_tokens_accepted.load(), 0U);
}

TEST(DraftModel, WithoutRoomInItsCacheSequencesGoOnWithoutDrafts) {
  EngineRig plain;
  const Asked expected = plain.submit(long_request(Drafts::never, 200), 2);
  plain.run();
  // One of the two choices has room, until it has said 96 tokens; then the other has some.
  DraftRig drafting({.n_draft_rows_max = 40}, {.n_kv_blocks = 3});
  const Asked asked = drafting.rig.submit(long_request(Drafts::always, 200), 2);
  drafting.rig.run();
  expect_same(asked, expected);
  EXPECT_GT(drafting.rig.stats.n_draft_tokens_accepted.load(), 40U);
  EXPECT_LT(drafting.rig.stats.n_draft_tokens_accepted.load(), 200U);
  drafting.expect_empty();
}

TEST(DraftModel, DraftsNothingBesideAPrompt) {
  DraftRig drafting({.n_draft_rows_max = 40}, {});
  const auto advance = [&](int n_turns) {
    for (int i = 0; i < n_turns; ++i) {
      drafting.rig.engine->advance();
      drafting.rig.clock.advance(std::chrono::milliseconds(1));
    }
    return drafting.rig.stats.n_draft_steps.load();
  };
  drafting.rig.submit(long_request(Drafts::as_they_pay, 200));
  EXPECT_GT(advance(20), 0U);
  // A prompt of 100 steps, while which the other goes on.
  auto prompt = EngineRig::request(some_prompt(100, 3), 5);
  prompt->prompt_chunk_tokens_max = 1;
  drafting.rig.submit(std::move(prompt));
  const std::uint64_t n_draft_steps = advance(5);
  EXPECT_EQ(advance(80), n_draft_steps);
  EXPECT_EQ(drafting.rig.stats.n_running.load(), 2U);
}

TEST(DraftModel, DevicesInARowDraftAsOne) {
  DraftRig drafting({.n_draft_rows_max = 40}, {.n_shards = 2});
  expect_plain_answers(drafting);
}

TEST(DraftModel, CancelAmidARoundFreesEverything) {
  DraftRig drafting({.n_draft_rows_max = 40}, {.completion = Completion::deferred});
  const Asked asked = drafting.rig.submit(long_request(Drafts::always), 2);
  // Into the middle of the third round.
  while (drafting.rig.stats.n_draft_steps.load() < 9) {
    drafting.rig.engine->advance();
    drafting.draft.complete();
  }
  EXPECT_GT(drafting.rig.stats.n_draft_kv_blocks_used.load(), 0U);
  drafting.rig.engine->cancel(asked.id);
  while (drafting.rig.engine->advance() || drafting.draft.complete()) {}
  EXPECT_EQ(asked.end(0).reason, pipeline::FinishReason::cancelled);
  EXPECT_EQ(asked.end(1).reason, pipeline::FinishReason::cancelled);
  drafting.expect_empty();
}

TEST(DraftModel, ItsFailuresCostNoRequestItsAnswer) {
  EngineRig plain;
  const Asked expected = plain.submit(long_request(Drafts::never));
  plain.run();
  for (const bool at_submit : {false, true}) {
    DraftRig drafting({.n_draft_rows_max = 40}, {});
    const Asked asked = drafting.rig.submit(long_request(Drafts::always));
    FakeDevice& device = drafting.draft.devices[0];
    for (std::uint64_t n_failures = 1; n_failures <= 3; ++n_failures) {
      for (int i = 0; i < 7; ++i)
        drafting.rig.engine->advance();
      (at_submit ? device.refuse_next_submit : device.fail_next_step) = true;
      while (drafting.rig.stats.n_draft_failures.load() < n_failures)
        ASSERT_TRUE(drafting.rig.engine->advance());
      // What it had is forgotten.
      EXPECT_EQ(drafting.rig.engine->audit_kv(), "");
    }
    // Three times are enough.
    const std::uint64_t n_submits = device.n_submits;
    drafting.rig.run();
    EXPECT_EQ(device.n_submits, n_submits);
    EXPECT_EQ(asked.tokens(), expected.tokens());
    EXPECT_EQ(asked.end().reason, pipeline::FinishReason::length);
    drafting.expect_empty();
  }
}

TEST(DraftModel, ANumberThatIsNoneDraftsNothing) {
  DraftRig drafting({.n_draft_rows_max = 40}, {});
  drafting.draft.devices[0].poison = std::nanf("");
  expect_plain_answers(drafting);
}

TEST(DraftModel, StopAmidARoundEndsTheRequest) {
  std::optional<DraftRig> drafting(
      std::in_place, FakeModelOptions{.n_draft_rows_max = 40}, FakeModelOptions{});
  const Asked asked = drafting->rig.submit(long_request(Drafts::always));
  while (drafting->rig.stats.n_draft_steps.load() < 3)
    drafting->rig.engine->advance();
  drafting->rig.engine->stop();
  EXPECT_EQ(asked.end().reason, pipeline::FinishReason::cancelled);
  drafting->expect_empty();
}

/// Runs to the end while a step of the target takes step_us, one of the draft model draft_us.
void run_timed(DraftRig& drafting, int step_us, int draft_us) {
  for (;;) {
    const bool worked = drafting.rig.engine->advance();
    if (drafting.draft.complete()) {
      drafting.rig.clock.advance(std::chrono::microseconds(draft_us));
    } else if (drafting.rig.fake.complete()) {
      drafting.rig.clock.advance(std::chrono::microseconds(step_us));
    } else if (!worked) {
      return;
    }
  }
}

TEST(DraftModel, DraftsAsLongAsItPays) {
  std::optional<std::vector<TokenId>> expected;
  for (const std::uint64_t weights : {0U, 1U}) {
    for (const int draft_us : {100, 2000}) {
      DraftRig drafting({.n_draft_rows_max = 40, .completion = Completion::deferred},
                        {.weights = weights, .completion = Completion::deferred});
      const Asked asked = drafting.rig.submit(long_request(Drafts::as_they_pay, 200));
      run_timed(drafting, 1000, draft_us);
      const std::uint64_t n_steps = drafting.rig.stats.n_steps.load();
      const std::uint64_t n_draft_steps = drafting.rig.stats.n_draft_steps.load();
      if (weights == 0 && draft_us == 100) {
        EXPECT_LT(n_steps, 70U) << "of 200 tokens";
      } else {
        // It was tried: for nothing, or too dear.
        EXPECT_GT(n_steps, 180U);
        EXPECT_GT(n_draft_steps, 0U);
        EXPECT_LT(n_draft_steps, 40U);
      }
      if (!expected) expected = asked.tokens();
      EXPECT_EQ(asked.tokens(), *expected);
      drafting.expect_empty();
    }
  }
}

TEST(DraftModel, OtherVocabularySizesAreRefused) {
  EngineRig rig;
  FakeModel draft({.vocab_size = 260});
  const auto made = Engine::create({{&rig.fake.compiled},
                                    rig.scheduler,
                                    rig.tokenizer,
                                    rig.clock,
                                    rig.stats,
                                    [](void*) {},
                                    nullptr},
                                   DraftRig::options_for(draft, 4));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::unsupported);
  EXPECT_EQ(made.error().message(), "draft model fake has 260 logits, model fake 264");
}

TEST(DraftLengths, GrowWithWhatIsRightAndShrinkWithWhatItCosts) {
  const auto length = [](double p_right, double row_ns, double step_ns) {
    DraftCandidate candidate{.n_max = 8, .p_right = p_right, .row_ns = row_ns};
    choose_draft_lengths({&candidate, 1}, 1000.0, step_ns);
    return candidate.n;
  };
  EXPECT_EQ(length(1.0, 10.0, 100.0), 8U);
  EXPECT_EQ(length(0.5, 10.0, 100.0), 2U);  // 0.5, 0.25 are worth 132 of 1000, 0.125 is not
  EXPECT_EQ(length(0.1, 10.0, 100.0), 0U);
  EXPECT_EQ(length(1.0, 10.0, 900.0), 0U);
  EXPECT_EQ(length(1.0, 900.0, 10.0), 0U);
}

TEST(DraftLengths, SequencesShareTheCostOfAStep) {
  std::vector<DraftCandidate> candidates(4, {.n_max = 3, .p_right = 0.9, .row_ns = 10.0});
  candidates[1].n_max = 1;
  candidates[2].p_right = 0.001;
  choose_draft_lengths({candidates.data(), 1}, 100.0, 120.0);
  EXPECT_EQ(candidates[0].n, 0U);
  choose_draft_lengths(candidates, 100.0, 120.0);
  EXPECT_EQ(candidates[0].n, 1U);
  EXPECT_EQ(candidates[1].n, 1U);
  EXPECT_EQ(candidates[2].n, 0U);
  EXPECT_EQ(candidates[3].n, 1U);
}

}  // namespace
}  // namespace luna::test
