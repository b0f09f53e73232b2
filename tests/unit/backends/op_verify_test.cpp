// verify(): a program that breaks one rule is refused with that rule's words.
#include "support/tiny_llama.hpp"

#include <luna/op_program.hpp>

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <thread>

namespace luna::test {
namespace {

using testing::HasSubstr;

/// A program's lists, open to spoiling.
struct OpenProgram {
  explicit OpenProgram(const Program& program) : abi(program.abi()) {
    ops.assign(abi.ops, abi.ops + abi.n_ops);
    views.assign(abi.views, abi.views + abi.n_views);
    slots.assign(abi.slots, abi.slots + abi.n_slots);
    args.assign(abi.args, abi.args + abi.n_args);
    attrs.assign(abi.attrs, abi.attrs + abi.n_attrs);
    point();
  }
  void point() {
    abi.ops = ops.data();
    abi.views = views.data();
    abi.slots = slots.data();
    abi.args = args.data();
    abi.attrs = attrs.data();
  }
  /// The first op of a kind, and its views and attributes.
  luna_op& op(std::uint32_t kind) {
    return *std::find_if(ops.begin(), ops.end(), [&](const luna_op& o) { return o.op == kind; });
  }
  luna_view& in(std::uint32_t kind, std::uint32_t i) { return views[args[op(kind).first_arg + i]]; }
  std::uint32_t& in_id(std::uint32_t kind, std::uint32_t i) { return args[op(kind).first_arg + i]; }
  luna_view& out(std::uint32_t kind) { return in(kind, op(kind).n_in); }
  std::uint32_t& attr(std::uint32_t kind, std::uint32_t i) {
    return attrs[op(kind).first_attr + i];
  }
  luna_slot& slot(std::uint32_t kind) {
    return *std::find_if(
        slots.begin(), slots.end(), [&](const luna_slot& s) { return s.kind == kind; });
  }

  luna_program abi;
  std::vector<luna_op> ops;
  std::vector<luna_view> views;
  std::vector<luna_slot> slots;
  std::vector<std::uint32_t> args;
  std::vector<std::uint32_t> attrs;
};

std::uint32_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

struct Rule {
  const char* words;  // of the message
  std::function<void(OpenProgram&)> break_it;
};

/// Breaks each rule in a fresh copy; the hash is made right again, so that it never hides a rule.
void expect_refused(const Program& program, const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    OpenProgram open(program);
    rule.break_it(open);
    if (open.abi.ops == open.ops.data()) open.abi.hash = hash_program(open.abi);
    const Result<void> verdict = verify(open.abi);
    ASSERT_FALSE(verdict) << rule.words;
    EXPECT_EQ(verdict.error().code(), Code::invalid_argument);
    EXPECT_THAT(verdict.error().message(), HasSubstr(rule.words));
  }
}

class OpVerify : public testing::Test {
 protected:
  static LlamaShape shape() {
    LlamaShape shape;
    shape.prune_group_layers = 1;  // every op
    return shape;
  }
  const TinyLlama model_{shape(), test_seed()};
  const Program program_ = model_.program();
};

TEST_F(OpVerify, AcceptsAWholeModel) {
  EXPECT_TRUE(verify(program_.abi()));
  EXPECT_TRUE(verify(model_.program({1, 1, true, false}).abi()));
}

TEST_F(OpVerify, CopyHasTheSameHashAndAnyChangeAnother) {
  const Program copy = Program::copy_of(program_.abi());
  EXPECT_EQ(hash_program(copy.abi()), program_.abi().hash);
  EXPECT_EQ(model_.program().abi().hash, program_.abi().hash);
  OpenProgram open(program_);
  open.abi.n_rows_max += 1;
  EXPECT_NE(hash_program(open.abi), program_.abi().hash);
  const Result<void> verdict = verify(open.abi);
  ASSERT_FALSE(verdict);
  EXPECT_THAT(verdict.error().message(), HasSubstr("does not match the program"));
}

TEST_F(OpVerify, HeaderRules) {
  expect_refused(
      program_,
      {{"struct_size = 8", [](OpenProgram& p) { p.abi.struct_size = 8; }},
       {"numerics = 4", [](OpenProgram& p) { p.abi.numerics = 4; }},
       {"n_rows_max = 0", [](OpenProgram& p) { p.abi.n_rows_max = 0; }},
       {"n_seqs_max = 0", [](OpenProgram& p) { p.abi.n_seqs_max = 0; }},
       {"n_out_rows_max = 0", [](OpenProgram& p) { p.abi.n_out_rows_max = 0; }},
       {"n_positions_max = 4294967295", [](OpenProgram& p) { p.abi.n_positions_max = ~0U; }},
       {"n_blocks_per_seq_max = 0", [](OpenProgram& p) { p.abi.n_blocks_per_seq_max = 0; }},
       {"n_ops = 0", [](OpenProgram& p) { p.abi.n_ops = 0; }}});
}

TEST_F(OpVerify, AllGatherRules) {
  ProgramLimits limits{.n_rows_max = 4, .n_seqs_max = 1, .n_out_rows_max = 1};
  limits.n_blocks_per_seq_max = 1;
  limits.n_positions_max = 4;
  ProgramBuilder b(limits);
  const ViewId part = b.recv(64, 1, 0);
  b.send(b.all_gather(part, {.n_columns = 96, .unit = 32, .rank = 0, .n_ranks = 2}), 1, 0);
  const auto program = std::move(b).finish();
  ASSERT_TRUE(program) << program.error().message();
  const auto set = [](std::uint32_t attr, std::uint32_t value) {
    return [=](OpenProgram& p) { p.attr(LUNA_OP_ALL_GATHER, attr) = value; };
  };
  expect_refused(*program,
                 {{"attribute 'n_ranks'", set(LUNA_ALL_GATHER_N_RANKS, 0)},
                  {"attribute 'n_ranks'", set(LUNA_ALL_GATHER_N_RANKS, ~0U)},
                  {"attribute 'rank'", set(LUNA_ALL_GATHER_RANK, 2)},
                  {"attribute 'unit'", set(LUNA_ALL_GATHER_UNIT, 0)},
                  {"attribute 'unit'", set(LUNA_ALL_GATHER_UNIT, 96)},
                  {"the rank's share", set(LUNA_ALL_GATHER_RANK, 1)},
                  {"the rank's share", set(LUNA_ALL_GATHER_UNIT, 1)}});
}

TEST(OpVerifyHeader, ListsMustBeThereAndOfSaneLength) {
  const TinyLlama model({}, test_seed());
  const Program program = model.program();
  luna_program p = program.abi();
  p.views = nullptr;
  EXPECT_THAT(verify(p).error().message(), HasSubstr("program.n_views"));
  p = program.abi();
  p.n_args = ~0U;
  EXPECT_THAT(verify(p).error().message(), HasSubstr("program.n_args = 4294967295"));
}

TEST_F(OpVerify, KvRules) {
  expect_refused(program_,
                 {{"block_tokens = 48", [](OpenProgram& p) { p.abi.kv.block_tokens = 48; }},
                  {"block_tokens = 512", [](OpenProgram& p) { p.abi.kv.block_tokens = 512; }},
                  {"n_kv_heads = 0", [](OpenProgram& p) { p.abi.kv.n_kv_heads = 0; }},
                  {"head_dim = 0", [](OpenProgram& p) { p.abi.kv.head_dim = 0; }},
                  {"kv.dtype = 77", [](OpenProgram& p) { p.abi.kv.dtype = 77; }},
                  {"kv.flags = 2", [](OpenProgram& p) { p.abi.kv.flags = 2; }},
                  {"program.kv.flags has no masses", [](OpenProgram& p) { p.abi.kv.flags = 0; }},
                  {"n_layers = 70000", [](OpenProgram& p) { p.abi.kv.n_layers = 70000; }},
                  {"program.kv.n_layers = 0", [](OpenProgram& p) { p.abi.kv.n_layers = 0; }},
                  {"attribute 'n_heads'", [](OpenProgram& p) {
                     p.abi.kv.n_kv_heads = 1;
                     p.attr(LUNA_OP_ATTEND, LUNA_ATTEND_N_HEADS) = 3;
                     p.in(LUNA_OP_KV_WRITE, 0).dims[1] = 64;
                     p.abi.kv.n_kv_heads = 2;
                   }}});
}

TEST_F(OpVerify, SlotRules) {
  expect_refused(program_,
                 {{".kind = 0", [](OpenProgram& p) { p.slots[3].kind = 0; }},
                  {".kind = 9", [](OpenProgram& p) { p.slots[3].kind = 9; }},
                  {".bytes = 0", [](OpenProgram& p) { p.slot(LUNA_SLOT_SCRATCH).bytes = 0; }},
                  {"a constant without data",
                   [](OpenProgram& p) { p.slot(LUNA_SLOT_CONSTANT).data = nullptr; }},
                  {"a second slot of kind 4", [](OpenProgram& p) {
                     p.slots.push_back({LUNA_SLOT_KV, 0, 0, nullptr});
                     ++p.abi.n_slots;
                     p.point();
                   }}});
}

TEST_F(OpVerify, ViewRules) {
  const auto activation = [](OpenProgram& p) -> luna_view& { return p.out(LUNA_OP_EMBED); };
  expect_refused(
      program_,
      {{".slot = 999", [&](OpenProgram& p) { activation(p).slot = 999; }},
       {".dtype = 99", [&](OpenProgram& p) { activation(p).dtype = 99; }},
       {".rank = 0", [&](OpenProgram& p) { activation(p).rank = 0; }},
       {".rank = 5", [&](OpenProgram& p) { activation(p).rank = 5; }},
       {"only dims[0] may be symbolic",
        [&](OpenProgram& p) { activation(p).dims[1] = LUNA_DIM_ROWS; }},
       {"only dims[0] may be symbolic", [&](OpenProgram& p) { activation(p).dims[1] = 0; }},
       {"is too long", [&](OpenProgram& p) { activation(p).dims[1] = 0xF0000000U; }},
       {"needs a symbolic dims[0]", [&](OpenProgram& p) { activation(p).dims[0] = 12; }},
       {"exceed the slot's row", [&](OpenProgram& p) { activation(p).offset = 8; }},
       {"exceed the slot's row", [&](OpenProgram& p) { activation(p).offset = 6; }},
       {"exceed the slot's row", [&](OpenProgram& p) { activation(p).dims[1] = 65; }},
       {"row stride of 512 bytes", [&](OpenProgram& p) { activation(p).row_stride = 128; }},
       {"both row counts",
        [&](OpenProgram& p) {
          luna_view v = activation(p);
          v.dims[0] = LUNA_DIM_OUT_ROWS;
          p.views.push_back(v);
          ++p.abi.n_views;
          p.point();
        }},
       {"only activations have an offset",
        [&](OpenProgram& p) { p.in(LUNA_OP_EMBED, 0).offset = 4; }},
       {"for no other", [&](OpenProgram& p) { p.in(LUNA_OP_EMBED, 0).dims[0] = LUNA_DIM_ROWS; }},
       {"more elements than the constant",
        [&](OpenProgram& p) { p.in(LUNA_OP_ROPE, 1).dims[0] = 17; }}});
}

TEST_F(OpVerify, ListRulesOfAnOp) {
  expect_refused(
      program_,
      {{"op number 0", [](OpenProgram& p) { p.ops[1].op = 0; }},
       {"op number 30", [](OpenProgram& p) { p.ops[1].op = LUNA_N_OPS; }},
       {"arguments beyond the list", [](OpenProgram& p) { p.ops[1].first_arg = ~0U; }},
       {"arguments beyond the list", [](OpenProgram& p) { p.ops[1].n_in = 65535; }},
       {"attributes beyond the list", [](OpenProgram& p) { p.ops[2].first_attr = ~0U; }},
       {"attributes beyond the list", [](OpenProgram& p) { p.ops[2].n_attrs = 65535; }},
       {"is view 4000", [](OpenProgram& p) { p.in_id(LUNA_OP_LINEAR, 0) = 4000; }},
       {"2 attributes, must be 3", [](OpenProgram& p) { p.op(LUNA_OP_LINEAR).n_attrs = 2; }},
       {"too few inputs", [](OpenProgram& p) { p.op(LUNA_OP_KV_WRITE).n_in = 1; }},
       {"too many inputs",
        [](OpenProgram& p) {
          p.op(LUNA_OP_KV_WRITE).n_in = 3;
          p.in_id(LUNA_OP_KV_WRITE, 2) = p.in_id(LUNA_OP_KV_WRITE, 0);
        }},
       {"0 outputs, must be 1", [](OpenProgram& p) { p.op(LUNA_OP_EMBED).n_out = 0; }},
       {"has no KV slot", [](OpenProgram& p) { p.slot(LUNA_SLOT_KV).kind = LUNA_SLOT_COMM; }},
       {"read before it is written",
        [](OpenProgram& p) {
          p.in_id(LUNA_OP_RMS_NORM, 0) = p.args[p.op(LUNA_OP_RMS_NORM).first_arg + 2];
        }},
       {"its output overlaps input 0", [](OpenProgram& p) {
          p.args[p.op(LUNA_OP_ATTEND).first_arg + 1] = p.in_id(LUNA_OP_ATTEND, 0);
        }}});
}

TEST_F(OpVerify, ShapeRulesOfAnOp) {
  expect_refused(
      program_,
      {{"lies in a slot of kind",
        [](OpenProgram& p) { p.in_id(LUNA_OP_LINEAR, 1) = p.in_id(LUNA_OP_LINEAR, 0); }},
       {"dtype 2, must be 0",
        [](OpenProgram& p) { p.in(LUNA_OP_EMBED, 0).dtype = LUNA_DTYPE_BF16; }},
       {"rank 1, must be 2", [](OpenProgram& p) { p.in(LUNA_OP_EMBED, 0).rank = 1; }},
       {"must be the step's rows",
        [](OpenProgram& p) {
          p.in_id(LUNA_OP_ATTEND, 0) = p.args[p.op(LUNA_OP_GATHER_ROWS).first_arg + 1];
          p.op(LUNA_OP_GATHER_ROWS).op = LUNA_OP_COPY;
        }},
       {"the op's other arguments say",
        [](OpenProgram& p) { p.in(LUNA_OP_LINEAR, 1).dims[1] = 63; }},
       {"the op's other arguments say",
        [](OpenProgram& p) { p.in(LUNA_OP_RMS_NORM, 1).dims[0] = 63; }},
       {"the op's other arguments say", [](OpenProgram& p) { p.out(LUNA_OP_LOGITS).dims[1] = 7; }},
       {"width is not 2 * (k + 1)",
        [](OpenProgram& p) { p.out(LUNA_OP_TOP_CANDIDATES).dims[1] = 10; }}});
}

TEST_F(OpVerify, AttributeRules) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto set = [](std::uint32_t op, std::uint32_t attr, std::uint32_t value) {
    return [=](OpenProgram& p) { p.attr(op, attr) = value; };
  };
  expect_refused(
      program_,
      {{"attribute 'eps'", set(LUNA_OP_RMS_NORM, 0, bits(-1.0F))},
       {"attribute 'eps:'", set(LUNA_OP_RMS_NORM, 0, bits(nan))},
       {"attribute 'segment'", set(LUNA_OP_LINEAR, LUNA_LINEAR_SEGMENT, 0)},
       {"attribute 'n_heads'", set(LUNA_OP_ROPE, LUNA_ROPE_N_HEADS, 3)},
       {"attribute 'n_rot'", set(LUNA_OP_ROPE, LUNA_ROPE_N_ROT, 31)},
       {"attribute 'n_rot'", set(LUNA_OP_ROPE, LUNA_ROPE_N_ROT, 34)},
       {"attribute 'n_rot'", set(LUNA_OP_ROPE, LUNA_ROPE_N_ROT, 30)},
       {"attribute 'style'", set(LUNA_OP_ROPE, LUNA_ROPE_STYLE, 2)},
       {"attribute 'layer'", set(LUNA_OP_KV_WRITE, LUNA_KV_WRITE_LAYER, 2)},
       {"attribute 'layer'", set(LUNA_OP_ATTEND, LUNA_ATTEND_LAYER, 2)},
       {"attribute 'n_heads'", set(LUNA_OP_ATTEND, LUNA_ATTEND_N_HEADS, 0)},
       {"attribute 'n_heads'", set(LUNA_OP_ATTEND, LUNA_ATTEND_N_HEADS, 3)},
       {"attribute 'n_heads'", set(LUNA_OP_ATTEND, LUNA_ATTEND_N_HEADS, 0x80000004U)},
       {"attribute 'softcap'", set(LUNA_OP_ATTEND, LUNA_ATTEND_SOFTCAP, bits(-2.0F))},
       {"attribute 'layer'", set(LUNA_OP_KV_PRUNE, LUNA_KV_PRUNE_LAYER, 1)},
       {"attribute 'group_first'", set(LUNA_OP_KV_PRUNE, LUNA_KV_PRUNE_GROUP_FIRST, 1)},
       {"attribute 'group_last'", set(LUNA_OP_KV_PRUNE, LUNA_KV_PRUNE_GROUP_LAST, 2)},
       {"attribute 'n_heads'", set(LUNA_OP_KV_PRUNE, LUNA_KV_PRUNE_N_HEADS, 3)},
       {"attribute 'softcap'", set(LUNA_OP_KV_PRUNE, LUNA_KV_PRUNE_SOFTCAP, bits(-2.0F))},
       {"attribute 'kind'", set(LUNA_OP_ACT_MUL, LUNA_ACT_MUL_KIND, 2)},
       {"attribute 'k'", set(LUNA_OP_TOP_CANDIDATES, LUNA_TOP_CANDIDATES_K, 0)},
       {"attribute 'k'", set(LUNA_OP_TOP_CANDIDATES, LUNA_TOP_CANDIDATES_K, 257)}});
}

TEST(OpVerifyRandom, SpoiledNumbersNeverReadBeyondTheLists) {
  // Whatever verify() answers, it must not crash; what it accepts, the printer must survive.
  const TinyLlama model({}, test_seed());
  const Program program = model.program();
  std::mt19937_64 rng(test_seed());
  const std::uint32_t values[] = {0, 1, 2, 31, 64, 0x7FFFFFFFU, LUNA_DIM_OUT_ROWS, LUNA_DIM_ROWS};
  const auto spoil = [&](auto& list) {
    auto* bytes = reinterpret_cast<std::byte*>(list.data());
    const std::size_t words = list.size() * sizeof(list[0]) / 4;
    std::memcpy(bytes + rng() % words * 4, &values[rng() % std::size(values)], 4);
  };
  for (int i = 0; i < 20000; ++i) {
    OpenProgram open(program);
    switch (rng() % 4) {
      case 0:
        spoil(open.ops);
        break;
      case 1:
        spoil(open.views);
        break;
      case 2:
        spoil(open.args);
        break;
      default:
        spoil(open.attrs);
        break;
    }
    open.abi.hash = hash_program(open.abi);
    if (verify(open.abi)) {
      EXPECT_FALSE(to_text(open.abi).empty());
    }
  }
}

TEST(OpText, OneLineAnOpWithNamesOfAttributes) {
  const TinyLlama model({}, test_seed());
  const std::string text = to_text(model.program().abi());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), model.program().abi().n_ops);
  EXPECT_THAT(text, HasSubstr(" = embed(w0[200,64])\n"));
  EXPECT_THAT(text, HasSubstr("segment=64 activation_bits=12 activation_group=32"));
  EXPECT_THAT(text, HasSubstr("candidates[n_out,12] = top_candidates("));
}

// ---- Building blocks ----------------------------------------------------------------------------

TEST(WeightDesc, EveryRuleRefuses) {
  std::mt19937_64 rng(test_seed());
  const HostWeight weight = random_weight(rng, 64, 64, {});
  const std::pair<const char*, std::function<void(luna_weight_desc&)>> rules[] = {
      {"incomplete", [](luna_weight_desc& d) { d.struct_size = 16; }},
      {"n_rows = 0", [](luna_weight_desc& d) { d.n_rows = 0; }},
      {"n_cols = 0", [](luna_weight_desc& d) { d.n_cols = 0; }},
      {"n_rows", [](luna_weight_desc& d) { d.n_rows = ~std::uint64_t{0}; }},
      {"klass = 9", [](luna_weight_desc& d) { d.klass = 9; }},
      {"bits = 9", [](luna_weight_desc& d) { d.bits = 9; }},
      {"bits = 1", [](luna_weight_desc& d) { d.bits = 1; }},
      {"group = 0", [](luna_weight_desc& d) { d.group = 0; }},
      {"group = 65", [](luna_weight_desc& d) { d.group = 65; }},
      {"super = 48", [](luna_weight_desc& d) { d.super = 48; }},
      {"row_bytes[0] = 63", [](luna_weight_desc& d) { d.row_bytes[0] = 63; }},
      {"row_bytes[1] = 0", [](luna_weight_desc& d) { d.row_bytes[1] = 0; }},
      {"row_bytes[4] = 8", [](luna_weight_desc& d) { d.row_bytes[4] = 8; }}};
  for (const auto& [words, break_it] : rules) {
    luna_weight_desc desc = weight.desc;
    break_it(desc);
    const Result<void> verdict = check_weight_desc(&desc);
    ASSERT_FALSE(verdict) << words;
    EXPECT_THAT(verdict.error().message(), HasSubstr(words));
  }
}

TEST(Float16, EveryPatternSurvivesAndRoundingIsToNearestEven) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    if ((h & 0x7C00U) != 0x7C00U || (h & 0x3FFU) == 0) {
      EXPECT_EQ(f32_to_f16(f16_to_f32(half)), half);
    }
    if ((h & 0x7F80U) != 0x7F80U) {
      EXPECT_EQ(f32_to_bf16(bf16_to_f32(half)), half);
    }
  }
  EXPECT_EQ(f32_to_f16(2049.0F), f32_to_f16(2048.0F));  // halfway: to even
  EXPECT_EQ(f32_to_f16(2051.0F), f32_to_f16(2052.0F));
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(f32_to_bf16(1.00390625F), 0x3F80);  // 1 + 2^-8, halfway: to even
}

TEST(JobQueue, FullIsAnAnswerAndOrderIsKept) {
  JobQueue<int, 4> queue;
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(queue.push(i));
  EXPECT_FALSE(queue.push(4));
  int job = -1;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(queue.pop(&job));
    EXPECT_EQ(job, i);
  }
  EXPECT_FALSE(queue.pop(&job));
  EXPECT_TRUE(queue.push(5));
}

TEST(JobQueue, ManyProducersLoseNothing) {
  JobQueue<std::uint32_t, 8> queue;
  constexpr std::uint32_t kEach = 2000;
  std::vector<std::thread> producers;
  for (std::uint32_t p = 0; p < 3; ++p)
    producers.emplace_back([&queue, p] {
      for (std::uint32_t i = 0; i < kEach; ++i)
        while (!queue.push(p * kEach + i))
          std::this_thread::yield();
    });
  std::vector<std::uint32_t> next(3);
  for (std::uint32_t n = 0; n < 3 * kEach; ++n) {
    std::uint32_t job = 0;
    std::uint32_t seen = queue.signal();
    while (!queue.pop(&job)) {
      queue.sleep(seen);
      seen = queue.signal();
    }
    EXPECT_EQ(job % kEach, next[job / kEach]++);
  }
  for (std::thread& producer : producers)
    producer.join();
}

/// The error of a program over x[n, 64] and routes[n, 4].
std::string refusal(const std::function<void(ProgramBuilder&, ViewId x, ViewId routes)>& write) {
  ProgramLimits limits;
  limits.n_rows_max = limits.n_out_rows_max = limits.n_seqs_max = 4;
  limits.n_blocks_per_seq_max = 1;
  limits.n_positions_max = 32;
  ProgramBuilder b(limits);
  const ViewId x = b.embed(b.weight(0, 10, 64));
  write(b, x, b.columns(b.embed(b.weight(1, 10, 8)), 0, 4));
  const auto program = std::move(b).finish();
  return program ? "taken" : program.error().message();
}

TEST(OpVerifyShapes, HeadsFillRowsAndSlotsAreThoseOfExperts) {
  const LinearNumerics numerics{.segment = 64};
  EXPECT_EQ(refusal([&](ProgramBuilder& b, ViewId x, ViewId routes) {
              b.head_norm_in_place(x, b.weight(2, 16), 1e-5F);
              const ViewId chosen = b.moe_route(routes, 4, true);
              const ViewId y = b.grouped_linear(x, chosen, b.weight(3, 64, 64), 4, numerics);
              b.moe_sum(y, chosen, 4);
            }),
            "taken");
  EXPECT_THAT(refusal([](ProgramBuilder& b, ViewId x, ViewId) {
                b.head_norm_in_place(x, b.weight(2, 48), 1e-5F);
              }),
              HasSubstr("not a multiple of a head's"));
  for (const std::uint32_t k : {0U, 5U})
    EXPECT_THAT(
        refusal([k](ProgramBuilder& b, ViewId, ViewId routes) { b.moe_route(routes, k, true); }),
        HasSubstr("attribute 'k'"));
  EXPECT_THAT(refusal([&](ProgramBuilder& b, ViewId x, ViewId routes) {
                b.grouped_linear(x, routes, b.weight(2, 66, 64), 2, numerics);
              }),
              HasSubstr("no rows for each expert"));
  EXPECT_THAT(refusal([&](ProgramBuilder& b, ViewId x, ViewId routes) {
                b.grouped_linear(x, routes, b.weight(2, 64, 32), 3, numerics);
              }),
              HasSubstr("neither one slot nor as many"));
  EXPECT_THAT(refusal([&](ProgramBuilder& b, ViewId x, ViewId routes) { b.moe_sum(x, routes, 8); }),
              HasSubstr("more than experts"));
}

}  // namespace
}  // namespace luna::test
