// Manifests come from outside: each field that is wrong is refused by its name.
#include "core/model/shard_manifest.hpp"

#include "unit/model/shard_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::model {
namespace {

using ::testing::HasSubstr;

class ShardManifestTest : public test::ShardFixture {
 protected:
  void SetUp() override {
    ShardFixture::SetUp();
    manifest_ = split(2);
    text_ = to_json(manifest_);
  }
  /// The message for the manifest with `from` replaced where it stands first.
  [[nodiscard]] std::string refusal(std::string_view from, std::string_view to) const {
    std::string text = text_;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto manifest = parse_shard_manifest(text);
    return manifest ? "accepted" : manifest.error().message();
  }
  /// The message for a manifest that was changed before it was written.
  static std::string refusal_of(const ShardManifest& manifest) {
    const auto read = parse_shard_manifest(to_json(manifest));
    return read ? "accepted" : read.error().message();
  }

  ShardManifest manifest_;
  std::string text_;
};

TEST_F(ShardManifestTest, IsReadBackAsItWasWritten) {
  EXPECT_EQ(read_file(folder_ / kManifestName), text_);
  const auto read = read_shard_manifest(folder_);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, manifest_);
  EXPECT_EQ(to_json(*read), text_);
}

TEST_F(ShardManifestTest, EveryTruncationIsRefused) {
  const std::size_t n_right = text_.find_last_of('}');
  for (std::size_t n = 0; n <= n_right; ++n)
    ASSERT_FALSE(parse_shard_manifest(std::string_view(text_).substr(0, n))) << n;
}

TEST_F(ShardManifestTest, WrongFieldsAreNamed) {
  EXPECT_THAT(refusal("luna-shards", "other"), HasSubstr("format = \"other\": must be"));
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": 2"), HasSubstr("version = 2: this program"));
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": \"1\""), HasSubstr("version = \"1\""));
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": 1.0"), HasSubstr("must be an integer"));
  EXPECT_THAT(refusal("\"n_layers\": 4", "\"n_layers\": 0"), HasSubstr("model.n_layers = 0"));
  EXPECT_THAT(refusal("\"n_layers\": 4", "\"n_layers\": -4"), HasSubstr("model.n_layers = -4"));
  EXPECT_THAT(refusal("\"n_layers\": 4", "\"n_layers\": 18446744073709551615"),
              HasSubstr("model.n_layers = 18446744073709551615: must be an integer in 1..65536"));
  EXPECT_THAT(refusal("\"n_layers\": 4", "\"n_layers\": 5"),
              HasSubstr("end at layer 4, but the model has 5"));
  EXPECT_THAT(refusal("\"n_layers\": 4", "\"n_layers\": 1"), HasSubstr("shards = "));
  EXPECT_THAT(refusal("\"source\"", "\"sauce\""), HasSubstr("source: the field is missing"));
  EXPECT_THAT(refusal(manifest_.source_sha256, "00"), HasSubstr("source.sha256 = \"00\""));
  EXPECT_THAT(refusal("\"type\": \"F32\"", "\"type\": \"F31\""),
              HasSubstr("shards[0].tensors[0].type = \"F31\""));
  EXPECT_THAT(refusal("\"shape\": [100, 32]", "\"shape\": [100, 31]"),
              HasSubstr("shards[0].tensors[0].bytes = 12800: must be 12400"));
  EXPECT_THAT(refusal("\"shape\": [100, 32]", "\"shape\": [4294967296, 4294967296]"),
              HasSubstr("shards[0].tensors[0].shape"));
  EXPECT_THAT(refusal("\"shape\": [100, 32]", "\"shape\": [1, 1, 1, 1, 3200]"),
              HasSubstr("must be a list of 1..4"));
  EXPECT_THAT(refusal("\"shape\": [100, 32]", "\"shape\": []"), HasSubstr("a list of 1..4"));
  EXPECT_THAT(refusal("\"shape\": [100, 32]", "\"shape\": 7"), HasSubstr("a list of 1..4"));
}

TEST_F(ShardManifestTest, NoNameLeadsOutOfTheFolder) {
  for (const char* name : {"../shard_0.gguf",
                           "/etc/passwd",
                           "shard_00.gguf",
                           "shard_1.gguf",
                           "",
                           "a/shard_0.gguf",
                           "shard_0.gguf\\u0000x"}) {
    EXPECT_THAT(refusal("\"shard_0.gguf\"", "\"" + std::string(name) + "\""),
                HasSubstr("must be \"shard_0.gguf\""))
        << name;
  }
}

TEST_F(ShardManifestTest, LayersFollowEachOther) {
  ShardManifest wrong = manifest_;
  wrong.shards[1].layers = {1, 3};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("layers would be in two shards"));
  wrong.shards[1].layers = {3, 1};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("layers would be in no shard"));
  wrong.shards[1].layers = {2, 3};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("shards[1].n_layers = 3: must be an integer in 1..2"));
  wrong.shards[1].layers = {2, 0};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("shards[1].n_layers = 0"));
}

TEST_F(ShardManifestTest, TensorsLieWhereTheyBelongAndOnce) {
  ShardManifest wrong = manifest_;
  wrong.shards[0].tensors.push_back(wrong.shards[1].tensors.back());  // of layer 3
  wrong.shards[0].n_bytes *= 2;
  EXPECT_THAT(refusal_of(wrong), HasSubstr("in one shard, once"));
  wrong.shards[1].tensors.pop_back();
  EXPECT_THAT(refusal_of(wrong), HasSubstr("must be a weight of a shard with layers 0..1"));

  wrong = manifest_;
  wrong.shards[0].tensors.push_back(wrong.shards[0].tensors[0]);
  wrong.shards[0].n_bytes *= 2;
  EXPECT_THAT(refusal_of(wrong), HasSubstr("stands in shards[0] already"));

  wrong = manifest_;
  wrong.shards[1].tensors[0].sha256[0] ^= 1;  // the tied head's copy
  EXPECT_THAT(refusal_of(wrong), HasSubstr("the same tensor as in shards[0]"));

  wrong = manifest_;
  for (const char* name : {"blk.4.attn_q.weight",
                           "blk.01.attn_q.weight",
                           "blk.-1.x",
                           "blk.0",
                           "blk.99999999999.x",
                           "something.else"}) {
    wrong.shards[0].tensors[1].name = name;
    EXPECT_THAT(refusal_of(wrong), HasSubstr("must be a weight of a model of 4 layers")) << name;
  }

  wrong = manifest_;
  wrong.shards[0].tensors.erase(wrong.shards[0].tensors.begin());
  EXPECT_THAT(refusal_of(wrong), HasSubstr("token_embd.weight is missing"));
  wrong = manifest_;
  wrong.shards[1].tensors.erase(wrong.shards[1].tensors.begin());
  EXPECT_THAT(refusal_of(wrong), HasSubstr("shards[1].tensors: token_embd.weight is missing"));
}

TEST_F(ShardManifestTest, TensorsFitTheirFile) {
  ShardManifest wrong = manifest_;
  wrong.shards[0].n_bytes = 100;
  EXPECT_THAT(refusal_of(wrong), HasSubstr("within the shard's bytes: 100 are left"));
}

TEST_F(ShardManifestTest, DepthAndSizeAreBounded) {
  EXPECT_FALSE(parse_shard_manifest(std::string(100'000, '[')));
  const auto large = parse_shard_manifest(std::string((16 << 20) + 1, ' '));
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message(), HasSubstr("allowed are 16777216"));
}

TEST_F(ShardManifestTest, IsNoLinkAndNoPipe) {
  const auto path = folder_ / kManifestName;
  std::filesystem::rename(path, root_ / "elsewhere.json");
  EXPECT_THAT(read_shard_manifest(folder_).error().message(),
              HasSubstr("manifest.json: not there"));
  std::filesystem::create_symlink(root_ / "elsewhere.json", path);
  EXPECT_THAT(read_shard_manifest(folder_).error().message(), HasSubstr("a symbolic link"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_THAT(read_shard_manifest(folder_).error().message(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace luna::model
