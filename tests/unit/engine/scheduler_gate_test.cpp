// Illegal answers of a policy, each kind.
#include "core/engine/scheduler_gate.hpp"

#include "core/engine/prefix_reuse.hpp"
#include "support/engine_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::engine {
namespace {

using test::EngineRig;
using test::PlanFunction;

constexpr std::uint32_t kBlocks = 4;
constexpr std::uint32_t kBlockTokens = 32;
constexpr std::uint32_t kSlots = 8;

GroupOptions group_options(bool prefix_cache, bool is_only = true) {
  return {
      .limits = {.n_rows_max = 100, .n_seqs_max = 3, .n_out_rows_max = 3, .n_positions_max = 256},
      .n_slots = kSlots,
      .prefix_cache = prefix_cache,
      .is_only = is_only};
}

/// There is one group.
KvMoves::Options no_moves() {
  return {.n_slots = kSlots, .n_blocks_per_seq = 8, .block_tokens = kBlockTokens};
}

test::FakeModelOptions small_model() {
  test::FakeModelOptions options;
  options.n_lanes = 2;
  options.n_kv_blocks = kBlocks;
  return options;
}

/// A gate before a small table: row 0 decodes (40 tokens, 2 blocks), row 1 waits with 100 tokens,
/// row 2 with 10.
class GateTest : public ::testing::Test {
 protected:
  GateTest()
      : tokenizer_(test::tiny_tokenizer()),
        scheduler_(test::scheduler_of([this](const luna_snapshot& snapshot, luna_plan& plan) {
          return answer_(snapshot, plan);
        })),
        table_(kSlots, 8),
        gate_(scheduler_,
              {.n_rows_max = 100, .n_seqs_max = 2, .kv_block_tokens = kBlockTokens},
              table_,
              groups_,
              moves_,
              slices_) {
    groups_.add(
        std::make_unique<Group>(model_.compiled, group_options(false), GroupNumbers{}, wake_));
    for (const std::uint32_t n : {40U, 100U, 10U}) {
      auto request = EngineRig::request(test::some_prompt(n, n), 20);
      request->streams = {std::make_shared<pipeline::TokenStream>(20, 4096, 0)};
      const RequestLimits limits{.vocab_size = 264,
                                 .n_positions_max = 256,
                                 .kv_block_tokens = kBlockTokens,
                                 .n_kv_blocks = kBlocks,
                                 .n_choices_max = 8};
      auto live = LiveRequest::make(std::move(request), limits, tokenizer_);
      EXPECT_TRUE(live);
      live_.push_back(std::move(live).value());
      table_.add(*live_.back()).group = groups_.only();
    }
    Sequence& running = table_[table_.order()[0]];
    running.phase = Phase::decode;
    running.n_computed = 40;
    running.blocks[0] = *pool().allocate();
    running.blocks[1] = *pool().allocate();
    running.n_blocks = 2;
    running.choice().generated.push_back('x');
  }

  PlanFault ask(std::vector<luna_action> actions) {
    answer_ = [actions](const luna_snapshot&, luna_plan& plan) {
      std::copy(actions.begin(), actions.end(), plan.actions);
      plan.n_actions = static_cast<std::uint32_t>(actions.size());
      return LUNA_OK;
    };
    return ask();
  }
  PlanFault ask() { return gate_.ask({.step = 1, .now = Nanoseconds{1000}}, plan_); }
  [[nodiscard]] StepLanes& lanes() { return groups_.only()->lanes; }
  [[nodiscard]] KvPool& pool() { return groups_.only()->pool; }

  text::Tokenizer tokenizer_;
  PlanFunction answer_;
  plugin::Instance<luna_scheduler_if> scheduler_;
  std::vector<std::unique_ptr<LiveRequest>> live_;
  test::FakeModel model_{small_model()};
  WakeSignal wake_;
  SequenceTable table_;
  Groups groups_{1};
  VirtualClock clock_;
  telemetry::EngineStats stats_;
  KvMoves moves_{no_moves(), clock_, wake_, stats_};
  KvSlices slices_{{}, clock_, wake_};
  SchedulerGate gate_;
  StepPlan plan_{kSlots, 2};
};

luna_action run(std::uint32_t row, std::uint32_t n_tokens) {
  return {.row = row,
          .verb = LUNA_VERB_RUN,
          .reason = 0,
          .device = 0,
          .first_token = 0,
          .n_tokens = n_tokens,
          .arg = 0};
}
luna_action verb(std::uint32_t row, std::uint16_t which, std::uint32_t device = 0) {
  luna_action action = run(row, 0);
  action.verb = which;
  action.device = device;
  return action;
}

TEST_F(GateTest, LegalPlansPass) {
  EXPECT_EQ(ask({run(0, 1)}), PlanFault::none);
  EXPECT_EQ(ask({run(0, 1), run(1, 60)}), PlanFault::none);
  ASSERT_EQ(plan_.runs.size(), 2U);
  EXPECT_EQ(plan_.runs[1].n_tokens, 60U);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_ASSIGN), run(1, 64)}), PlanFault::none);
  // What is pre-empted gives its blocks, wherever it stands in the plan.
  EXPECT_EQ(ask({run(1, 100), verb(0, LUNA_VERB_PREEMPT)}), PlanFault::none);
  EXPECT_EQ(ask({verb(2, LUNA_VERB_REJECT)}), PlanFault::none);
  EXPECT_EQ(plan_.rejected.size(), 1U);
}

TEST_F(GateTest, ARejectKeepsItsReason) {
  luna_action reject = verb(2, LUNA_VERB_REJECT);
  reject.reason = LUNA_REASON_QUEUE_LONG;
  ASSERT_EQ(ask({reject}), PlanFault::none);
  EXPECT_EQ(plan_.rejected.front().reason, LUNA_REASON_QUEUE_LONG);
  EXPECT_FALSE(plan_.rejected.front().wait.has_value());
  reject.wait_ms = 3200;
  reject.wait_ms_max = 2000;
  ASSERT_EQ(ask({reject}), PlanFault::none);
  ASSERT_TRUE(plan_.rejected.front().wait.has_value());
  EXPECT_EQ(plan_.rejected.front().wait->ms, 3200U);
  EXPECT_EQ(plan_.rejected.front().wait->ms_max, 2000U);
}

TEST_F(GateTest, EveryIllegalActionIsRefused) {
  EXPECT_EQ(ask({run(3, 1)}), PlanFault::unknown_row);
  EXPECT_EQ(ask({verb(0, 0)}), PlanFault::unknown_verb);
  EXPECT_EQ(ask({verb(0, 99)}), PlanFault::unknown_verb);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_SLICE)}), PlanFault::unsupported_verb);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_MOVE)}), PlanFault::cannot_move) << "it is there";
  EXPECT_EQ(ask({verb(0, LUNA_VERB_MOVE, 1)}), PlanFault::unknown_device);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_MOVE)}), PlanFault::wrong_state);
  luna_action stage = verb(0, LUNA_VERB_MOVE);
  stage.arg = 1;
  EXPECT_EQ(ask({stage}), PlanFault::unsupported_verb);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_ROLE)}), PlanFault::unsupported_verb);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_ASSIGN, 1)}), PlanFault::unknown_device);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_ASSIGN)}), PlanFault::wrong_state);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_PREEMPT)}), PlanFault::wrong_state);
  EXPECT_EQ(ask({run(0, 1), run(0, 1)}), PlanFault::row_twice);
  EXPECT_EQ(ask({run(0, 1), verb(0, LUNA_VERB_PREEMPT)}), PlanFault::row_twice);
  EXPECT_EQ(ask({run(0, 0)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(0, 2)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(1, 101)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(1, 0xFFFFFFFF)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(0, 1), run(1, 1), run(2, 1)}), PlanFault::too_many_rows);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 100), run(2, 11)}),
            PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(1, 65)}), PlanFault::too_few_blocks);
  EXPECT_EQ(gate_.fault_row(), 1U);
  EXPECT_EQ(ask({run(1, 64), run(2, 1)}), PlanFault::too_few_blocks);
  EXPECT_EQ(gate_.fault_row(), 2U);
  EXPECT_EQ(ask({}), PlanFault::changes_nothing);
}

TEST_F(GateTest, ARowInAStepIsLeftAloneUntilThatHasEnded) {
  Sequence& running = table_[table_.order()[0]];
  running.n_steps = 1;
  running.last_step_at = Nanoseconds{77};
  lanes().note_started();
  EXPECT_EQ(ask({run(0, 1)}), PlanFault::row_in_step);
  EXPECT_EQ(gate_.fault_row(), 0U);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT)}), PlanFault::row_in_step);
  EXPECT_EQ(ask({run(1, 1), verb(0, LUNA_VERB_REJECT)}), PlanFault::row_in_step);
  EXPECT_EQ(plan_fault_name(PlanFault::row_in_step), "row_in_step");
  EXPECT_EQ(ask({run(1, 64)}), PlanFault::none);
  answer_ = [](const luna_snapshot& snapshot, luna_plan&) {
    EXPECT_EQ(snapshot.n_steps_in_flight, 1U);
    EXPECT_EQ(snapshot.n_steps_in_flight_max, 2U);
    EXPECT_EQ(snapshot.devices[0].n_steps_in_flight, 1U);
    EXPECT_EQ(snapshot.devices[0].n_steps_in_flight_max, 2U);
    EXPECT_EQ(snapshot.devices[0].n_running, 1U);
    EXPECT_EQ(snapshot.devices[0].n_queued, 2U);
    EXPECT_EQ(snapshot.reqs[0].n_steps, 1U);
    EXPECT_EQ(snapshot.reqs[0].last_step_ns, 77U);
    EXPECT_EQ(snapshot.reqs[1].n_steps, 0U);
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::none) << "its end brings the next plan";
  lanes().note_started();
  EXPECT_EQ(ask({run(1, 64)}), PlanFault::no_room_for_step) << "both lanes are taken";
  lanes().note_ended();
  lanes().note_ended();
  running.n_steps = 0;
  EXPECT_EQ(ask({}), PlanFault::changes_nothing);
}

TEST_F(GateTest, APromptMayGoOnBehindTheStepThatComputesItsBeginning) {
  Sequence& begun = table_[table_.order()[1]];
  begun.phase = Phase::prefill;
  begun.n_steps = 1;
  begun.n_computed = 40;
  begun.n_unfinished = 40;
  lanes().note_started();
  EXPECT_EQ(ask({run(1, 24)}), PlanFault::none);
  EXPECT_EQ(ask({run(1, 61)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_PREEMPT)}), PlanFault::row_in_step);
  EXPECT_EQ(ask({verb(1, LUNA_VERB_REJECT)}), PlanFault::row_in_step);
  begun.is_ending = true;
  EXPECT_EQ(ask({run(1, 24)}), PlanFault::row_in_step);
  answer_ = [](const luna_snapshot& snapshot, luna_plan&) {
    EXPECT_EQ(snapshot.reqs[1].n_prompt, snapshot.reqs[1].n_computed) << "nothing more is wanted";
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::none);
}

TEST_F(GateTest, ATimeThatHasComeIsNotWaitedFor) {
  lanes().note_started();
  answer_ = [](const luna_snapshot& snapshot, luna_plan& plan) {
    plan.wake_at_ns = snapshot.now_ns;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::none);
  EXPECT_FALSE(plan_.wake_at);
}

TEST_F(GateTest, TokensBeyondTheStepAreRefused) {
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 90), run(2, 10)}), PlanFault::none);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 91), run(2, 10)}), PlanFault::too_many_tokens);
}

TEST_F(GateTest, DecodingRowRunsWithAnyPartOfItsDraft) {
  Sequence& running = table_[table_.order()[0]];
  running.n_draft = 30;
  answer_ = [](const luna_snapshot& snapshot, luna_plan& plan) {
    EXPECT_EQ(snapshot.reqs[0].n_draft, 30U);
    EXPECT_EQ(snapshot.reqs[1].n_draft, 0U);
    plan.actions[0] = run(0, 31);  // 40 + 31 tokens: a third block
    plan.n_actions = 1;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::none);
  EXPECT_EQ(ask({run(0, 1)}), PlanFault::none);
  EXPECT_EQ(ask({run(0, 17), run(1, 64)}), PlanFault::none);
  EXPECT_EQ(ask({run(0, 32)}), PlanFault::wrong_token_count);
  EXPECT_EQ(ask({run(0, 31), run(1, 64)}), PlanFault::too_few_blocks);
  // Blocks that a rejected draft left are not taken again.
  running.blocks[running.n_blocks++] = *pool().allocate();
  EXPECT_EQ(ask({run(0, 1), run(1, 32)}), PlanFault::none);
  EXPECT_EQ(ask({run(0, 31), run(1, 32)}), PlanFault::none);
  EXPECT_EQ(ask({run(0, 31), run(1, 33)}), PlanFault::too_few_blocks);
  running.n_draft = 0;
}

TEST_F(GateTest, FailedCallAndCountBeyondTheTableAreRefused) {
  answer_ = [](const luna_snapshot&, luna_plan&) { return LUNA_INTERNAL; };
  EXPECT_EQ(ask(), PlanFault::call_failed);
  answer_ = [](const luna_snapshot&, luna_plan& plan) {
    plan.n_actions = plan.n_actions_max + 1;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::too_many_actions);
}

TEST_F(GateTest, WaitingIsLegalWithATimeToWakeThatIsBounded) {
  answer_ = [](const luna_snapshot& snapshot, luna_plan& plan) {
    plan.wake_at_ns = snapshot.now_ns;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::changes_nothing);
  answer_ = [](const luna_snapshot&, luna_plan& plan) {
    plan.wake_at_ns = UINT64_MAX;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::none);
  EXPECT_LE(*plan_.wake_at, std::chrono::seconds(2));
}

TEST_F(GateTest, SharedBlocksCountOnce) {
  // A twin shares both blocks; the last of them must be copied by the first that runs.
  LiveRequest& request = *live_[0];
  Sequence& first = table_[table_.order()[0]];
  const std::uint32_t shared_tail = first.blocks[1];
  pool().share(first.blocks[0]);
  pool().share(shared_tail);
  (void)request;
  answer_ = [](const luna_snapshot& snapshot, luna_plan& plan) {
    EXPECT_EQ(snapshot.reqs[0].n_kv_blocks, 2U);
    EXPECT_EQ(snapshot.reqs[0].n_kv_blocks_freed, 0U);
    EXPECT_EQ(snapshot.reqs[0].n_kv_blocks_copied, 1U);
    EXPECT_EQ(snapshot.devices[0].n_kv_blocks_free, 2U);
    plan.actions[0] = run(0, 1);
    plan.actions[1] = run(1, 64);  // 2 blocks: one too many beside the copy
    plan.n_actions = 2;
    return LUNA_OK;
  };
  EXPECT_EQ(ask(), PlanFault::too_few_blocks);
  // Pre-empting one of two holders frees nothing.
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 65)}), PlanFault::too_few_blocks);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 64)}), PlanFault::none);
  pool().release(first.blocks[0]);
  pool().release(shared_tail);
}

/// A gate before a pool with keys: row 0 decodes on blocks 0 and 1 of the prompt that rows 1 and 2
/// wait with, a third block of it is cached, one block is free.
class PrefixGateTest : public ::testing::Test {
 protected:
  PrefixGateTest()
      : scheduler_(test::scheduler_of([this](const luna_snapshot& snapshot, luna_plan& plan) {
          return answer_(snapshot, plan);
        })) {
    groups_.add(
        std::make_unique<Group>(model_.compiled, group_options(true), GroupNumbers{}, wake_));
    const RequestLimits limits{.vocab_size = 264,
                               .n_positions_max = 256,
                               .kv_block_tokens = kBlockTokens,
                               .n_kv_blocks = kBlocks,
                               .n_choices_max = 8};
    for (int i = 0; i < 3; ++i) {
      auto request = EngineRig::request(test::some_prompt(100, 1), 20);
      request->streams = {std::make_shared<pipeline::TokenStream>(20, 4096, 0)};
      live_.push_back(LiveRequest::make(std::move(request), limits, tokenizer_).value());
      table_.add(*live_.back()).group = groups_.only();
    }
    Sequence& running = table_[table_.order()[0]];
    running.phase = Phase::prefill;
    for (int b = 0; b < 3; ++b)
      running.blocks[running.n_blocks++] = *pool().allocate();
    running.n_computed = 96;
    prefixes().keep(running);
    pool().release(running.blocks[--running.n_blocks]);
    running.n_keyed = 2;
    running.n_computed = 64;
    for (std::size_t row = 1; row < 3; ++row)
      prefixes().look_up(table_[table_.order()[row]]);
  }

  PlanFault ask(std::vector<luna_action> actions) {
    answer_ = [actions](const luna_snapshot& snapshot, luna_plan& plan) {
      for (std::uint32_t row = 1; row < 3; ++row) {
        EXPECT_EQ(snapshot.reqs[row].n_computed, 96U);
        EXPECT_EQ(snapshot.reqs[row].n_cached, 96U);
        EXPECT_EQ(snapshot.reqs[row].n_kv_blocks, 0U);
        EXPECT_EQ(snapshot.reqs[row].n_kv_blocks_shared, 2U);
      }
      EXPECT_EQ(snapshot.devices[0].n_kv_blocks_free, 2U);
      std::copy(actions.begin(), actions.end(), plan.actions);
      plan.n_actions = static_cast<std::uint32_t>(actions.size());
      return LUNA_OK;
    };
    return gate_.ask({.step = 1, .now = Nanoseconds{1000}}, plan_);
  }
  [[nodiscard]] KvPool& pool() { return groups_.only()->pool; }
  [[nodiscard]] PrefixReuse& prefixes() { return groups_.only()->prefixes; }

  text::Tokenizer tokenizer_ = test::tiny_tokenizer();
  PlanFunction answer_;
  plugin::Instance<luna_scheduler_if> scheduler_;
  std::vector<std::unique_ptr<LiveRequest>> live_;
  test::FakeModel model_{small_model()};
  WakeSignal wake_;
  SequenceTable table_{kSlots, 8};
  Groups groups_{1};
  VirtualClock clock_;
  telemetry::EngineStats stats_;
  KvMoves moves_{no_moves(), clock_, wake_, stats_};
  KvSlices slices_{{}, clock_, wake_};
  SchedulerGate gate_{scheduler_,
                      {.n_rows_max = 100, .n_seqs_max = 3, .kv_block_tokens = kBlockTokens},
                      table_,
                      groups_,
                      moves_,
                      slices_};
  StepPlan plan_{kSlots, 3};
};

TEST_F(PrefixGateTest, WaitingRowsPayForWhatNobodyHolds) {
  EXPECT_EQ(ask({run(1, 4)}), PlanFault::none);
  EXPECT_EQ(ask({run(1, 5)}), PlanFault::wrong_token_count);  // the rest is there
  // The cached block is taken once, the free one by the first of them.
  EXPECT_EQ(ask({run(1, 4), run(2, 4)}), PlanFault::too_few_blocks);
  EXPECT_EQ(gate_.fault_row(), 2U);
  // It cannot be taken by one row and given to another.
  EXPECT_EQ(ask({run(0, 33), run(1, 4)}), PlanFault::too_few_blocks);
  EXPECT_EQ(ask({run(0, 32), run(1, 4)}), PlanFault::too_few_blocks);
  EXPECT_EQ(ask({run(0, 32)}), PlanFault::none);
  // What a row gives back and another takes is not free.
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 4)}), PlanFault::none);
  EXPECT_EQ(ask({verb(0, LUNA_VERB_PREEMPT), run(1, 4), run(2, 4)}), PlanFault::too_few_blocks);
}

TEST_F(GateTest, OfSeveralGroupsOnlyLegalOnesGetRows) {
  test::FakeModelOptions small = small_model();
  small.n_kv_blocks = 1;
  test::FakeModel other(small);
  Groups groups(2);
  for (const model::CompiledModel* model : {&model_.compiled, &other.compiled}) {
    const auto n = static_cast<std::uint32_t>(groups.all().size());
    groups.add(
        std::make_unique<Group>(*model,
                                group_options(true, false),
                                GroupNumbers{.id = GroupId{n}, .place = 0, .first_device = n + 10},
                                wake_));
  }
  KvMoves moves({.n_slots = kSlots,
                 .n_blocks_per_seq = 8,
                 .block_tokens = kBlockTokens,
                 .is_on = true,
                 .has_thread = false},
                clock_,
                wake_,
                stats_);
  SchedulerGate gate(
      scheduler_,
      {.n_rows_max = 100, .n_seqs_max = 2, .kv_block_tokens = kBlockTokens, .n_groups_max = 2},
      table_,
      groups,
      moves,
      slices_);
  StepPlan plan(kSlots, 4);
  Sequence& running = table_[table_.order()[0]];
  running.group = groups.all().front().get();
  for (std::uint32_t b = 0; b < running.n_blocks; ++b)
    running.blocks[b] = *running.group->pool.allocate();
  for (const std::size_t row : {1U, 2U})
    table_[table_.order()[row]].group = nullptr;
  const auto ask_of = [&](std::vector<luna_action> actions) {
    answer_ = [actions](const luna_snapshot& snapshot, luna_plan& answer) {
      EXPECT_EQ(snapshot.n_devices, 2U);
      EXPECT_EQ(snapshot.devices[1].device, 11U);
      EXPECT_EQ(snapshot.devices[1].group, 1U);
      EXPECT_EQ(snapshot.devices[1].attention, snapshot.devices[0].attention);
      EXPECT_EQ(snapshot.reqs[0].device, 10U);
      EXPECT_EQ(snapshot.reqs[1].device, LUNA_NO_DEVICE);
      std::copy(actions.begin(), actions.end(), answer.actions);
      answer.n_actions = static_cast<std::uint32_t>(actions.size());
      return LUNA_OK;
    };
    return gate.ask({.step = 1, .now = Nanoseconds{1000}}, plan);
  };
  const auto assign = [](std::uint32_t row, std::uint32_t device) {
    return verb(row, LUNA_VERB_ASSIGN, device);
  };
  EXPECT_EQ(ask_of({run(1, 1)}), PlanFault::no_group);
  EXPECT_EQ(ask_of({assign(1, 0)}), PlanFault::unknown_device);
  EXPECT_EQ(ask_of({assign(1, 12)}), PlanFault::unknown_device);
  EXPECT_EQ(ask_of({assign(0, 11)}), PlanFault::wrong_state);
  EXPECT_EQ(ask_of({assign(1, 11)}), PlanFault::too_few_blocks) << "it could never hold it";
  EXPECT_EQ(ask_of({assign(1, 10), assign(1, 10)}), PlanFault::row_twice);
  EXPECT_EQ(ask_of({assign(1, 10), run(1, 65)}), PlanFault::too_few_blocks);
  EXPECT_EQ(ask_of({assign(1, 10), run(1, 64), assign(2, 11), run(2, 10), run(0, 1)}),
            PlanFault::none);
  EXPECT_EQ(plan.assigned.size(), 2U);
  EXPECT_EQ(plan.runs.size(), 3U);
  EXPECT_EQ(groups.all().front()->books.n_runs, 2U);
  EXPECT_EQ(groups.all().back()->books.n_runs, 1U);
  EXPECT_EQ(ask_of({assign(2, 11)}), PlanFault::none);
  EXPECT_EQ(ask_of({verb(0, LUNA_VERB_MOVE, 11)}), PlanFault::too_few_blocks);
  // A row that is only handed round changes nothing.
  table_[table_.order()[2]].group = groups.all().front().get();
  EXPECT_EQ(ask_of({assign(2, 11)}), PlanFault::changes_nothing);
  EXPECT_EQ(ask_of({assign(2, 11), run(2, 10)}), PlanFault::none);
}

}  // namespace
}  // namespace luna::engine
