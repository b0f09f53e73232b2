// Splitting leaves whole folders or none; a folder opens what is needed; every fault is named.
#include "core/model/shard_folder.hpp"

#include "core/model/program_builder.hpp"
#include "core/model/shard_check.hpp"
#include "core/model/weight_names.hpp"
#include "unit/model/shard_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

namespace luna::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Shards : public test::ShardFixture {
 protected:
  [[nodiscard]] SplitOptions options(std::uint32_t n_shards) const {
    SplitOptions options;
    options.source = source_;
    options.folder = folder_;
    options.n_shards = n_shards;
    return options;
  }
  [[nodiscard]] ShardCheck check(std::optional<std::size_t> shard_idx = {}) const {
    ShardCheckOptions options;
    options.folder = folder_;
    options.shard_idx = shard_idx;
    auto check = check_shards(options);
    EXPECT_TRUE(check) << check.error().message();
    return check ? std::move(*check) : ShardCheck{};
  }
  [[nodiscard]] std::vector<std::string> messages() const {
    std::vector<std::string> messages;
    for (const ShardFault& fault : check().faults)
      messages.push_back(std::string(fault_name(fault.kind)) + ": " + fault.message);
    return messages;
  }
  [[nodiscard]] std::filesystem::path shard(std::size_t i) const {
    return folder_ / shard_file_name(i);
  }
};

TEST_F(Shards, HoldEveryTensorOfTheFileByteForByte) {
  for (const bool tied : {true, false}) {
    write_model({.n_layers = 4, .vocab_size = 100, .tied_head = tied});
    const auto whole = GgufFile::open(source_);
    ASSERT_TRUE(whole);
    for (std::uint32_t n_shards = 1; n_shards <= 4; ++n_shards) {
      split(n_shards);
      auto folder = ShardFolder::open(folder_);
      ASSERT_TRUE(folder) << folder.error().message();
      EXPECT_EQ(folder->tensors().size(), whole->tensors().size());
      EXPECT_EQ(folder->metadata().size(), whole->metadata().size());
      std::vector<std::string> names;
      for (const TensorInfo& tensor : whole->tensors())
        names.push_back(tensor.name);
      ASSERT_TRUE(folder->open_tensors(names));
      for (const TensorInfo& tensor : whole->tensors()) {
        const TensorInfo* found = folder->find_tensor(tensor.name);
        ASSERT_NE(found, nullptr) << tensor.name;
        EXPECT_EQ(found->dims, tensor.dims);
        EXPECT_TRUE(std::ranges::equal(found->bytes, tensor.bytes)) << tensor.name;
      }
      EXPECT_THAT(messages(), IsEmpty());
    }
  }
}

TEST_F(Shards, AreBalancedByBytesOrCutWhereSomebodySays) {
  const ShardManifest balanced = split(2);
  // The embedding and the tied head's copy weigh the same: the layers are shared out evenly.
  EXPECT_EQ(balanced.shards[0].layers, (LayerRange{0, 2}));
  SplitOptions by_hand = options(2);
  by_hand.force = true;
  by_hand.layers = std::vector<LayerRange>{{0, 1}, {1, 3}};
  const auto manifest = split_model(by_hand);
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_EQ(manifest->shards[1].layers, (LayerRange{1, 3}));
  by_hand.layers = std::vector<LayerRange>{{0, 1}, {2, 2}};
  EXPECT_THAT(split_model(by_hand).error().message(), HasSubstr("must begin at layer 1"));
  for (const std::uint32_t n_shards : {0U, 5U}) {
    SplitOptions wrong = options(n_shards);
    wrong.force = true;
    EXPECT_THAT(split_model(wrong).error().message(), HasSubstr("must be in 1..4"));
  }
  EXPECT_THAT(messages(), IsEmpty()) << "a refusal leaves what is there";
}

TEST_F(Shards, AreSplitAgainIntoTheSameBytes) {
  const ShardManifest direct = split(3);
  SplitOptions again = options(3);
  again.source = folder_;
  again.folder = root_ / "again";
  const auto manifest = split_model(again);
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_EQ(*manifest, direct);
  again.source = shard(1);
  again.folder = root_ / "part";
  EXPECT_THAT(split_model(again).error().message(), HasSubstr("a shard itself"));
  EXPECT_FALSE(std::filesystem::exists(root_ / "part"));
}

TEST_F(Shards, ReplaceOthersOnlyWhenAsked) {
  split(4);
  write_text(folder_ / "notes.txt", "mine");
  EXPECT_THAT(split_model(options(2)).error().message(), HasSubstr("--force replaces"));
  EXPECT_EQ(names_in(folder_).size(), 6U);
  write_text(folder_ / "shard_9.gguf.partial", "left by a kill");
  split(2);
  EXPECT_THAT(names_in(folder_),
              ElementsAre("manifest.json", "notes.txt", "shard_0.gguf", "shard_1.gguf"));
  EXPECT_THAT(messages(), IsEmpty());
}

TEST_F(Shards, AStopAtAnyPointLeavesNothing) {
  const SplitOptions options = this->options(3);
  int n_calls = 0;
  SplitOptions counted = options;
  counted.n_threads = 1;
  counted.progress = [&](double) { return ++n_calls > 0; };
  ASSERT_TRUE(split_model(counted));
  std::filesystem::remove_all(folder_);
  ASSERT_GT(n_calls, 30);
  for (int stop_at = 1; stop_at <= n_calls; ++stop_at) {
    SplitOptions stopped = options;
    int n = 0;
    stopped.n_threads = 1 + static_cast<std::uint32_t>(stop_at) % 3;
    stopped.folder = root_ / "made" / "shards";
    stopped.progress = [&](double) { return ++n < stop_at; };
    const auto manifest = split_model(stopped);
    ASSERT_FALSE(manifest) << stop_at;
    EXPECT_EQ(manifest.error().code(), Code::cancelled);
    EXPECT_FALSE(std::filesystem::exists(root_ / "made")) << stop_at;
  }
}

TEST_F(Shards, AStopLeavesWhatWasThere) {
  split(2);
  const auto before = names_in(folder_);
  SplitOptions stopped = options(3);
  stopped.force = true;
  int n = 0;
  stopped.progress = [&](double) { return ++n < 20; };
  EXPECT_FALSE(split_model(stopped));
  EXPECT_EQ(names_in(folder_), before);
  EXPECT_THAT(messages(), IsEmpty());
}

TEST_F(Shards, AWriteThatFailsLeavesNothing) {
  // As a full disk would: no file grows beyond 30 KiB, and the signal for it is ignored.
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = before;
  limit.rlim_cur = 30 << 10;
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto manifest = split_model(options(2));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code(), Code::io);
  EXPECT_THAT(manifest.error().message(), HasSubstr("cannot be written: File too large"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(Shards, TwoSplitsDoNotMeetInOneFolder) {
  std::filesystem::create_directory(folder_);
  SplitOptions inner = options(2);
  SplitOptions outer = options(2);
  std::string refusal;
  outer.progress = [&](double share) {
    if (share > 0.9 && refusal.empty()) refusal = split_model(inner).error().message();
    return true;
  };
  EXPECT_TRUE(split_model(outer));
  EXPECT_THAT(refusal, HasSubstr("not empty"));
  EXPECT_THAT(messages(), IsEmpty());
}

TEST_F(Shards, AreRefusedWhereTheDiskHasNoRoom) {
  // A file with holes: 8 TiB that take no room, until they are copied.
  test::GgufParts parts = test::tiny_llama({.n_layers = 1, .vocab_size = 100});
  for (test::GgufKey& key : parts.keys)
    if (key.key == "llama.vocab_size") key = test::key_u32("llama.vocab_size", 1U << 24U);
  parts.set(test::key_u32("llama.embedding_length", 1U << 17U));
  parts.drop("llama.rope.dimension_count");
  const std::uint64_t hidden = 1U << 17U;
  const std::vector<std::vector<std::uint64_t>> dims = {{hidden, 1U << 24U},
                                                        {hidden},
                                                        {hidden},
                                                        {hidden, hidden},
                                                        {hidden, hidden / 2},
                                                        {hidden, hidden / 2},
                                                        {hidden, hidden},
                                                        {hidden},
                                                        {hidden, 64},
                                                        {hidden, 64},
                                                        {64, hidden}};
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    parts.tensors[i].dims = dims[i];
    parts.tensors[i].offset = offset;
    std::uint64_t n = 4;
    for (const std::uint64_t dim : dims[i])
      n *= dim;
    offset += n;
  }
  parts.data.clear();
  const auto header = parts.write();
  write_file(source_, header);
  std::error_code error;
  std::filesystem::resize_file(source_, header.size() + offset, error);
  if (error) GTEST_SKIP() << "this file system has no files of " << offset << " bytes";
  const auto manifest = split_model(options(1));
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code(), Code::exhausted) << manifest.error().message();
  EXPECT_THAT(manifest.error().message(), HasSubstr("the disk has"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(Shards, OnlyThoseThatAreNeededAreOpened) {
  split(4);
  auto folder = ShardFolder::open(folder_);
  ASSERT_TRUE(folder) << folder.error().message();
  EXPECT_TRUE(folder->is_open(0)) << "for the keys";
  EXPECT_FALSE(folder->is_open(2));
  EXPECT_TRUE(folder->find_tensor("blk.2.attn_q.weight")->bytes.empty());
  const std::vector<std::string> names = {"blk.2.attn_q.weight", "blk.2.ffn_up.weight"};
  ASSERT_TRUE(folder->open_tensors(names));
  EXPECT_TRUE(folder->is_open(2));
  EXPECT_FALSE(folder->find_tensor("blk.2.attn_q.weight")->bytes.empty());
  EXPECT_TRUE(folder->find_tensor("blk.2.attn_k.weight")->bytes.empty()) << "not asked for";
  EXPECT_FALSE(folder->is_open(1) || folder->is_open(3));
}

TEST_F(Shards, TheLastAloneServesItsLayersAndTheTiedHead) {
  split(3);
  std::filesystem::remove(shard(0));
  std::filesystem::remove(shard(1));
  auto folder = ShardFolder::open(folder_);
  ASSERT_TRUE(folder) << folder.error().message();
  const auto config = read_model_config(*folder);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_TRUE(check_weights(*config, *folder)) << "the table is whole, only bytes are elsewhere";
  const ShardSpec last = make_shards(std::vector<LayerRange>{{0, 3}, {3, 1}}).back();
  const auto names = shard_weight_names(*config, last);
  const auto opened = folder->open_tensors(names);
  ASSERT_TRUE(opened) << opened.error().message();
  for (const std::string& name : names)
    EXPECT_FALSE(folder->find_tensor(name)->bytes.empty()) << name;
  const std::vector<std::string> elsewhere = {"blk.0.attn_q.weight"};
  EXPECT_THAT(folder->open_tensors(elsewhere).error().message(),
              HasSubstr("shard 0 of 3: shard_0.gguf: not there"));
}

TEST_F(Shards, DamageIsFoundBeforeAWeightIsUsed) {
  split(2);
  flip_bit(shard(1), offset_of(shard(1), "blk.3.ffn_up.weight") + 100);
  auto folder = ShardFolder::open(folder_);
  ASSERT_TRUE(folder);
  const std::vector<std::string> sound = {"blk.3.attn_q.weight"};
  EXPECT_TRUE(folder->open_tensors(sound));
  const std::vector<std::string> damaged = {"blk.3.ffn_up.weight"};
  const auto opened = folder->open_tensors(damaged);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::corrupt);
  EXPECT_THAT(opened.error().message(),
              AllOf(HasSubstr("shard 1 of 2: shard_1.gguf: tensor blk.3.ffn_up.weight"),
                    HasSubstr("the manifest says"),
                    HasSubstr("luna verify")));
}

TEST_F(Shards, EveryFlippedBitIsFoundAndNamed) {
  split(2);
  const auto file = GgufFile::open(shard(0));
  ASSERT_TRUE(file);
  for (const TensorInfo& tensor : file->tensors()) {
    flip_bit(shard(0), tensor.offset + tensor.n_bytes - 1);
    EXPECT_THAT(messages(),
                ElementsAre(AllOf(HasSubstr("damaged: shard_0.gguf: tensor " + tensor.name + ":"),
                                  HasSubstr("its SHA-256 is"),
                                  HasSubstr("the manifest says"))));
    flip_bit(shard(0), tensor.offset + tensor.n_bytes - 1);
  }
  // Header and padding: whatever the reader makes of it, it is found.
  const std::size_t n_header = file->tensors().front().offset;
  for (std::size_t offset = 0; offset < n_header; offset += n_header / 97 + 1) {
    flip_bit(shard(0), offset);
    EXPECT_FALSE(messages().empty()) << offset;
    flip_bit(shard(0), offset);
  }
  EXPECT_THAT(messages(), IsEmpty());
}

TEST_F(Shards, WhatIsMissingIsNamed) {
  split(3);
  std::filesystem::remove(shard(1));
  std::filesystem::remove(shard(2));
  EXPECT_THAT(messages(),
              ElementsAre(HasSubstr("missing: shard_1.gguf: not there: layers"),
                          HasSubstr("missing: shard_2.gguf: not there: layers")));
  EXPECT_THAT(check(0).faults, IsEmpty());
  EXPECT_EQ(check(1).faults.size(), 1U);
}

TEST_F(Shards, WhatIsCutOrLongerIsNamed) {
  split(2);
  const std::string bytes = read_file(shard(1));
  write_text(shard(1), bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(messages(),
              ElementsAre(AllOf(HasSubstr("damaged: shard_1.gguf: "),
                                HasSubstr("the manifest says"),
                                HasSubstr("cut short"))));
  write_text(shard(1), "");
  EXPECT_THAT(messages(), ElementsAre(HasSubstr("damaged: shard_1.gguf: 0 bytes")));
  write_text(shard(1), bytes + "x");
  EXPECT_THAT(messages(), ElementsAre(HasSubstr("damaged: shard_1.gguf: ")));
}

TEST_F(Shards, WhatIsDoubledIsNamed) {
  split(2);
  std::filesystem::copy_file(shard(0), shard(1), std::filesystem::copy_options::overwrite_existing);
  // The copy has another size, and says of itself that it is another shard.
  EXPECT_THAT(messages(),
              ::testing::Contains(
                  AllOf(HasSubstr("doubled: shard_1.gguf: it says that it is shard 0 of 2"),
                        HasSubstr("layers 0..1 are there twice, layers 2..3 are missing"))));
}

TEST_F(Shards, WhatIsOfAnotherModelOrNoShardIsNamed) {
  split(2);
  const std::string own = read_file(shard(1));
  write_model({.n_layers = 4, .vocab_size = 100}, 1);  // same shapes, other weights
  const std::filesystem::path first = folder_;
  folder_ = root_ / "other";
  split(2);
  const std::string other = read_file(shard(1));
  folder_ = first;
  ASSERT_EQ(own.size(), other.size());
  write_text(shard(1), other);
  EXPECT_THAT(messages(),
              ElementsAre(AllOf(HasSubstr("foreign: shard_1.gguf: of another model"),
                                HasSubstr("the manifest's has"))));
  std::filesystem::copy_file(source_, shard(1), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(messages(), ::testing::Contains(HasSubstr("foreign: shard_1.gguf: not a shard")));
}

TEST_F(Shards, WhatTheManifestDoesNotKnowIsNamed) {
  split(2);
  write_text(folder_ / "shard_2.gguf", "x");
  write_text(folder_ / "shard_1.gguf.partial", "x");
  write_text(folder_ / "notes.txt", "not ours");
  EXPECT_THAT(messages(),
              ElementsAre(HasSubstr("surplus: shard_1.gguf.partial: not in the manifest"),
                          HasSubstr("surplus: shard_2.gguf: not in the manifest")));
}

TEST_F(Shards, LinksAreRefused) {
  split(2);
  std::filesystem::rename(shard(1), root_ / "elsewhere.gguf");
  std::filesystem::create_symlink(root_ / "elsewhere.gguf", shard(1));
  EXPECT_THAT(
      messages(),
      ElementsAre(AllOf(HasSubstr("unreadable: shard_1.gguf"), HasSubstr("a symbolic link"))));
  auto folder = ShardFolder::open(folder_);
  ASSERT_TRUE(folder);
  const std::vector<std::string> names = {"blk.3.attn_q.weight"};
  EXPECT_THAT(folder->open_tensors(names).error().message(), HasSubstr("a symbolic link"));
}

TEST_F(Shards, AManifestThatLiesIsFound) {
  ShardManifest manifest = split(2);
  const auto write = [&] { write_text(folder_ / kManifestName, to_json(manifest)); };
  manifest.shards[0].tensors[2].sha256 = std::string(64, '0');
  write();
  EXPECT_THAT(messages(), ElementsAre(HasSubstr("damaged: shard_0.gguf: tensor ")));
  manifest = split(2);
  manifest.shards[1].sha256 = std::string(64, '0');
  write();
  EXPECT_THAT(messages(), ElementsAre(HasSubstr("its tensors are right, but its SHA-256 is")));
  manifest = split(2);
  manifest.shards[1].tensors.pop_back();
  write();
  EXPECT_THAT(messages(), ::testing::Contains(HasSubstr("is not in the manifest")));
  manifest = split(2);
  manifest.shards[1].tensors.back().name = "blk.3.other.weight";
  write();
  EXPECT_THAT(messages(),
              ::testing::IsSupersetOf({HasSubstr("tensor blk.3.other.weight is missing"),
                                       HasSubstr("tensor blk.3.ffn_down.weight is not in")}));
}

TEST_F(Shards, AStopEndsTheCheck) {
  split(2);
  ShardCheckOptions options;
  options.folder = folder_;
  options.progress = [](double) { return false; };
  const auto check = check_shards(options);
  ASSERT_FALSE(check);
  EXPECT_EQ(check.error().code(), Code::cancelled);
  options.shard_idx = 2;
  EXPECT_THAT(check_shards(options).error().message(), HasSubstr("--shard 2: must be in 0..1"));
}

}  // namespace
}  // namespace luna::model
