// A step allocates nothing. A binary of its own, for it replaces operator new.
#include "support/engine_fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<bool> g_counting{false};
std::atomic<std::uint64_t> g_n_allocations{0};
std::atomic<std::uint64_t> g_n_frees{0};

void* counted(std::size_t n) {
  if (g_counting) ++g_n_allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  std::abort();
}
void counted_free(void* p) {
  if (g_counting && p != nullptr) ++g_n_frees;
  std::free(p);
}
}  // namespace

void* operator new(std::size_t n) {
  return counted(n);
}
void* operator new[](std::size_t n) {
  return counted(n);
}
void operator delete(void* p) noexcept {
  counted_free(p);
}
void operator delete[](void* p) noexcept {
  counted_free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  counted_free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  counted_free(p);
}

namespace luna::test {
namespace {

std::unique_ptr<SequenceRequest> varied_request(std::uint32_t i) {
  auto request = EngineRig::request(some_prompt(10 + i * 11 % 70, i), 60);
  request->sampling.seed = i;
  request->stop.stop_strings = {"never seen", "zz"};
  switch (i % 5) {
    case 0:
      break;
    case 1:
      request->sampling.temperature = 1.0F;
      break;
    case 2:
      request->sampling.temperature = 0.7F;
      request->sampling.top_p = 0.9F;
      request->sampling.repetition_penalty = 1.2F;
      break;
    case 3:
      request->sampling.temperature = 0.7F;
      request->sampling.top_k = 10;
      request->sampling.typical_p = 0.9F;
      request->logprobs = {.enabled = true, .n_top = 5};
      break;
    default:
      request->sampling.logit_bias = {{kTheToken, 5.0F}};
      request->stop.n_generated_min = 5;
      break;
  }
  return request;
}

void expect_steps_allocate_nothing(const EngineOptions& options) {
  // Few blocks, so that sequences are pre-empted; choices, so that blocks are shared and copied.
  EngineRig rig({.n_shards = 2,
                 .n_kv_blocks = 14,
                 .n_draft_rows_max = 16,
                 .completion = Completion::deferred},
                std::nullopt,
                options);
  std::vector<Asked> asked;
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 15; ++i)
      asked.push_back(rig.submit(varied_request(i), 1 + i % 3));
    rig.engine->cancel(asked[asked.size() - 2].id);
    bool works = true;
    while (works) {
      g_counting = round > 0;  // the first round warms the policy's buffers up
      works = rig.engine->advance();
      g_counting = false;
      works |= rig.fake.complete();
      rig.clock.advance(std::chrono::milliseconds(1));
    }
  }
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  EXPECT_EQ(g_n_allocations.load(), 0U);
  EXPECT_EQ(g_n_frees.load(), 0U);
  rig.expect_empty();
}

TEST(EngineAllocation, StepsAllocateAndFreeNothing) {
  expect_steps_allocate_nothing({});
}

TEST(EngineAllocation, StepsWithDraftsAllocateAndFreeNothing) {
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  expect_steps_allocate_nothing(options);
}

}  // namespace
}  // namespace luna::test
