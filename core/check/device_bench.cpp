#include "core/check/device_bench.hpp"

#include "core/base/assert.hpp"

#include <optional>
#include <string_view>
#include <utility>

namespace luna::check {
namespace {

/// A program of the most that the device has: attention, a linear op, or an embedding alone.
std::unique_ptr<const DrawnProgram> largest_program(OpenDevice& device, const DeviceOffer& offer) {
  for (const std::string_view wanted : {"kv_copy", "attend", "linear", "copy"})
    for (const OpRow& row : op_rows()) {
      if (row.name != wanted) continue;
      Result<DrawnProgram> drawn = ProgramDraft::of_row(row, 1, offer);
      LUNA_VERIFY(drawn.has_value());
      if (is_supported(device, drawn->program.abi()))
        return std::make_unique<const DrawnProgram>(*std::move(drawn));
    }
  return nullptr;
}

}  // namespace

Bench make_bench(CaseRun& run) {
  Bench bench;
  bench.subject = Subject::load(run);
  if (bench.subject == nullptr) return bench;
  bench.device = OpenDevice::open(run, *bench.subject, {.memory_bytes = kOpBudgetBytes});
  if (bench.device == nullptr) return bench;
  for (const DeviceOffer& offer : offers_of(*bench.device, run.input().seed)) {
    bench.drawn = largest_program(*bench.device, offer);
    if (bench.drawn) break;
  }
  if (!bench.drawn) return bench;
  std::mt19937_64 random(run.input().seed);
  bench.conversation = draw_conversation(*bench.drawn, random);
  bench.steps = draw_batches(*bench.drawn, bench.conversation, random);
  std::optional<Error> refusal;
  bench.running =
      RunningProgram::make(*bench.device, *bench.drawn, bench.conversation.n_kv_blocks, &refusal);
  if (refusal) run.fail("D2", bench.drawn->text + " is refused: " + refusal->message());
  return bench;
}

DrawnStep first_step(const Bench& bench) {
  return steps_alone(*bench.drawn, bench.conversation, 0).front();
}

}  // namespace luna::check
