// Extension luna.ext.kv_blocks/1: blocks that leave a device and serve on another like at home.
#include "kv_door.hpp"

#include <gmock/gmock.h>

namespace luna::test {
namespace {

using testing::HasSubstr;

TEST(KvBlocks, ExportedBlocksServeOnAnotherDeviceLikeAtHome) {
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
    LlamaShape shape;
    shape.kv_dtype = kv_dtype;
    const TinyLlama model(shape, test_seed());
    const auto tokens = model.random_tokens(60, test_seed());
    for (const std::string backend : {"cpu", "reference"}) {
      Loaded home(backend, model, 2);
      Loaded guest(backend, model, 1);
      const auto whole = run_in_pieces(*home.run, model, tokens, 30, block_ids(1, 2));
      KvDoor from(home);
      KvDoor to(guest);
      const std::uint32_t old_blocks[] = {1, 2};
      const std::uint32_t new_blocks[] = {9, 4};
      std::vector<std::byte> bytes;
      for (const std::uint32_t layer : {0U, 1U}) {  // as for devices of different layer ranges
        ASSERT_EQ(from.out(from.part(old_blocks, layer, 1), &bytes), LUNA_OK) << from.err.text;
        ASSERT_EQ(to.in(to.part(new_blocks, layer, 1), bytes), LUNA_OK) << to.err.text;
      }
      std::vector<std::byte> again;
      ASSERT_EQ(from.out(from.part(old_blocks, 0, 2), &bytes), LUNA_OK);
      ASSERT_EQ(to.out(to.part(new_blocks, 0, 2), &again), LUNA_OK);
      EXPECT_EQ(bytes, again) << backend << ", " << seed_text();
      StepInput step(model.table_stride());
      step.add(std::span(tokens).last(1), 59, new_blocks);
      ASSERT_EQ(guest.run->run(step).status, LUNA_OK);
      EXPECT_EQ(
          std::memcmp(
              guest.run->logits(), whole.data() + 59 * shape.vocab, shape.vocab * sizeof(float)),
          0)
          << backend << ", " << seed_text();
    }
  }
}

TEST(KvBlocks, PartsOutOfBoundsAreRefusedAndCopyNothing) {
  const TinyLlama model({}, test_seed());
  for (const std::string backend : {"cpu", "reference"}) {
    Loaded loaded(backend, model, 1, 4);
    KvDoor door(loaded);
    const std::uint32_t blocks[] = {1, 2};
    const luna_kv_part good = door.part(blocks, 0, 2);
    std::vector<std::byte> bytes(good.n_bytes, std::byte{7});
    const auto refused = [&](auto&& spoil, const char* text) {
      luna_kv_part part = good;
      spoil(part);
      EXPECT_EQ(door.in(part, bytes), LUNA_INVALID_ARGUMENT) << backend << ": " << text;
      EXPECT_THAT(door.err.text, HasSubstr(text)) << backend;
    };
    const std::uint32_t beyond[] = {1, 4};
    refused([](luna_kv_part& p) { p.struct_size = 8; }, "incomplete");
    refused([](luna_kv_part& p) { p.blocks = nullptr; }, "incomplete");
    refused([](luna_kv_part& p) { p.layout = nullptr; }, "layout");
    refused([](luna_kv_part& p) { p.first_layer = 1; }, "KV layers 1 + 2 of 2");
    refused([](luna_kv_part& p) { p.n_layers = 0; }, "KV layers 0 + 0 of 2");
    refused([](luna_kv_part& p) { p.buffer = 77; }, "KV buffer 77");
    refused([&](luna_kv_part& p) { p.blocks = beyond; }, "KV block 4 of 4");
    refused([](luna_kv_part& p) { p.n_bytes -= 1; }, "blocks take");
    std::vector<std::byte> untouched;
    ASSERT_EQ(door.out(good, &untouched), LUNA_OK);
    EXPECT_EQ(untouched, std::vector<std::byte>(good.n_bytes));
  }
}

}  // namespace
}  // namespace luna::test
