// What the backends refuse, and with which words.
#include "support/tiny_llama.hpp"

#include <gmock/gmock.h>

namespace luna::test {
namespace {

using testing::HasSubstr;

TEST(BackendRefusals, UnbuiltNumericsAreRefusedByName) {
  TestDevice device("cpu");
  std::mt19937_64 rng(test_seed());
  const HostWeight weight = random_weight(rng, 64, 64, {});
  const auto loaded = device.load(weight, LUNA_NUMERICS_F32);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), Code::unsupported);
  EXPECT_THAT(loaded.error().message(),
              HasSubstr("numerics 'f32' is not built; the cpu backend computes i12, i8 and bf16"));
}

TEST(BackendRefusals, AProgramAndItsWeightsAreOfOneNumericsClass) {
  TestDevice device("cpu");
  std::mt19937_64 rng(test_seed());
  const HostWeight weight = random_weight(rng, 64, 64, {});
  const auto handles = device.load_all({weight}, LUNA_NUMERICS_I8);
  ASSERT_TRUE(handles) << handles.error().message();
  ProgramLimits limits;
  limits.n_rows_max = limits.n_seqs_max = limits.n_out_rows_max = 1;
  limits.n_blocks_per_seq_max = limits.n_positions_max = 1;
  ProgramBuilder b(limits);
  b.logits(b.gather_rows(b.embed(b.weight(0, 64, 64))));
  const Result<Program> program = std::move(b).finish();
  ASSERT_TRUE(program) << program.error().message();
  const auto compiled = TestProgram::compile(device, *program, *handles);
  ASSERT_FALSE(compiled);
  EXPECT_THAT(compiled.error().message(), HasSubstr("was loaded for numerics class 2"));
}

TEST(BackendScratch, PlannedBeforeTheWeightsHoldsInEveryNumericsClass) {
  for (const std::uint32_t numerics : {LUNA_NUMERICS_I12, LUNA_NUMERICS_I8, LUNA_NUMERICS_BF16}) {
    for (const std::uint32_t n_rows : {1U, 9U, 64U}) {
      TestDevice device("cpu");
      std::mt19937_64 rng(test_seed());
      const HostWeight weight = random_weight(rng, 64, 576, {});
      const auto handles = device.load_all({weight}, numerics);
      ASSERT_TRUE(handles) << handles.error().message();
      ProgramLimits limits;
      limits.numerics = numerics;
      limits.n_rows_max = limits.n_seqs_max = limits.n_out_rows_max = n_rows;
      limits.n_blocks_per_seq_max = limits.n_positions_max = 1;
      ProgramBuilder b(limits);
      const ViewId table = b.weight(0, 64, 576);
      const LinearNumerics own = linear_numerics(weight.desc, 64, numerics);
      b.logits(b.linear(b.gather_rows(b.embed(table)), table, own));
      const Result<Program> program = std::move(b).finish();
      ASSERT_TRUE(program) << program.error().message();
      const auto compiled = TestProgram::compile(device, *program, *handles);
      EXPECT_TRUE(compiled) << "class " << numerics << ", " << n_rows
                            << " rows: " << compiled.error().message();
    }
  }
}

TEST(BackendRefusals, UnbuiltKvTypeIsRefusedByName) {
  TestDevice device("cpu");
  const luna_kv_layout layout = {2, 2, 64, LUNA_DTYPE_F16, 32, 0};
  luna_err err = make_err();
  std::uint64_t bytes = 0;
  EXPECT_EQ(device.table().kv_block_bytes(device.raw(), &layout, &bytes, &err), LUNA_UNSUPPORTED);
  EXPECT_THAT(err.text, HasSubstr("KV of type 'f16' is not built yet; use bf16 or i8"));
}

TEST(BackendRefusals, NumbersOfNoOpAreNamed) {
  ProgramLimits limits;
  limits.n_rows_max = limits.n_seqs_max = limits.n_out_rows_max = 1;
  limits.n_blocks_per_seq_max = limits.n_positions_max = 1;
  for (const std::uint32_t op : {8U, 9U}) {
    ProgramBuilder b(limits);
    const ViewId x = b.activation(LUNA_DIM_ROWS, 32);
    b.add_op(op, {x}, {x}, {});
    const Result<Program> program = std::move(b).finish();
    ASSERT_TRUE(program) << program.error().message();
    const luna_program abi = program->abi();
    for (const std::string backend : {"cpu", "reference"}) {
      TestDevice device(backend);
      luna_err err = make_err();
      std::uint8_t can = 1;
      EXPECT_EQ(device.table().supports(device.raw(), &abi, &can, &err), LUNA_UNSUPPORTED);
      EXPECT_EQ(can, 0);
      EXPECT_THAT(err.text, HasSubstr("op 0 (" + std::string(op_name(op)) + ")"));
      void* executable = nullptr;
      EXPECT_EQ(device.table().compile(device.raw(), &abi, nullptr, 0, &executable, &err),
                LUNA_UNSUPPORTED);
    }
  }
}

TEST(BackendRefusals, WeightWithRowsMissingIsNotComplete) {
  std::mt19937_64 rng(test_seed());
  HostWeight weight = random_weight(rng, 200, 64, {});
  for (const std::string backend : {"cpu", "reference"}) {
    TestDevice device(backend);
    const luna_backend_if& table = device.table();
    luna_err err = make_err();
    std::uint64_t handle = 0;
    ASSERT_EQ(table.weight_begin(device.raw(), &weight.desc, LUNA_NUMERICS_I12, &handle, &err),
              LUNA_OK);
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.n_rows = 128;
    for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p)
      rows.planes[p] = weight.planes[p].data();
    EXPECT_EQ(table.weight_rows(device.raw(), handle, &rows, &err), LUNA_OK) << err.text;
    EXPECT_EQ(table.weight_end(device.raw(), handle, &err), LUNA_INVALID_ARGUMENT);
    EXPECT_THAT(err.text, HasSubstr("128 rows of 200"));
    rows.first_row = 100;
    EXPECT_EQ(table.weight_rows(device.raw(), handle, &rows, &err), LUNA_INVALID_ARGUMENT);
    rows.first_row = 128;
    EXPECT_EQ(table.weight_rows(device.raw(), handle, &rows, &err), LUNA_INVALID_ARGUMENT);
    EXPECT_EQ(table.weight_rows(device.raw(), 777, &rows, &err), LUNA_INVALID_ARGUMENT);
    table.weight_free(device.raw(), handle);
  }
}

TEST(BackendRefusals, BeyondTheBudgetIsExhausted) {
  const TinyLlama model({}, test_seed());
  TestDevice device("cpu", 1, 300 * 1024);
  const auto weights = device.load_all(model.weights);
  ASSERT_TRUE(weights) << weights.error().message();
  const auto compiled = TestProgram::compile(device, model.program(), *weights);
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code(), Code::exhausted) << compiled.error().message();

  luna_err err = make_err();
  std::uint64_t buffer = 0;
  EXPECT_EQ(device.table().alloc(device.raw(), LUNA_BUFFER_KV, 1 << 20, &buffer, nullptr, &err),
            LUNA_EXHAUSTED);
}

TEST(BackendRefusals, ScratchIsAsPlannedBeforeTheWeightsAreThere) {
  const TinyLlama model({}, test_seed());
  const Program program = model.program();
  const luna_program abi = program.abi();
  TestDevice probe("cpu", 2);
  luna_err err = make_err();
  std::uint64_t scratch = 0;
  ASSERT_EQ(probe.table().scratch_bytes(probe.raw(), &abi, &scratch, &err), LUNA_OK) << err.text;
  std::uint64_t weight_bytes = 0;
  for (const HostWeight& w : model.weights) {
    std::uint64_t bytes = 0;
    ASSERT_EQ(probe.table().weight_bytes(probe.raw(), &w.desc, LUNA_NUMERICS_I12, &bytes, &err),
              LUNA_OK);
    weight_bytes += bytes;
  }
  for (const std::uint64_t missing : {0U, 1U}) {
    TestDevice device("cpu", 2, weight_bytes + scratch - missing);
    const auto weights = device.load_all(model.weights);
    ASSERT_TRUE(weights) << weights.error().message();
    void* executable = nullptr;
    EXPECT_EQ(device.table().compile(device.raw(),
                                     &abi,
                                     weights->data(),
                                     static_cast<std::uint32_t>(weights->size()),
                                     &executable,
                                     &err),
              missing == 0 ? LUNA_OK : LUNA_EXHAUSTED)
        << err.text;
    if (executable != nullptr) device.table().release(executable);
  }
}

}  // namespace
}  // namespace luna::test
