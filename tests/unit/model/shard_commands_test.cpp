// `luna split`, `luna verify` and `luna inspect FOLDER`: what they print and how they end.
#include "core/app/command_inspect.hpp"
#include "core/app/command_split.hpp"
#include "unit/model/shard_fixture.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace luna::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Answer {
  int status = 0;
  std::string out;
  std::string err;
};

template <typename Run, typename Command>
Answer answer_of(const Run& run, const Command& command) {
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Answer answer;
  answer.status = run(command, CommandStreams{in, out, err});
  answer.out = out.str();
  answer.err = err.str();
  return answer;
}

class ShardCommands : public test::ShardFixture {
 protected:
  [[nodiscard]] SplitCommand command() const {
    SplitCommand command;
    command.model = source_;
    command.out = folder_;
    return command;
  }
  [[nodiscard]] Answer verify(bool json = false) const {
    VerifyCommand command;
    command.folder = folder_;
    command.json = json;
    return answer_of(run_verify, command);
  }
};

TEST_F(ShardCommands, SplitPrintsATableOrOneObject) {
  SplitCommand command = this->command();
  command.n_shards = 2;
  const Answer table = answer_of(run_split, command);
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("2 shards of \"tiny\" (llama, 4 layers)"),
                    HasSubstr("split from tiny.gguf"),
                    HasSubstr("shard_1.gguf    2..3"),
                    HasSubstr("here")));
  command.force = true;
  command.json = true;
  const Answer object = answer_of(run_split, command);
  EXPECT_EQ(object.status, 0) << object.err;
  const auto json = boost::json::parse(object.out);
  EXPECT_EQ(json.at("n_shards").as_int64(), 2);
  EXPECT_EQ(json.at("shards").as_array().size(), 2U);
  EXPECT_EQ(json.at("shards").at(1).at("first_layer").as_int64(), 2);
}

TEST_F(ShardCommands, SplitTakesRangesAsTheTomlWritesThem) {
  SplitCommand command = this->command();
  command.layers = "0..0,1..3";
  EXPECT_EQ(answer_of(run_split, command).status, 0);
  EXPECT_EQ(verify().status, 0);
  command.force = true;
  for (const char* wrong : {"0..", "0..0,", "0-3", "3..0", "a..b", "0..3x", "0..4294967295", ","}) {
    command.layers = wrong;
    const Answer answer = answer_of(run_split, command);
    EXPECT_EQ(answer.status, 1) << wrong;
    EXPECT_THAT(answer.err, HasSubstr("must be ranges such as 0..9,10..29"));
  }
  command.layers = "0..0,1..3";
  command.n_shards = 3;
  EXPECT_THAT(answer_of(run_split, command).err, HasSubstr("--layers has 2 ranges"));
  command.layers.clear();
  command.n_shards.reset();
  EXPECT_THAT(answer_of(run_split, command).err, HasSubstr("either --num-shards or --layers"));
}

TEST_F(ShardCommands, SplitStopsWhenItIsTold) {
  SplitCommand command = this->command();
  command.n_shards = 2;
  command.is_stopped = [] { return true; };
  const Answer answer = answer_of(run_split, command);
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.err, HasSubstr("stopped before the end"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(ShardCommands, VerifyEndsWith0OnlyWhenAllIsRight) {
  split(2);
  const Answer right = verify();
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_THAT(right.out, HasSubstr("all 2 shards are right"));
  const auto path = folder_ / "shard_1.gguf";
  flip_bit(path, offset_of(path, "blk.2.attn_k.weight"));
  const Answer wrong = verify();
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("damaged: shard_1.gguf: tensor blk.2.attn_k.weight"));
  EXPECT_EQ(wrong.out, "");
  VerifyCommand first;
  first.folder = folder_;
  first.shard = 0;
  EXPECT_THAT(answer_of(run_verify, first).out, HasSubstr("shard 0 is right"));
}

TEST_F(ShardCommands, VerifyWritesOneJsonObjectWhateverIsWrong) {
  split(2);
  EXPECT_TRUE(boost::json::parse(verify(true).out).at("ok").as_bool());
  const auto path = folder_ / "shard_1.gguf";
  flip_bit(path, offset_of(path, "blk.2.attn_k.weight"));
  const Answer damaged = verify(true);
  EXPECT_EQ(damaged.status, 1);
  const auto fault = boost::json::parse(damaged.out).at("faults").at(0);
  EXPECT_EQ(fault.at("kind").as_string(), "damaged");
  EXPECT_EQ(fault.at("tensor").as_string(), "blk.2.attn_k.weight");
  EXPECT_EQ(fault.at("shard").as_int64(), 1);
  EXPECT_NE(fault.at("expected").as_string(), fault.at("found").as_string());
  std::filesystem::remove(folder_ / "manifest.json");
  const Answer none = verify(true);
  EXPECT_EQ(none.status, 1);
  const auto object = boost::json::parse(none.out);
  EXPECT_FALSE(object.at("ok").as_bool());
  EXPECT_EQ(object.at("faults").at(0).at("kind").as_string(), "manifest");
}

TEST_F(ShardCommands, InspectShowsTheTableAndTheModel) {
  split(3);
  const Answer whole = answer_of(run_inspect, InspectOptions{folder_, false});
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out,
              AllOf(HasSubstr("3 shards of \"tiny\""),
                    HasSubstr("3 shards of GGUF, 21 keys, 38 tensors"),
                    HasSubstr("4 layers, hidden size 32")));
  std::filesystem::remove(folder_ / "shard_1.gguf");
  const Answer part = answer_of(run_inspect, InspectOptions{folder_, true});
  EXPECT_EQ(part.status, 0) << part.err;
  const auto json = boost::json::parse(part.out);
  EXPECT_EQ(json.at("shards").at("shards").at(1).at("state").as_string(), "missing");
  EXPECT_EQ(json.at("tensors").as_array().size(), 38U);
  for (const int i : {0, 2})
    std::filesystem::remove(folder_ / ("shard_" + std::to_string(i) + ".gguf"));
  const Answer none = answer_of(run_inspect, InspectOptions{folder_, false});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.out, HasSubstr("missing"));
  EXPECT_THAT(none.err, HasSubstr("shard_2.gguf: not there"));
}

TEST_F(ShardCommands, InspectShowsOneShardAsWhatItIs) {
  split(3);
  const Answer answer = answer_of(run_inspect, InspectOptions{folder_ / "shard_1.gguf", false});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("shard 1 of 3, layers 1..2"));
}

}  // namespace
}  // namespace luna::app
