// Logits to tokens: the value tables, and what must hold for any row.
#include "core/engine/sampler.hpp"

#include "support/test_seed.hpp"

#include <luna/abi/backend.h>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace luna::engine {
namespace {

namespace json = boost::json;
using model::Candidate;
using pipeline::SamplingParams;
using pipeline::TokenId;

/// A case of the public collection, by its id.
json::object public_case(const std::string& id) {
  std::ifstream file(LUNA_SOURCE_DIR "/tests/golden/cases/cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    json::value value = json::parse(line);
    if (value.at("id").as_string() == id) return value.as_object();
  }
  ADD_FAILURE() << "no case " << id;
  return {};
}

float to_float(const json::value& value) {
  if (value.is_string()) {
    EXPECT_EQ(value.as_string(), "-inf");
    return -std::numeric_limits<float>::infinity();
  }
  return value.to_number<float>();
}

std::vector<float> to_floats(const json::value& values) {
  std::vector<float> floats;
  for (const json::value& value : values.as_array())
    floats.push_back(to_float(value));
  return floats;
}

std::vector<TokenId> to_ids(const json::value& values) {
  std::vector<TokenId> ids;
  for (const json::value& value : values.as_array())
    ids.push_back(value.to_number<TokenId>());
  return ids;
}

SamplingParams to_params(const json::object& settings) {
  SamplingParams params;
  const auto take = [&](const char* key, float& field) {
    if (const json::value* value = settings.if_contains(key)) field = value->to_number<float>();
  };
  take("temperature", params.temperature);
  take("top_p", params.top_p);
  take("min_p", params.min_p);
  take("repetition_penalty", params.repetition_penalty);
  take("presence_penalty", params.presence_penalty);
  take("frequency_penalty", params.frequency_penalty);
  if (const json::value* k = settings.if_contains("top_k"))
    params.top_k = k->to_number<std::uint32_t>();
  return params;
}

/// A row with both of its forms.
struct Row {
  explicit Row(std::vector<float> values, std::size_t n_candidates) : logits(std::move(values)) {
    std::vector<Candidate> all;
    double total = 0.0;
    for (TokenId id = 0; id < logits.size(); ++id) {
      all.push_back({logits[id], id});
      total += std::exp(double{logits[id]});
    }
    std::sort(all.begin(), all.end(), stands_before);
    all.resize(std::min(n_candidates, all.size()));
    candidates = std::move(all);
    log_sum_exp = static_cast<float>(std::log(total));
  }
  [[nodiscard]] LogitsRow by_flags(std::uint32_t flags) const {
    LogitsRow row;
    if ((flags & LUNA_OUT_LOGITS) != 0) row.logits = logits;
    if ((flags & LUNA_OUT_CANDIDATES) != 0) {
      row.candidates = candidates;
      row.log_sum_exp = log_sum_exp;
    }
    return row;
  }
  std::vector<float> logits;
  std::vector<Candidate> candidates;
  float log_sum_exp = 0.0F;
};

std::vector<float> random_row(std::mt19937& random, std::size_t n) {
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(n);
  for (float& logit : logits)
    logit = normal(random);
  return logits;
}

DrawContext context_of(const SamplingParams& params) {
  return {.params = params, .prompt = {}, .output = {}, .allowed = {}, .masked = {}};
}

TEST(Softmax, FollowsThePublicTable) {
  const json::object table = public_case("UNIT-SOFTMAX-1");
  const json::array& rows = table.at("input").at("rows").as_array();
  const json::array& expected = table.at("expected").at("softmax").as_array();
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> logits = to_floats(rows[r]);
    std::vector<float> got(logits.size());
    softmax(logits, got);
    EXPECT_THAT(got, ::testing::Pointwise(::testing::FloatNear(1e-6F), to_floats(expected[r])))
        << r;
  }
}

TEST(Sampler, KeepsWhatThePublicTableKeeps) {
  const json::object table = public_case("UNIT-SAMPLER-1");
  const Row row(to_floats(table.at("input").at("logits")), 4);
  const json::array& settings = table.at("input").at("settings").as_array();
  const json::array& kept = table.at("expected").at("kept_ids").as_array();
  ASSERT_EQ(settings.size(), kept.size());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const SamplingParams params = to_params(settings[i].as_object());
    Sampler sampler(static_cast<std::uint32_t>(row.logits.size()), 4);
    const DrawContext context = context_of(params);
    const Draw draw = sampler.draw(row.by_flags(sampler.output_flags(context, {})), context);
    EXPECT_EQ(draw.outcome, DrawOutcome::drawn);
    std::vector<TokenId> ids;
    for (const Candidate& candidate : sampler.survivors())
      ids.push_back(candidate.token_id);
    for (TokenId id = 0; sampler.survivors().empty() && id < row.logits.size(); ++id)
      ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, to_ids(kept[i])) << json::serialize(settings[i]);
  }
  std::vector<float> probabilities(row.logits.size());
  softmax(row.logits, probabilities);
  EXPECT_THAT(probabilities,
              ::testing::Pointwise(::testing::FloatNear(1e-6F),
                                   to_floats(table.at("expected").at("probabilities"))));
}

TEST(Penalties, FollowThePublicTable) {
  const json::object table = public_case("UNIT-PENALTY-1");
  const json::array& settings = table.at("input").at("settings").as_array();
  const json::array& expected = table.at("expected").at("logits").as_array();
  for (std::size_t i = 0; i < settings.size(); ++i) {
    std::vector<float> logits = to_floats(table.at("input").at("logits"));
    TokenCounts counts(static_cast<std::uint32_t>(logits.size()));
    apply_penalties(logits,
                    to_params(settings[i].as_object()),
                    to_ids(settings[i].at("prompt")),
                    to_ids(settings[i].at("output")),
                    counts);
    EXPECT_THAT(logits, ::testing::Pointwise(::testing::FloatNear(1e-6F), to_floats(expected[i])))
        << json::serialize(settings[i]);
    EXPECT_TRUE(counts.seen().empty());
  }
}

TEST(ExpOfNegative, IsWithinTwoUnitsOfTheTrueValue) {
  for (float x = 0.0F; x > -87.0F; x -= 0.00137F) {
    const double truth = std::exp(double{x});
    ASSERT_NEAR(exp_of_negative(x) / truth, 1.0, 2.5e-7) << x;
  }
  EXPECT_EQ(exp_of_negative(0.0F), 1.0F);
  EXPECT_EQ(exp_of_negative(-88.0F), 0.0F);
  EXPECT_EQ(exp_of_negative(-std::numeric_limits<float>::infinity()), 0.0F);
}

TEST(Sampler, CandidatesAndFullRowGiveTheSameToken) {
  std::mt19937 random(test::test_seed());
  constexpr std::uint32_t kVocab = 2000;
  Sampler few(kVocab, 64);
  Sampler none(kVocab, 1);  // nothing but greedy is served by one candidate
  for (int i = 0; i < 300; ++i) {
    const Row row(random_row(random, kVocab), 64);
    SamplingParams params;
    params.temperature = 0.3F + static_cast<float>(i % 7) * 0.3F;
    params.top_k = 2 + static_cast<std::uint32_t>(random() % 63);
    if (i % 3 == 0) params.top_p = 0.7F;
    if (i % 4 == 0) params.min_p = 0.05F;
    if (i % 5 == 0) params.typical_p = 0.8F;
    params.seed = random();
    const DrawContext context = context_of(params);
    ASSERT_EQ(few.output_flags(context, {}), LUNA_OUT_CANDIDATES);
    ASSERT_EQ(none.output_flags(context, {}), LUNA_OUT_LOGITS);
    EXPECT_EQ(few.draw(row.by_flags(LUNA_OUT_CANDIDATES), context).token_id,
              none.draw(row.by_flags(LUNA_OUT_LOGITS), context).token_id);
  }
}

/// A row like a model's: few tokens hold most of the probability.
std::vector<float> peaked_row(std::mt19937& random, std::size_t n) {
  std::vector<float> logits = random_row(random, n);
  for (std::size_t i = 0; i < 12; ++i)
    logits[random() % n] = 9.0F + static_cast<float>(random() % 800) * 0.01F;
  return logits;
}

TEST(Sampler, CandidatesDecideAsTheFullRowWouldWhereverTheyDecide) {
  std::mt19937 random(test::test_seed());
  constexpr std::uint32_t kVocab = 1500;
  Sampler sampler(kVocab, 64);
  int n_decided = 0;
  for (int i = 0; i < 1000; ++i) {
    const Row row(peaked_row(random, kVocab), 64);
    SamplingParams params;
    params.temperature = 0.3F + static_cast<float>(i % 8) * 0.1F;
    params.top_p = i % 2 == 0 ? 0.3F + static_cast<float>(random() % 700) * 0.001F : 1.0F;
    params.min_p = i % 2 == 1 || i % 3 == 0 ? 0.001F + static_cast<float>(i % 9) * 0.02F : 0.0F;
    if (i % 5 == 0) params.typical_p = 0.8F;
    params.seed = random();
    const DrawContext context = context_of(params);
    ASSERT_EQ(sampler.output_flags(context, {}), LUNA_OUT_CANDIDATES | LUNA_OUT_LOGITS);
    const Draw led = sampler.draw(row.by_flags(LUNA_OUT_CANDIDATES | LUNA_OUT_LOGITS), context);
    // Empty masks are none; a bias of nothing is an edit, so that the whole row is looked at.
    params.logit_bias = {{0, 0.0F}};
    const Draw whole = sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context);
    EXPECT_EQ(led.token_id, whole.token_id) << "row " << i;
    n_decided += sampler.survivors().size() < 64 ? 1 : 0;
  }
  EXPECT_GT(n_decided, 500);
}

TEST(Sampler, DrawsOfRowsWithCandidatesFollowTheProbabilities) {
  std::mt19937 random(test::test_seed());
  constexpr std::uint32_t kVocab = 40;
  std::vector<float> logits = random_row(random, kVocab);
  for (float& logit : logits)
    logit *= 0.4F;  // the four candidates leave much to the others
  const Row row(logits, 4);
  Sampler sampler(kVocab, 4);
  constexpr int kDraws = 40'000;
  for (const float temperature : {0.5F, 1.0F}) {
    std::vector<float> scaled = logits;
    for (float& logit : scaled)
      logit /= temperature;
    std::vector<float> probabilities(kVocab);
    softmax(scaled, probabilities);
    SamplingParams params;
    params.temperature = temperature;
    std::vector<int> counts(kVocab);
    for (int i = 0; i < kDraws; ++i) {
      params.seed = static_cast<std::uint64_t>(i);
      ++counts[sampler.draw(row.by_flags(3), context_of(params)).token_id];
    }
    for (TokenId id = 0; id < kVocab; ++id) {
      const double mean = kDraws * double{probabilities[id]};
      EXPECT_NEAR(counts[id], mean, 5.0 * std::sqrt(mean) + 3.0) << temperature << " " << id;
    }
  }
}

TEST(Sampler, ARestThatIsBoundedAwayChangesNoDraw) {
  std::mt19937 random(test::test_seed());
  constexpr std::uint32_t kVocab = 2000;
  Sampler sampler(kVocab, 64);
  for (int i = 0; i < 1000; ++i) {
    const Row row(peaked_row(random, kVocab), 64);
    SamplingParams params;
    params.temperature = 0.2F + static_cast<float>(i % 9) * 0.1F;
    params.seed = random();
    const DrawContext context = context_of(params);
    const Draw decided = sampler.draw(row.by_flags(3), context);
    // A log-sum-exp that promises a large rest: the row has to be read.
    LogitsRow vague = row.by_flags(3);
    vague.log_sum_exp += 20.0F;
    EXPECT_EQ(sampler.draw(vague, context).token_id, decided.token_id) << "row " << i;
  }
}

TEST(Sampler, TopPTakesTheLeastHeadOfAnyRow) {
  std::mt19937 random(test::test_seed());
  constexpr std::uint32_t kVocab = 5000;
  Sampler sampler(kVocab, 1);
  for (const float p : {0.01F, 0.5F, 0.9F, 0.999F, 0.999999F}) {
    std::vector<float> logits = random_row(random, kVocab);
    for (float& logit : logits)
      logit *= 0.2F;  // flat: many tokens are needed
    SamplingParams params;
    params.top_p = p;
    const Row row(logits, 1);
    (void)sampler.draw(row.by_flags(3), context_of(params));
    std::vector<float> probabilities(kVocab);
    softmax(logits, probabilities);
    std::sort(probabilities.begin(), probabilities.end(), std::greater<>());
    double sum = 0.0;
    std::size_t n = 0;
    while (n < kVocab && sum < double{p})
      sum += probabilities[n++];
    EXPECT_NEAR(static_cast<double>(sampler.survivors().size()), static_cast<double>(n), 1.0) << p;
  }
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const Row row({0.0F, std::log(2.0F), std::log(5.0F), std::log(2.0F)}, 1);
  Sampler sampler(4, 1);
  SamplingParams params;
  std::vector<int> counts(4);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<std::uint64_t>(i);
    ++counts[sampler.draw(row.by_flags(3), context_of(params)).token_id];
  }
  EXPECT_NEAR(counts[0], kDraws * 0.1, 150);  // about 3.5 standard deviations
  EXPECT_NEAR(counts[1], kDraws * 0.2, 200);
  EXPECT_NEAR(counts[2], kDraws * 0.5, 250);
}

TEST(Sampler, SeedChoiceAndPositionDecide) {
  std::mt19937 random(test::test_seed());
  const Row row(random_row(random, 1000), 1);
  Sampler sampler(1000, 1);
  SamplingParams params;
  params.temperature = 2.0F;
  params.seed = 9;
  const std::vector<TokenId> output = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto draw = [&](std::uint32_t choice, std::size_t n) {
    DrawContext context = context_of(params);
    context.choice_idx = choice;
    context.output = std::span(output).first(n);
    return sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context).token_id;
  };
  std::set<TokenId> seen;
  for (std::uint32_t choice = 0; choice < 4; ++choice) {
    for (std::size_t n = 0; n < 8; ++n) {
      EXPECT_EQ(draw(choice, n), draw(choice, n));
      seen.insert(draw(choice, n));
    }
  }
  EXPECT_GT(seen.size(), 16U);
}

TEST(Sampler, ExtremeValuesStillDraw) {
  const Row row({1e30F, -1e30F, 3e38F, 0.0F, -std::numeric_limits<float>::infinity()}, 2);
  Sampler sampler(5, 2);
  for (const float temperature : {1e-30F, 1e-6F, 1e-4F, 2.0F, 100.0F}) {
    for (const float top_p : {0.0F, 1e-9F, 1.0F}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_p = top_p;
      params.presence_penalty = 2.0F;
      const Draw draw = sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context_of(params));
      EXPECT_EQ(draw.outcome, DrawOutcome::drawn);
      EXPECT_EQ(draw.token_id, 2U);
    }
  }
}

TEST(Sampler, RowThatIsNotANumberIsAnOutcome) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Row row({1.0F, bad, 2.0F}, 2);
    Sampler sampler(3, 2);
    for (const float temperature : {0.0F, 1.0F}) {
      SamplingParams params;
      params.temperature = temperature;
      const DrawContext context = context_of(params);
      const auto flags = sampler.output_flags(context, {});
      EXPECT_EQ(sampler.draw(row.by_flags(flags), context).outcome, DrawOutcome::not_finite);
    }
  }
}

TEST(Sampler, MasksAndBiasDecideWhatMayCome) {
  const Row row({5.0F, 1.0F, 2.0F, 3.0F}, 2);
  Sampler sampler(4, 2);
  SamplingParams params;
  params.temperature = 0.0F;
  params.logit_bias = {{1, 1.5F}};
  const std::vector<TokenId> allowed = {1, 2};
  const std::vector<TokenId> masked = {1};
  DrawContext context = context_of(params);
  context.allowed = allowed;
  EXPECT_EQ(sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context).token_id, 1U);
  context.masked = masked;
  EXPECT_EQ(sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context).token_id, 2U);
  context.allowed = masked;
  EXPECT_EQ(sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context).outcome,
            DrawOutcome::nothing_allowed);
}

TEST(Sampler, TypicalKeepsTheTokensNearestToTheEntropy) {
  // Probabilities 0.5, 0.25, 0.125, 0.125: entropy 1.75 bits, surprises 1, 2, 3, 3 bits.
  const Row row({std::log(4.0F), std::log(2.0F), 0.0F, 0.0F}, 1);
  Sampler sampler(4, 1);
  SamplingParams params;
  params.typical_p = 0.2F;
  (void)sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context_of(params));
  ASSERT_EQ(sampler.survivors().size(), 1U);
  EXPECT_EQ(sampler.survivors()[0].token_id, 1U);
  params.typical_p = 0.7F;
  (void)sampler.draw(row.by_flags(LUNA_OUT_LOGITS), context_of(params));
  ASSERT_EQ(sampler.survivors().size(), 2U);
  EXPECT_EQ(sampler.survivors()[0].token_id, 0U);
}

TEST(Sampler, LogprobsAreOfTheRawRowFromEitherForm) {
  std::mt19937 random(test::test_seed());
  const Row row(random_row(random, 500), 20);
  Sampler sampler(500, 20);
  SamplingParams params;
  params.temperature = 0.0F;
  const auto flags = sampler.output_flags(context_of(params), {.enabled = true, .n_top = 20});
  EXPECT_EQ(flags, LUNA_OUT_CANDIDATES);
  EXPECT_EQ(sampler.output_flags(context_of(params), {.enabled = true, .n_top = 21}),
            LUNA_OUT_CANDIDATES | LUNA_OUT_LOGITS);
  const auto from_candidates = sampler.top_logprobs(row.by_flags(flags), 20);
  const std::vector<pipeline::TokenLogprob> kept(from_candidates.begin(), from_candidates.end());
  const auto from_logits = sampler.top_logprobs(row.by_flags(LUNA_OUT_LOGITS), 20);
  double sum = 0.0;
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(kept[i].token_id, from_logits[i].token_id);
    EXPECT_NEAR(kept[i].logprob, from_logits[i].logprob, 1e-5);
    EXPECT_EQ(kept[i].logprob, Sampler::logprob(row.by_flags(3), kept[i].token_id));
    sum += std::exp(double{kept[i].logprob});
  }
  EXPECT_LE(sum, 1.0001);
}

}  // namespace
}  // namespace luna::engine
