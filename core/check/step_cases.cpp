// Group E of backends: steps that cannot be, steps in a row, KV blocks that travel.
#include "core/base/assert.hpp"
#include "core/check/cases.hpp"
#include "core/check/device_bench.hpp"
#include "core/check/guarded_memory.hpp"

#include <luna/backend_blocks.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace luna::check {
namespace {

/// A step with one fault; the arrays live beside it.
struct WrongStep {
  const char* what;
  std::function<void(luna_step&, DrawnStep&)> spoil;
};

std::vector<WrongStep> wrong_steps(const luna_program& program, bool has_kv) {
  std::vector<WrongStep> wrong = {
      {"a step without a size", [](luna_step& s, DrawnStep&) { s.struct_size = 0; }},
      {"a step without rows", [](luna_step& s, DrawnStep&) { s.n_rows = 0; }},
      {"more rows than the program's",
       [&program](luna_step& s, DrawnStep&) { s.n_rows = program.n_rows_max + 1; }},
      {"a step without sequences", [](luna_step& s, DrawnStep&) { s.n_seqs = 0; }},
      {"more sequences than the program's",
       [&program](luna_step& s, DrawnStep&) { s.n_seqs = program.n_seqs_max + 1; }},
      {"a token behind the vocabulary",
       [](luna_step&, DrawnStep& d) { d.token_ids[0] = ProgramDraft::kVocab; }},
      {"token 2^32 - 1", [](luna_step&, DrawnStep& d) { d.token_ids.back() = UINT32_MAX; }},
      {"a position behind the program's",
       [&program](luna_step&, DrawnStep& d) { d.positions.back() = program.n_positions_max; }},
      {"positions that do not ascend",
       [](luna_step&, DrawnStep& d) { d.positions[1] = d.positions[0]; }},
      {"a sequence that begins behind the rows",
       [](luna_step&, DrawnStep& d) { d.seq_first_row[1] += 5; }},
      {"an output row behind the rows",
       [](luna_step& s, DrawnStep& d) { d.out_rows.back() = s.n_rows; }},
      {"more output rows than the program's",
       [&program](luna_step& s, DrawnStep&) { s.n_out_rows = program.n_out_rows_max + 1; }},
      {"no tokens", [](luna_step& s, DrawnStep&) { s.token_ids = nullptr; }},
      {"no positions", [](luna_step& s, DrawnStep&) { s.positions = nullptr; }},
      {"no buffers", [](luna_step& s, DrawnStep&) { s.n_binds = 0; }},
  };
  if (!has_kv) return wrong;
  wrong.push_back(
      {"a block behind the buffer", [](luna_step&, DrawnStep& d) { d.tables[0] = UINT32_MAX; }});
  wrong.push_back({"no block tables", [](luna_step& s, DrawnStep&) { s.block_tables = nullptr; }});
  wrong.push_back({"pruning by a program that has none", [](luna_step& s, DrawnStep& d) {
                     d.seq_prunes = {{0, 1, 0, 0}};
                     s.seq_prunes = d.seq_prunes.data();
                   }});
  wrong.push_back({"a copy to a block behind the buffer", [](luna_step& s, DrawnStep& d) {
                     d.kv_copies = {{0, UINT32_MAX}};
                     s.kv_copies = d.kv_copies.data();
                     s.n_kv_copies = 1;
                   }});
  return wrong;
}

// What cannot be is refused before anything is touched: afterwards the steps give what they give
// on a device that was never asked.
void check_wrong_steps(CaseRun& run) {
  const Bench bench = make_bench(run);
  if (bench.running == nullptr) return;
  const luna_program program = bench.drawn->program.abi();
  const DrawnStep good = first_step(bench);
  StepOutput before;
  if (!bench.running->run(good, &before)) return;
  for (const WrongStep& wrong : wrong_steps(program, bench.drawn->has_kv)) {
    DrawnStep spoilt = good;
    luna_step step = spoilt.abi();
    step.binds = bench.running->binds().data();
    step.n_binds = static_cast<std::uint32_t>(bench.running->binds().size());
    wrong.spoil(step, spoilt);
    luna_err err = make_err();
    const luna_status status = bench.running->submit_wrong(step, &err);
    if (run.has_failed()) return;
    if (status >= 0) return run.fail("D2", std::string(wrong.what) + " is accepted");
    if (err.text[0] == '\0')
      run.fail("E2", std::string(wrong.what) + " is refused without a reason");
    if (bench.running->n_done() != 0)
      run.fail("D6", std::string(wrong.what) + " is refused, and `done` comes all the same");
  }
  StepOutput after;
  if (!bench.running->run(good, &after)) return;
  if (before.logits.size() != after.logits.size() ||
      std::memcmp(
          before.logits.data(), after.logits.data(), before.logits.size() * sizeof(float)) != 0)
    run.fail("D6", "after steps that were refused, a step gives other bits");
}

// Eight may wait for each other; they end in order, each once.
void check_queue(CaseRun& run) {
  constexpr std::uint32_t kQueued = 8;
  const Bench bench = make_bench(run);
  if (bench.running == nullptr) return;
  const DrawnStep step = first_step(bench);
  StepOutput alone;
  if (!bench.running->run(step, &alone)) return;
  for (int round = 0; round < 20 && !run.has_failed(); ++round) {
    StepOutput last;
    if (!bench.running->run_queued(step, kQueued, &last)) return;
    if (bench.running->n_done() != kQueued)
      run.fail("D6",
               std::to_string(kQueued) + " steps end " + std::to_string(bench.running->n_done()) +
                   " times");
    if (last.logits != alone.logits) run.fail("D6", "eight steps in a row give other numbers");
  }
}

/// Copies the blocks of a program's KV out of one buffer and into another's.
bool carry_over(CaseRun& run,
                const luna_kv_blocks_if& table,
                const Bench& from,
                RunningProgram& to) {
  const luna_program program = from.drawn->program.abi();
  std::vector<std::uint32_t> blocks(program.n_blocks_per_seq_max);
  for (std::uint32_t i = 0; i < blocks.size(); ++i)
    blocks[i] = i;
  luna_err err = make_err();
  std::uint64_t block_bytes = 0;
  from.device->table().kv_block_bytes(from.device->device(), &program.kv, &block_bytes, &err);
  // Layer by layer: a part of one layer is as long as a layout of one says.
  for (std::uint32_t layer = 0; layer < program.kv.n_layers; ++layer) {
    luna_kv_layout one = program.kv;
    one.n_layers = 1;
    std::uint64_t bytes = 0;
    from.device->table().kv_block_bytes(from.device->device(), &one, &bytes, &err);
    GuardedMemory memory(bytes * blocks.size());
    luna_kv_part part{};
    part.struct_size = sizeof(part);
    part.n_blocks = static_cast<std::uint32_t>(blocks.size());
    part.buffer = from.running->kv_buffer();
    part.layout = &program.kv;
    part.blocks = blocks.data();
    part.first_layer = layer;
    part.n_layers = 1;
    part.n_bytes = bytes * blocks.size();
    run.phase("kv_export");
    if (table.kv_export(from.device->device(), &part, memory.bytes().data(), &err) < 0) {
      run.fail("D7", "blocks cannot be copied out: " + std::string(text_of(err)));
      return false;
    }
    memory.make_read_only();
    part.buffer = to.kv_buffer();
    run.phase("kv_import");
    if (table.kv_import(from.device->device(), &part, memory.bytes().data(), &err) < 0) {
      run.fail("D7", "blocks cannot be copied in: " + std::string(text_of(err)));
      return false;
    }
    const auto refused = [&](const char* what, const luna_kv_part& wrong) {
      from.device->refuses(what, [&](luna_err* e) {
        return table.kv_import(from.device->device(), &wrong, memory.bytes().data(), e);
      });
    };
    luna_kv_part wrong = part;
    wrong.n_bytes -= 1;
    refused("a part of a byte less than its blocks", wrong);
    wrong = part;
    wrong.first_layer = program.kv.n_layers;
    refused("a layer behind the last", wrong);
    wrong = part;
    const std::vector<std::uint32_t> none(blocks.size(), UINT32_MAX);
    wrong.blocks = none.data();
    refused("a block behind the buffer", wrong);
    wrong = part;
    wrong.buffer = UINT64_MAX;
    refused("a buffer that is none", wrong);
  }
  return !run.has_failed();
}

// A sequence begins in one buffer and goes on in another: the bits are those of one that stayed.
void check_kv_blocks(CaseRun& run) {
  const Bench bench = make_bench(run);
  if (bench.running == nullptr || !bench.drawn->has_kv) return;
  const luna_if& head = bench.device->table().head;
  const auto* const table = static_cast<const luna_kv_blocks_if*>(
      head.ext == nullptr ? nullptr : head.ext(bench.device->self(), LUNA_EXT_KV_BLOCKS));
  if (table == nullptr) return run.figure("kv_blocks", "stay on their device");
  if (!LUNA_HAS(table, luna_kv_blocks_if, kv_import))
    return run.fail("V6", std::string(LUNA_EXT_KV_BLOCKS) + " is not whole");
  const std::vector<DrawnStep> steps = steps_alone(*bench.drawn, bench.conversation, 0);
  if (steps.size() < 2) return;
  std::optional<Error> refusal;
  const auto other =
      RunningProgram::make(*bench.device, *bench.drawn, bench.conversation.n_kv_blocks, &refusal);
  if (other == nullptr) return run.fail("D2", refusal ? refusal->message() : "no second program");
  StepOutput stayed;
  StepOutput moved;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i)
    if (!bench.running->run(steps[i], &stayed)) return;
  if (!carry_over(run, *table, bench, *other)) return;
  if (!bench.running->run(steps.back(), &stayed) || !other->run(steps.back(), &moved)) return;
  if (stayed.logits != moved.logits)
    run.fail("D7", "a sequence whose blocks were carried over goes on with other numbers");
}

constexpr const char* kKind = LUNA_KIND_BACKEND;
constexpr auto kCases = std::to_array<Case>({
    {"E.backend.wrong_steps", kKind, "D2", check_wrong_steps},
    {"E.backend.queue", kKind, "U3", check_queue},
    {"E.backend.kv_blocks", kKind, "U3", check_kv_blocks},
});

}  // namespace

std::span<const Case> step_cases() {
  return kCases;
}

}  // namespace luna::check
