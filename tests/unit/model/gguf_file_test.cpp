// Right files are read whole; every field set wrong in turn is refused with its name.
#include "core/model/gguf_file.hpp"

#include "core/model/model_config.hpp"
#include "core/model/weight_names.hpp"
#include "support/test_seed.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace luna::model {
namespace {

using test::Bytes;
using test::GgufParts;
using test::tiny_llama;

/// Everything that reads a file's header, as `luna inspect` does.
Result<void> read_all(std::span<const std::byte> bytes) {
  LUNA_TRY(const GgufFile file, GgufFile::parse(bytes));
  LUNA_TRY(const ModelConfig config, read_model_config(file));
  return check_weights(config, file);
}

struct Broken {
  const char* why;
  const char* named;  // what the message must contain
  std::function<void(GgufParts&)> change;
};

class BrokenFile : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenFile, IsRefusedWithTheFieldNamed) {
  GgufParts parts = tiny_llama();
  GetParam().change(parts);
  const auto bytes = parts.write();
  const auto result = read_all(bytes);
  ASSERT_FALSE(result) << GetParam().why;
  EXPECT_THAT(result.error().message(), ::testing::HasSubstr(GetParam().named));
}

const Broken kBroken[] = {
    {"wrong magic", "magic", [](auto& f) { f.magic = "GGUG"; }},
    {"byte order reversed", "big-endian", [](auto& f) { f.magic = "FUGG"; }},
    {"version of the other byte order", "big-endian", [](auto& f) { f.version = 3u << 24; }},
    {"version 0", "version", [](auto& f) { f.version = 0; }},
    {"version 1", "version", [](auto& f) { f.version = 1; }},
    {"version 99", "version", [](auto& f) { f.version = 99; }},
    {"2^61 tensors", "tensor_count", [](auto& f) { f.extra_tensors = 1ull << 61; }},
    {"2^32 tensors", "tensor_count", [](auto& f) { f.extra_tensors = 1ull << 32; }},
    {"one tensor too many", "tensor", [](auto& f) { f.extra_tensors = 1; }},
    {"2^60 keys", "metadata_kv_count", [](auto& f) { f.extra_keys = 1ull << 60; }},
    {"one key too many", "tensor 0 name", [](auto& f) { f.extra_keys = 1; }},
    {"string of 2^63 bytes",
     "general.architecture",
     [](auto& f) {
       f.set(test::raw_key("general.architecture",
                           test::typed(ValueType::string).put<std::uint64_t>(1ull << 63)));
     }},
    {"array of 2^62 strings",
     "tokenizer.ggml.merges",
     [](auto& f) {
       f.set(test::raw_key("tokenizer.ggml.merges", test::array_of(ValueType::string, 1ull << 62)));
     }},
    {"array of 2^40 bytes",
     "x at byte",
     [](auto& f) { f.set(test::raw_key("x", test::array_of(ValueType::u8, 1ull << 40))); }},
    {"array of 2^61 numbers",
     "x",
     [](auto& f) { f.set(test::raw_key("x", test::array_of(ValueType::f64, 1ull << 61))); }},
    {"arrays nested without end",
     "nested",
     [](auto& f) {
       Bytes value = test::typed(ValueType::array);
       for (int i = 0; i < 5000; ++i)
         value.put(static_cast<std::uint32_t>(ValueType::array)).template put<std::uint64_t>(1);
       f.set(test::raw_key("x", value));
     }},
    {"unknown value type",
     "value type 77",
     [](auto& f) { f.set(test::raw_key("x", Bytes().put<std::uint32_t>(77).raw("abcd"))); }},
    {"a bool of 2",
     "bool",
     [](auto& f) {
       f.set(test::raw_key("x", test::typed(ValueType::boolean).template put<std::uint8_t>(2)));
     }},
    {"an empty key", "key ", [](auto& f) { f.keys.push_back(test::key_u32("", 1)); }},
    {"a long key",
     "key ",
     [](auto& f) { f.keys.push_back(test::key_u32(std::string(70000, 'k'), 1)); }},
    {"a key twice",
     "twice",
     [](auto& f) { f.keys.push_back(test::key_u32("llama.block_count", 2)); }},
    {"alignment 0",
     "general.alignment",
     [](auto& f) { f.set(test::key_u32("general.alignment", 0)); }},
    {"alignment 3",
     "general.alignment",
     [](auto& f) { f.set(test::key_u32("general.alignment", 3)); }},
    {"alignment 2^31",
     "general.alignment",
     [](auto& f) { f.set(test::key_u32("general.alignment", 1u << 31)); }},
    {"alignment as text",
     "general.alignment",
     [](auto& f) { f.set(test::key_text("general.alignment", "32")); }},
    {"part of several files",
     "split.count",
     [](auto& f) { f.set(test::key_u32("split.count", 2)); }},
    {"five dimensions",
     "n_dimensions",
     [](auto& f) {
       f.tensor("token_embd.weight").dims = {32, 260, 1, 1, 1};
     }},
    {"2^32 - 1 dimensions",
     "n_dimensions",
     [](auto& f) {
       f.tensors.clear();
       f.data.clear();
       f.extra_tensors = 1;
       Bytes tail;
       tail.text("a").template put<std::uint32_t>(0xFFFFFFFF).pad(64);
       f.data = tail.bytes_;
     }},
    {"zero dimension",
     "dimension of 0",
     [](auto& f) {
       f.tensor("token_embd.weight").dims = {0, 260};
     }},
    {"negative dimension",
     "dimensions",
     [](auto& f) {
       f.tensor("token_embd.weight").dims = {~0ull - 31, 260};
     }},
    {"size that wraps",
     "dimensions",
     [](auto& f) {
       f.tensor("token_embd.weight").dims = {1ull << 23, (1ull << 41) + 3};
     }},
    {"unknown tensor type", "type 200", [](auto& f) { f.tensor("token_embd.weight").type = 200; }},
    {"type that was withdrawn", "type 4", [](auto& f) { f.tensor("token_embd.weight").type = 4; }},
    {"row of a part of a block",
     "Q4_0 blocks",
     [](auto& f) {
       f.tensor("token_embd.weight").type = 2;
       f.tensor("token_embd.weight").dims = {33, 260};
     }},
    {"offset near 2^64", "offset", [](auto& f) { f.tensors.back().offset = ~0ull - 31; }},
    {"offset past the end", "offset", [](auto& f) { f.tensors.back().offset = 1u << 20; }},
    {"offset not aligned", "multiple of 32", [](auto& f) { f.tensors[1].offset += 1; }},
    {"overlap", "overlaps", [](auto& f) { f.tensors[1].offset = 32; }},
    {"two tensors of one name", "twice", [](auto& f) { f.tensors.push_back(f.tensors[0]); }},
    {"data short by one byte", "cut short", [](auto& f) { f.data.resize(f.data.size() - 1); }},
    {"half of the data", "cut short", [](auto& f) { f.data.resize(f.data.size() / 2); }},
    {"no data", "cut short", [](auto& f) { f.data.clear(); }},
    {"no architecture", "general.architecture", [](auto& f) { f.drop("general.architecture"); }},
    {"unknown architecture",
     "zebra",
     [](auto& f) { f.set(test::key_text("general.architecture", "zebra")); }},
    {"block count 100000",
     "blk.1.",
     [](auto& f) { f.set(test::key_u32("llama.block_count", 100000)); }},
    {"block count as text",
     "llama.block_count",
     [](auto& f) { f.set(test::key_text("llama.block_count", "1")); }},
    {"block count 0",
     "llama.block_count",
     [](auto& f) { f.set(test::key_u32("llama.block_count", 0)); }},
    {"no norm epsilon",
     "layer_norm_rms_epsilon",
     [](auto& f) { f.drop("llama.attention.layer_norm_rms_epsilon"); }},
    {"norm epsilon that is no number",
     "layer_norm_rms_epsilon",
     [](auto& f) {
       f.set(test::key_f32("llama.attention.layer_norm_rms_epsilon", std::nanf("")));
     }},
    {"KV heads that do not divide",
     "head_count_kv",
     [](auto& f) { f.set(test::key_u32("llama.attention.head_count_kv", 3)); }},
    {"heads that do not divide",
     "embedding_length",
     [](auto& f) {
       f.set(test::key_u32("llama.attention.head_count", 3));
       f.set(test::key_u32("llama.attention.head_count_kv", 3));
     }},
    {"odd rotary dimension",
     "rope.dimension_count",
     [](auto& f) { f.set(test::key_u32("llama.rope.dimension_count", 15)); }},
    {"rotary base below 1",
     "rope.freq_base",
     [](auto& f) { f.set(test::key_f32("llama.rope.freq_base", 0.5F)); }},
    {"unknown rotary scaling",
     "longrope",
     [](auto& f) { f.set(test::key_text("llama.rope.scaling.type", "longrope")); }},
    {"experts",
     "expert_used_count",
     [](auto& f) { f.set(test::key_u32("llama.expert_count", 8)); }},
    {"more experts a row than there are",
     "expert_used_count",
     [](auto& f) {
       f.set(test::key_u32("llama.expert_count", 8));
       f.set(test::key_u32("llama.expert_used_count", 9));
     }},
    {"no experts' weights",
     "ffn_gate_inp",
     [](auto& f) {
       f.set(test::key_u32("llama.expert_count", 8));
       f.set(test::key_u32("llama.expert_used_count", 2));
     }},
    {"another vocabulary size",
     "vocab_size",
     [](auto& f) { f.set(test::key_u32("llama.vocab_size", 261)); }},
    {"a missing weight",
     "blk.0.ffn_up.weight",
     [](auto& f) { f.tensor("blk.0.ffn_up.weight").name = "blk.0.ffn_upp.weight"; }},
    {"a weight of another shape",
     "blk.0.ffn_down.weight",
     [](auto& f) {
       f.tensor("blk.0.ffn_down.weight").dims = {32, 64};
     }},
    {"a weight that is not known",
     "attn_q.bias",
     [](auto& f) { f.add_tensor("blk.0.attn_q.bias", {32}, 0, std::vector<std::byte>(128)); }},
};
INSTANTIATE_TEST_SUITE_P(Each, BrokenFile, ::testing::ValuesIn(kBroken), [](const auto& tested) {
  return "case_" + std::to_string(tested.index);
});

TEST(GgufFile, ReadsARightFileOfBothVersions) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufParts parts = tiny_llama();
    parts.version = version;
    const auto bytes = parts.write();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->tensors().size(), parts.tensors.size());
    EXPECT_EQ(file->metadata().size(), parts.keys.size());
    const TensorInfo* gate = file->find_tensor("blk.0.ffn_gate.weight");
    ASSERT_NE(gate, nullptr);
    EXPECT_EQ(gate->dims[0], 64u);
    EXPECT_EQ(gate->dims[1], 32u);
    EXPECT_EQ(gate->bytes.size(), 64u * 32 * 4);
    EXPECT_TRUE(read_all(bytes));
  }
}

TEST(GgufFile, ReadsAFileWithoutTensors) {
  GgufParts parts = tiny_llama();
  parts.tensors.clear();
  parts.data.clear();
  const auto file = GgufFile::parse(parts.write());
  EXPECT_TRUE(file) << file.error().message();
}

TEST(GgufFile, ReadsTensorsInAnyOrderOfOffsets) {
  GgufParts parts = tiny_llama();
  std::swap(parts.tensors[0], parts.tensors[3]);
  EXPECT_TRUE(read_all(parts.write()));
}

TEST(GgufFile, ReadsNestedArrays) {
  GgufParts parts = tiny_llama();
  Bytes value = test::array_of(ValueType::array, 2);
  for (int i = 0; i < 2; ++i)
    value.put(static_cast<std::uint32_t>(ValueType::u8)).put<std::uint64_t>(1).put<std::uint8_t>(7);
  parts.set(test::raw_key("x", value));
  EXPECT_TRUE(read_all(parts.write()));
}

TEST(GgufFile, RefusesEveryTruncation) {
  GgufParts parts = tiny_llama({.vocab_size = 8});
  const auto whole = parts.write();
  ASSERT_TRUE(read_all(whole));
  for (std::size_t n = 0; n < whole.size(); n += n < 2048 ? 1 : 61) {
    // A copy of its own, so that a sanitizer sees any read beyond the end.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(n));
    EXPECT_FALSE(read_all(cut)) << "cut at " << n;
  }
}

TEST(GgufFile, SurvivesRandomChangesOfBytes) {
  const auto whole = tiny_llama({.vocab_size = 8}).write();
  const std::size_t n_header = whole.size() - tiny_llama({.vocab_size = 8}).data.size();
  const std::uint32_t seed = test::test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> changed = whole;
    const int n_changes = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < n_changes; ++i) {
      const auto at = random() % n_header;
      changed[at] = random() % 4 == 0 ? std::byte{0xFF} : static_cast<std::byte>(random());
    }
    static_cast<void>(read_all(changed));  // any answer, but no crash
  }
}

TEST(Printable, EscapesControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(printable("a\x1b[31m\xff"), "a\\x1b[31m\\xff");
  EXPECT_EQ(printable("h\xc3\xa9 \xe2\x82\xac"), "h\xc3\xa9 \xe2\x82\xac");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
}

}  // namespace
}  // namespace luna::model
