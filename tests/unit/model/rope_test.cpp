// Rotary frequencies against the public case UNIT-ROPE-1, through the keys of a file.
#include "core/model/gguf_file.hpp"
#include "core/model/model_config.hpp"
#include "unit/model/gguf_writer.hpp"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>

namespace luna::model {
namespace {

namespace json = boost::json;

json::value load_case(std::string_view id) {
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  const std::string wanted = "\"id\": \"" + std::string(id) + "\"";
  for (std::string line; std::getline(file, line);)
    if (line.find(wanted) != std::string::npos) return json::parse(line);
  ADD_FAILURE() << "no case " << id;
  return {};
}

/// The divisors that converters write for llama 3 models.
/// Source  Llama 3.1, apply_scaling() in model.py of the release
std::vector<float> llama3_factors(std::uint32_t n_rot, double base, const json::object& s) {
  const double factor = s.at("factor").to_number<double>();
  const double low = s.at("low_freq_factor").to_number<double>();
  const double high = s.at("high_freq_factor").to_number<double>();
  const double context = s.at("original_context").to_number<double>();
  std::vector<float> factors;
  for (std::uint32_t pair = 0; pair < n_rot / 2; ++pair) {
    const double frequency = std::pow(base, -2.0 * pair / n_rot);
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    const double smooth = std::clamp((context / wavelength - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1.0 / ((1.0 - smooth) / factor + smooth)));
  }
  return factors;
}

TEST(Rope, FrequenciesAreThoseOfThePapers) {
  const json::value tested = load_case("UNIT-ROPE-1");
  const auto& input = tested.at("input").as_object();
  const auto& expected = tested.at("expected").as_object();
  const double tolerance = expected.at("tolerance_relative").to_number<double>();
  const auto& settings = input.at("settings").as_array();
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const auto& s = settings[i].as_object();
    const std::string type(s.at("type").as_string());
    const double base = (s.contains("base") ? s.at("base") : input.at("base")).to_number<double>();
    test::GgufParts parts = test::tiny_llama();  // head_dim 16, as the case
    parts.set(test::key_f32("llama.rope.freq_base", static_cast<float>(base)));
    if (type == "llama3") {
      const auto factors = llama3_factors(16, base, s);
      parts.add_tensor("rope_freqs.weight", {8}, 0, std::as_bytes(std::span(factors)));
    } else {
      parts.set(test::key_text("llama.rope.scaling.type", type));
      if (s.contains("factor"))
        parts.set(test::key_f32("llama.rope.scaling.factor", s.at("factor").to_number<float>()));
      if (s.contains("original_context"))
        parts.set(test::key_u32("llama.rope.scaling.original_context_length",
                                s.at("original_context").to_number<std::uint32_t>()));
    }
    const auto bytes = parts.write();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file) << file.error().message();
    const auto config = read_model_config(*file);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_TRUE(config->rope.interleaved);
    EXPECT_NEAR(
        config->rope.magnitude, expected.at("attention_factor").at(i).to_number<double>(), 1e-6);
    const auto& frequencies = expected.at("inverse_frequencies").at(i).as_array();
    ASSERT_EQ(config->rope.frequencies.size(), frequencies.size());
    for (std::size_t p = 0; p < frequencies.size(); ++p) {
      const double want = frequencies[p].to_number<double>();
      EXPECT_NEAR(config->rope.frequencies[p], want, tolerance * want) << type << " pair " << p;
    }
  }
}

TEST(Rope, AFactorWithoutATypeIsLinear) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    test::GgufParts parts = test::tiny_llama();
    parts.set(test::key_f32(key, 4.0F));
    const auto bytes = parts.write();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file);
    const auto config = read_model_config(*file);
    ASSERT_TRUE(config);
    EXPECT_DOUBLE_EQ(config->rope.frequencies[0], 0.25);
  }
}

TEST(Rope, RefusesWrongFactorTensors) {
  for (const std::vector<float>& factors :
       {std::vector<float>(7, 1.0F), std::vector<float>(8, 0.0F), std::vector<float>(8, NAN)}) {
    test::GgufParts parts = test::tiny_llama();
    parts.add_tensor("rope_freqs.weight", {factors.size()}, 0, std::as_bytes(std::span(factors)));
    const auto bytes = parts.write();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file);
    EXPECT_FALSE(read_model_config(*file));
  }
}

}  // namespace
}  // namespace luna::model
