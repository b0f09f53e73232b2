// A model on a device, and its logits in pieces: what tests of whole models share.
#pragma once

#include "support/tiny_llama.hpp"

#include <cmath>
#include <cstring>

namespace luna::test {

inline std::string seed_text() {
  return "LUNA_TEST_SEED=" + std::to_string(test_seed());
}

/// A device with a model compiled on it.
struct Loaded {
  TestDevice device;
  Program program;
  std::unique_ptr<TestProgram> run;

  Loaded(const std::string& backend,
         const TinyLlama& model,
         std::uint32_t n_threads = 1,
         std::uint32_t n_blocks = 32)
      : device(backend, n_threads), program(model.program()) {
    const auto weights = device.load_all(model.weights);
    EXPECT_TRUE(weights) << weights.error().message();
    auto compiled = TestProgram::compile(device, program, *weights, n_blocks);
    EXPECT_TRUE(compiled) << compiled.error().message();
    run = std::move(compiled).value();
  }
};

inline std::vector<std::uint32_t> block_ids(std::uint32_t first, std::uint32_t n) {
  std::vector<std::uint32_t> ids(n);
  for (std::uint32_t i = 0; i < n; ++i)
    ids[i] = first + i;
  return ids;
}

/// Logits of all rows when a sequence is run in pieces of the given sizes.
inline std::vector<float> run_in_pieces(TestProgram& run,
                                        const TinyLlama& model,
                                        std::span<const std::uint32_t> tokens,
                                        std::uint32_t piece,
                                        std::span<const std::uint32_t> blocks) {
  std::vector<float> rows;
  for (std::uint32_t at = 0; at < tokens.size(); at += piece) {
    const auto n = std::min<std::size_t>(piece, tokens.size() - at);
    StepInput step(model.table_stride());
    step.add(tokens.subspan(at, n), at, blocks);
    const StepAnswer answer = run.run(step);
    EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
    rows.insert(rows.end(), run.logits(), run.logits() + n * model.shape().vocab);
  }
  return rows;
}

inline double relative_error(const std::vector<float>& expected, const std::vector<float>& got) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (double{expected[i]} - got[i]) * (double{expected[i]} - got[i]);
    size += double{expected[i]} * expected[i];
  }
  return std::sqrt(error / size);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace luna::test
