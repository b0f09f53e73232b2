// Folders of Hugging Face: what a right one says under our names, and every wrong one refused with
// file and field named.
#include "core/model/hf_folder.hpp"

#include "core/model/hf_names.hpp"
#include "core/model/model_config.hpp"
#include "core/model/model_identity.hpp"
#include "core/model/weight_names.hpp"
#include "support/test_seed.hpp"
#include "unit/model/gguf_writer.hpp"

#include <luna/abi/quant.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace luna::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
  "rope_theta": 500000.0, "vocab_size": 32, "tie_word_embeddings": true, "eos_token_id": 2})";

/// kConfig with one member replaced or added; `value` is JSON.
std::string config_with(const std::string& name, const std::string& value) {
  std::string text = kConfig;
  const std::size_t at = text.find('"' + name + '"');
  if (at == std::string::npos) return "{\"" + name + "\": " + value + "," + text.substr(1);
  std::size_t end = text.find_first_of(text[text.find(':', at) + 2] == '[' ? "]" : ",}", at);
  if (text[end] == ']') ++end;
  return text.replace(at, end - at, '"' + name + "\": " + value);
}

std::string message_of(const std::string& config) {
  const auto read = parse_hf_config(config);
  return read ? "let pass" : read.error().message();
}

TEST(HfConfig, SaysTheHyperParametersUnderGgufNames) {
  const auto config = parse_hf_config(kConfig);
  ASSERT_TRUE(config) << config.error().message();
  const auto number = [&](std::string_view key) {
    for (const MetadataEntry& entry : config->metadata)
      if (entry.key == key) return std::get<std::uint64_t>(entry.value);
    return std::uint64_t{0};
  };
  EXPECT_EQ(number("llama.block_count"), 1U);
  EXPECT_EQ(number("llama.embedding_length"), 64U);
  EXPECT_EQ(number("llama.attention.head_count_kv"), 2U);
  EXPECT_EQ(number("llama.attention.key_length"), 16U);
  EXPECT_EQ(config->vocab_size, 32U);
  EXPECT_TRUE(config->tied_head);
  EXPECT_THAT(config->end_ids, ElementsAre(2U));
  EXPECT_TRUE(config->rope_factors.empty());
}

TEST(HfConfig, RefusesEachWrongFieldWithItsValueAndWhatIsAllowed) {
  struct Case {
    const char* field;
    const char* value;
    const char* named;
  };
  for (const Case& tested : std::initializer_list<Case>{
           {"num_hidden_layers", "0", "num_hidden_layers = 0: must be a whole number in 1.."},
           {"num_hidden_layers", "1e3", "num_hidden_layers"},
           {"num_hidden_layers", "99999999999999999999", "num_hidden_layers"},
           {"hidden_size", "null", "hidden_size: the field is missing"},
           {"hidden_size", "66", "multiple of num_attention_heads"},
           {"hidden_size", "4294967296", "hidden_size = 4294967296"},
           {"head_dim", "15", "head_dim = 15"},
           {"num_key_value_heads", "3", "must divide num_attention_heads = 4"},
           {"rms_norm_eps", "-1", "rms_norm_eps = -1"},
           {"rms_norm_eps", "\"1\"", "rms_norm_eps"},
           {"model_type", "\"gpt2\"", "Luna knows llama, mistral"},
           {"model_type", "7", "model_type = 7: must be a string"},
           {"architectures", "[]", "architectures"},
           {"architectures", "[\"LlamaModel\"]", "LlamaForCausalLM"},
           {"hidden_act", "\"gelu\"", "hidden_act"},
           {"sliding_window", "64", "sliding_window = 64"},
           {"partial_rotary_factor", "0.5", "partial_rotary_factor"},
           {"rope_theta", "1", "rope_theta"},
           {"rope_scaling", "[]", "rope_scaling = []: must be an object"},
           {"rope_scaling", R"({"type": "dynamic"})", "rope_scaling.type"},
           {"rope_scaling", R"({"rope_type": "linear"})", "rope_scaling.factor"},
           {"rope_scaling", R"({"rope_type": "yarn", "factor": 2, "mscale": 1})", "mscale"},
           {"rope_scaling",
            R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 64})",
            "rope_scaling.high_freq_factor"},
           {"tie_word_embeddings", "1", "tie_word_embeddings = 1"},
           {"eos_token_id", "-1", "eos_token_id"},
           {"eos_token_id", "[2, \"a\"]", "eos_token_id"},
           {"quantization_config", "3", "quantization_config"},
       }) {
    EXPECT_THAT(message_of(config_with(tested.field, tested.value)), HasSubstr(tested.named))
        << tested.field << " = " << tested.value;
  }
  for (const char* text : {"", "{", "[]", "nothing", "{\"model_type\": \"\xff\"}"})
    EXPECT_FALSE(parse_hf_config(text)) << text;
  EXPECT_FALSE(parse_hf_config(std::string(100000, '[')));
}

TEST(HfConfig, AWindowAsLongAsTheContextIsNone) {
  EXPECT_TRUE(parse_hf_config(config_with("sliding_window", "128")));
  EXPECT_TRUE(parse_hf_config(config_with("sliding_window", "null")));
}

TEST(HfConfig, FlattensWhatQuantizationSays) {
  const auto config = parse_hf_config(config_with("quantization_config", R"({
      "quant_method": "gptq", "bits": 4, "sym": true, "damp": 0.5, "none": null, "list": [1],
      "config_groups": {"group_0": {"weights": {"num_bits": 8}}}})"));
  ASSERT_TRUE(config) << config.error().message();
  std::vector<std::string> keys;
  for (const MetadataEntry& entry : config->metadata)
    if (entry.key.starts_with("quantization_config.")) keys.push_back(entry.key);
  EXPECT_THAT(keys,
              UnorderedElementsAre("quantization_config.quant_method",
                                   "quantization_config.bits",
                                   "quantization_config.sym",
                                   "quantization_config.damp",
                                   "quantization_config.config_groups.group_0.weights.num_bits"));
}

TEST(HfConfig, Llama3KeepsFastPairsAndStretchesSlowOnes) {
  const auto config = parse_hf_config(config_with("rope_scaling", R"({"rope_type": "llama3",
      "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 64})"));
  ASSERT_TRUE(config) << config.error().message();
  ASSERT_EQ(config->rope_factors.size(), 8U);
  EXPECT_EQ(config->rope_factors.front(), 1.0F);
  EXPECT_EQ(config->rope_factors.back(), 8.0F);
  EXPECT_TRUE(std::ranges::is_sorted(config->rope_factors));
}

TEST(HfConfig, GenerationNamesEndsByNumberListOrNotAtAll) {
  EXPECT_THAT(parse_generation_end_ids(R"({"eos_token_id": 7})").value(), ElementsAre(7U));
  EXPECT_THAT(parse_generation_end_ids(R"({"eos_token_id": [7, 9]})").value(), ElementsAre(7U, 9U));
  EXPECT_TRUE(parse_generation_end_ids(R"({"top_p": 0.9})").value().empty());
  for (const char* text : {R"({"eos_token_id": 4294967296})", R"({"eos_token_id": 1.5})", "[]", ""})
    EXPECT_FALSE(parse_generation_end_ids(text)) << text;
}

TEST(HfNames, GoBothWaysForEveryModuleAndPart) {
  const Architecture& llama = *find_architecture("llama");
  for (const auto& [hf, ours] : std::initializer_list<std::pair<const char*, const char*>>{
           {"model.embed_tokens.weight", "token_embd.weight"},
           {"model.norm.weight", "output_norm.weight"},
           {"lm_head.qweight", "output.qweight"},
           {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
           {"model.layers.31.self_attn.q_proj.qzeros", "blk.31.attn_q.qzeros"},
           {"model.layers.7.mlp.down_proj.weight_scale", "blk.7.ffn_down.weight_scale"}}) {
    EXPECT_EQ(name_from_hf(llama, hf), ours);
    EXPECT_EQ(name_to_hf(llama, ours), hf);
  }
  const Architecture& mixtral = *find_architecture("mixtral");
  EXPECT_EQ(name_from_hf(mixtral, "model.layers.2.block_sparse_moe.experts.11.w2.weight"),
            "blk.2.ffn_down_exps.11.weight");
  EXPECT_EQ(name_to_hf(mixtral, "blk.2.ffn_down_exps.11.weight"),
            "model.layers.2.block_sparse_moe.experts.11.w2.weight");
  const Architecture& gemma = *find_architecture("gemma3");
  EXPECT_EQ(name_from_hf(gemma, "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.post_attention_norm.weight");
  for (const char* no_expert : {"model.layers.2.block_sparse_moe.experts.01.w2.weight",
                                "model.layers.2.block_sparse_moe.experts..w2.weight"})
    EXPECT_EQ(name_from_hf(mixtral, no_expert), no_expert);
  for (const char* unknown : {"model.layers.01.mlp.up_proj.weight",
                              "model.layers.-1.mlp.up_proj.weight",
                              "model.layers..mlp.up_proj.weight",
                              "model.layers.1",
                              "model.layers.",
                              "weight",
                              "",
                              "."}) {
    EXPECT_EQ(name_from_hf(llama, unknown), unknown);
    EXPECT_EQ(name_to_hf(llama, unknown), unknown);
  }
}

TEST(HfIndex, NamesFilesWithinTheFolderOnly) {
  const auto map =
      parse_hf_index(R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})");
  ASSERT_TRUE(map) << map.error().message();
  EXPECT_EQ(map->at("b"), "y.safetensors");
  for (const char* file : {"\"../x.safetensors\"",
                           "\"/x.safetensors\"",
                           "\"a/x.safetensors\"",
                           "\".safetensors\"",
                           "\"x.bin\"",
                           "\"\"",
                           "\"x.safetensors\\u0000.safetensors\"",
                           "7"}) {
    const auto read = parse_hf_index(std::string(R"({"weight_map": {"a": )") + file + "}}");
    ASSERT_FALSE(read) << file;
    EXPECT_THAT(read.error().message(), HasSubstr("weight_map.a"));
  }
  for (const char* text : {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})"})
    EXPECT_FALSE(parse_hf_index(text)) << text;
}

/// A whole folder of zeros in a place of its own.
class HfFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / (std::string("hf.") + test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    write("config.json", kConfig);
    const std::string layer = "model.layers.0.";
    add("model.embed_tokens.weight", {32, 64});
    add("model.norm.weight", {64});
    add(layer + "input_layernorm.weight", {64});
    add(layer + "post_attention_layernorm.weight", {64});
    add(layer + "self_attn.q_proj.weight", {64, 64});
    add(layer + "self_attn.k_proj.weight", {32, 64});
    add(layer + "self_attn.v_proj.weight", {32, 64});
    add(layer + "self_attn.o_proj.weight", {64, 64});
    add(layer + "mlp.gate_proj.weight", {96, 64});
    add(layer + "mlp.up_proj.weight", {96, 64});
    add(layer + "mlp.down_proj.weight", {64, 96});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void add(const std::string& name, const std::vector<std::uint64_t>& shape) {
    shapes_.emplace_back(name, shape);
  }
  void drop(const std::string& name) {
    std::erase_if(shapes_, [&](const auto& tensor) { return tensor.first == name; });
  }
  /// Tensors [first, end) of the list as a file.
  void write_tensors(const std::string& file, std::size_t first, std::size_t end) const {
    std::string header = "{";
    std::uint64_t at = 0;
    for (std::size_t i = first; i < end; ++i) {
      const auto& [name, shape] = shapes_[i];
      std::uint64_t n_bytes = 2;
      std::string dims;
      for (const std::uint64_t dim : shape) {
        n_bytes *= dim;
        dims += (dims.empty() ? "" : ",") + std::to_string(dim);
      }
      header += (i == first ? "\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" + dims +
                R"(],"data_offsets":[)" + std::to_string(at) + "," + std::to_string(at + n_bytes) +
                "]}";
      at += n_bytes;
    }
    header += "}";
    test::Bytes bytes;
    bytes.put<std::uint64_t>(header.size()).raw(header);
    bytes.bytes_.resize(bytes.bytes_.size() + at);
    write(file, {reinterpret_cast<const char*>(bytes.bytes_.data()), bytes.bytes_.size()});
  }
  void write_one_file() const { write_tensors("model.safetensors", 0, shapes_.size()); }
  void write_two_files() const {
    write_tensors("a.safetensors", 0, 5);
    write_tensors("b.safetensors", 5, shapes_.size());
    std::string map;
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      map += (i == 0 ? "\"" : ",\"") + shapes_[i].first + "\":\"" + (i < 5 ? "a" : "b") +
             ".safetensors\"";
    write("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  }
  Result<void> check() const {
    LUNA_TRY(const auto file, open_weight_file(folder_));
    LUNA_TRY(const ModelConfig config, read_model_config(*file));
    return check_weights(config, *file);
  }
  [[nodiscard]] std::string message() const {
    const auto checked = check();
    return checked ? "let pass" : checked.error().message();
  }

  std::filesystem::path folder_;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> shapes_;
};

TEST_F(HfFolderTest, IsTheSameModelInOneFileAndInSeveral) {
  write_one_file();
  ASSERT_TRUE(check()) << message();
  std::filesystem::remove(folder_ / "model.safetensors");
  write_two_files();
  ASSERT_TRUE(check()) << message();
  const auto file = open_weight_file(folder_);
  ASSERT_TRUE(file);
  EXPECT_EQ((*file)->container(), LUNA_CONTAINER_SAFETENSORS);
  EXPECT_EQ((*file)->find_tensor("blk.0.attn_k.weight")->dims[0], 32U);
  EXPECT_EQ((*file)->name_in_file("blk.0.attn_k.weight"), "model.layers.0.self_attn.k_proj.weight");
  const auto config = read_model_config(**file);
  ASSERT_TRUE(config);
  EXPECT_FALSE(config->rope.interleaved) << "pairs lie in halves, as trained";
  EXPECT_TRUE(config->tied_head);
}

TEST_F(HfFolderTest, SpreadWeightsAreTheirPartsTogether) {
  drop("model.layers.0.self_attn.q_proj.weight");
  add("model.layers.0.self_attn.q_proj.codes", {8, 8});
  add("model.layers.0.self_attn.q_proj.scales", {2, 8});
  write_one_file();
  ASSERT_TRUE(check()) << message();
  const auto file = open_weight_file(folder_);
  ASSERT_TRUE(file);
  EXPECT_EQ((*file)->find_tensor("blk.0.attn_q.weight"), nullptr);
  EXPECT_EQ((*file)->parts_of("blk.0.attn_q.weight").size(), 2U);
  const auto config = read_model_config(**file);
  ASSERT_TRUE(config);
  EXPECT_EQ(weigh_model(*config, **file).layers.at(0),
            2U * (64 + 64 + 64 + 16 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96));
}

TEST_F(HfFolderTest, ATiedHeadIsTheEmbeddingWhateverLiesBesideIt) {
  add("lm_head.weight", {32, 64});
  write_one_file();
  EXPECT_TRUE(check()) << message();
}

TEST_F(HfFolderTest, WhatIsMissingTooMuchOrOfAnotherShapeIsNamedAsTheFolderNamesIt) {
  drop("model.layers.0.mlp.up_proj.weight");
  write_one_file();
  EXPECT_THAT(message(), HasSubstr("tensor model.layers.0.mlp.up_proj.weight: missing"));
  add("model.layers.0.mlp.up_proj.weight", {96, 63});
  write_one_file();
  EXPECT_THAT(message(), HasSubstr("model.layers.0.mlp.up_proj.weight: of rank 2"));
  drop("model.layers.0.mlp.up_proj.weight");
  add("model.layers.0.mlp.up_proj.weight", {96, 64});
  add("model.layers.0.mlp.up_proj.bias", {96});
  write_one_file();
  EXPECT_THAT(message(), HasSubstr("model.layers.0.mlp.up_proj.bias: not a weight"));
  drop("model.layers.0.mlp.up_proj.bias");
  add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});  // old files have it, computed here
  write_one_file();
  EXPECT_TRUE(check()) << message();
  add("blk.0.ffn_up.weight", {96, 64});
  write_one_file();
  EXPECT_THAT(message(), HasSubstr("there already"));
}

TEST_F(HfFolderTest, AnUntiedHeadMustBeThere) {
  write("config.json", config_with("tie_word_embeddings", "false"));
  write_one_file();
  EXPECT_THAT(message(), HasSubstr("lm_head.weight"));
  add("lm_head.weight", {32, 64});
  write_one_file();
  EXPECT_TRUE(check()) << message();
}

TEST_F(HfFolderTest, FilesThatTheIndexNamesMustBeThereWithTheirTensors) {
  write_two_files();
  write_tensors("b.safetensors", 6, shapes_.size());
  EXPECT_THAT(message(), HasSubstr("b.safetensors: tensor " + shapes_[5].first));
  std::filesystem::remove(folder_ / "b.safetensors");
  EXPECT_THAT(message(), HasSubstr("b.safetensors: not there"));
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  EXPECT_THAT(message(), HasSubstr("neither model.safetensors nor"));
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(message(), HasSubstr("config.json"));
}

TEST_F(HfFolderTest, IdentityFollowsEveryByteOfConfigurationAndWeights) {
  write_one_file();
  const auto first = model_identity(folder_);
  ASSERT_TRUE(first) << first.error().message();
  write("notes.txt", "nothing");
  EXPECT_EQ(model_identity(folder_).value(), *first);
  write("config.json", config_with("vocab_size", "31"));
  EXPECT_NE(model_identity(folder_).value(), *first);
}

TEST_F(HfFolderTest, SurvivesRandomChangesOfItsTexts) {
  std::mt19937 random(test::test_seed());
  const std::string whole = config_with("quantization_config", R"({"a": {"b": [1, "c"]}})");
  for (int round = 0; round < 5000; ++round) {
    std::string changed = whole;
    for (auto i = random() % 4; i < 4; ++i)
      changed[random() % changed.size()] = static_cast<char>(random());
    static_cast<void>(parse_hf_config(changed));  // any answer, but no crash
    static_cast<void>(parse_hf_index(changed));
  }
}

}  // namespace
}  // namespace luna::model
