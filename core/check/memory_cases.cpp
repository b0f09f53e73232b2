// Group E of backends: a device that is full, and what it promised to take.
#include "core/check/cases.hpp"
#include "core/check/device_bench.hpp"

#include <luna/backend_blocks.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::check {
namespace {

/// Takes all of a device's memory in buffers, down to pages. Gives their bytes.
std::uint64_t fill_up(OpenDevice& device, std::vector<std::uint64_t>* buffers) {
  std::uint64_t n_bytes = 0;
  for (std::uint64_t size = kOpBudgetBytes; size >= 4096; size /= 2)
    for (;;) {
      std::uint64_t buffer = 0;
      luna_err err = make_err();
      device.run().phase("alloc until nothing is left");
      const luna_status status =
          device.table().alloc(device.device(), LUNA_BUFFER_KV, size, &buffer, nullptr, &err);
      if (status >= 0) {
        buffers->push_back(buffer);
        n_bytes += size;
        continue;
      }
      if (status != LUNA_EXHAUSTED)
        device.run().fail("D5",
                          "without room, alloc() answers " + std::to_string(status) +
                              " and not EXHAUSTED: " + std::string(text_of(err)));
      if (err.text[0] == '\0') device.run().fail("E2", "alloc() fails and gives no reason");
      break;
    }
  return n_bytes;
}

void give_back(OpenDevice& device, std::vector<std::uint64_t>* buffers) {
  for (const std::uint64_t buffer : *buffers)
    device.table().free_buffer(device.device(), buffer);
  buffers->clear();
}

/// Weights and programs that find no room, many times over: none may keep a part of what it began.
void ask_in_vain(CaseRun& run, OpenDevice& device, const DrawnProgram* drawn) {
  constexpr int kTimes = 50;
  std::mt19937_64 random(run.input().seed);
  const DrawnWeight weight = draw_weight(random, 64, 512, weight_forms()[0]);
  for (int n = 0; n < kTimes && !run.has_failed(); ++n) {
    const Result<std::uint64_t> handle = device.load(weight, LUNA_NUMERICS_I12);
    if (handle) {
      run.fail("D5", "a weight of 128 KiB finds room where 4 KiB did not");
    } else if (handle.error().code() != Code::exhausted &&
               handle.error().code() != Code::unsupported) {
      run.fail("D5", "without room, a weight is refused with: " + handle.error().message());
    }
    if (drawn == nullptr) continue;
    std::optional<Error> refusal;
    const auto running = RunningProgram::make(device, *drawn, 4, &refusal);
    if (running != nullptr)
      run.fail("D5", "a program with its buffers finds room where 4 KiB did not");
    else if (refusal && refusal->code() != Code::exhausted)
      run.fail("D5", "without room, a program is refused with: " + refusal->message());
  }
}

// A device that has no room says so, works on, and has all of it again.
void check_out_of_memory(CaseRun& run) {
  const Bench bench = make_bench(run);
  if (bench.device == nullptr || run.has_failed()) return;
  OpenDevice& device = *bench.device;
  StepOutput before;
  const bool computes = bench.running != nullptr;
  if (computes && !bench.running->run(first_step(bench), &before)) return;
  std::uint64_t n_bytes = 0;
  for (int round = 0; round < 3 && !run.has_failed(); ++round) {
    std::vector<std::uint64_t> buffers;
    const std::uint64_t n_now = fill_up(device, &buffers);
    if (round == 0) n_bytes = n_now;
    if (n_now != n_bytes)
      run.fail("D5",
               "round " + std::to_string(round + 1) + " gets " + std::to_string(n_now) +
                   " bytes, the first got " + std::to_string(n_bytes));
    if (!run.has_failed()) ask_in_vain(run, device, bench.drawn.get());
    StepOutput after;
    if (computes && !run.has_failed()) {
      if (!bench.running->run(first_step(bench), &after)) return;
      if (after.logits != before.logits)
        run.fail("D5", "with its memory used up, the device gives other numbers");
    }
    give_back(device, &buffers);
  }
}

/// What the device says that a program takes with its weights, KV and outputs. nullopt: the run was
/// told what is wrong.
std::optional<std::uint64_t> promised_bytes(CaseRun& run, const Bench& bench) {
  constexpr std::uint64_t kPage = 4096;
  const OpenDevice& device = *bench.device;
  const luna_program program = bench.drawn->program.abi();
  std::uint64_t sum = 0;
  luna_err err = make_err();
  const auto add = [&](const char* what, const auto& ask, std::uint64_t times) {
    std::uint64_t bytes = 0;
    run.phase(what);
    if (ask(&bytes) < 0)
      run.fail("D1", std::string(what) + "() fails for what runs: " + std::string(text_of(err)));
    sum += bytes * times;
  };
  for (const DrawnWeight& weight : bench.drawn->weights)
    add(
        "weight_bytes",
        [&](std::uint64_t* bytes) {
          return device.table().weight_bytes(
              device.device(), &weight.desc, program.numerics, bytes, &err);
        },
        1);
  add(
      "scratch_bytes",
      [&](std::uint64_t* bytes) {
        return device.table().scratch_bytes(device.device(), &program, bytes, &err);
      },
      1);
  if (bench.drawn->has_kv)
    add(
        "kv_block_bytes",
        [&](std::uint64_t* bytes) {
          return device.table().kv_block_bytes(device.device(), &program.kv, bytes, &err);
        },
        bench.conversation.n_kv_blocks);
  for (const std::uint32_t kind : {LUNA_SLOT_LOGITS, LUNA_SLOT_CANDIDATES})
    sum += (out_bytes(program, kind) + kPage - 1) / kPage * kPage + kPage;
  if (run.has_failed()) return std::nullopt;
  return sum;
}

// A device of just the bytes that it promised holds all; one of half of them says that it is full.
void check_promises(CaseRun& run) {
  Bench bench = make_bench(run);
  if (bench.running == nullptr) return;
  const std::optional<std::uint64_t> bytes = promised_bytes(run, bench);
  if (!bytes) return;
  for (const std::uint64_t budget : {*bytes, *bytes / 2}) {
    const auto device = OpenDevice::open(run, *bench.subject, {.memory_bytes = budget});
    if (device == nullptr) return;
    std::optional<Error> refusal;
    const auto running =
        RunningProgram::make(*device, *bench.drawn, bench.conversation.n_kv_blocks, &refusal);
    const bool is_whole = budget == *bytes;
    if (is_whole && refusal)
      run.fail("D1",
               "what takes " + std::to_string(budget) + " bytes, by weight_bytes() and the like, " +
                   "does not fit in them: " + refusal->message());
    if (!is_whole && running != nullptr)
      run.fail("D1", "half of the bytes that it promised are enough: it took more than its budget");
    if (!is_whole && refusal && refusal->code() != Code::exhausted)
      run.fail("D5", "without room, a program is refused with: " + refusal->message());
  }
}

constexpr const char* kKind = LUNA_KIND_BACKEND;
constexpr auto kCases = std::to_array<Case>({
    {"E.backend.out_of_memory", kKind, "U3", check_out_of_memory},
    {"E.backend.promises", kKind, "U3", check_promises},
});

}  // namespace

std::span<const Case> memory_cases() {
  return kCases;
}

}  // namespace luna::check
