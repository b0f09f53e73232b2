// Group E of backends: memory, weights and refusals of a device. What it computes is in
// op_cases.cpp, what its steps are in step_cases.cpp.
#include "core/check/cases.hpp"
#include "core/check/guarded_memory.hpp"
#include "core/check/open_device.hpp"

#include <luna/abi/backend.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::check {
namespace {

constexpr std::uint64_t kBudgetBytes = std::uint64_t{64} << 20U;

constexpr std::uint64_t kBufferBytes = std::uint64_t{4} << 20U;

/// One buffer more. False: there is no room, or the run was told what is wrong.
bool add_buffer(CaseRun& run, OpenDevice& device, std::vector<std::uint64_t>& buffers) {
  const bool is_out = buffers.size() % 2 == 0;
  std::uint64_t buffer = 0;
  void* host = nullptr;
  luna_err err = make_err();
  run.phase("alloc");
  const luna_status status = device.table().alloc(device.device(),
                                                  is_out ? LUNA_BUFFER_OUT : LUNA_BUFFER_KV,
                                                  kBufferBytes,
                                                  &buffer,
                                                  &host,
                                                  &err);
  if (status < 0) {
    if (err.text[0] == '\0') run.fail("E2", "alloc() fails and gives no reason");
    if (status != LUNA_EXHAUSTED) run.fail("D1", "alloc() fails: " + std::string(text_of(err)));
    return false;
  }
  buffers.push_back(buffer);
  if (is_out && host == nullptr) run.fail("D1", "a buffer OUT has no host address");
  if (buffers.size() * kBufferBytes > kBudgetBytes)
    run.fail("D1",
             std::to_string(buffers.size() * kBufferBytes) + " bytes are given where " +
                 std::to_string(kBudgetBytes) + " are allowed");
  if (is_out && host != nullptr) std::memset(host, 0x5A, kBufferBytes);
  return !run.has_failed();
}

// Buffers until the budget is used up, given back, and once more.
void check_budget(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kBudgetBytes});
  if (device == nullptr) return;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::uint64_t> buffers;
    while (add_buffer(run, *device, buffers)) {}
    if (run.has_failed()) return;
    if (buffers.size() < kBudgetBytes / kBufferBytes / 2)
      return run.fail("D1",
                      "round " + std::to_string(round + 1) + " gets " +
                          std::to_string(buffers.size()) +
                          " buffers: less than half of the budget is there");
    run.phase("free_buffer");
    for (const std::uint64_t buffer : buffers)
      device->table().free_buffer(device->device(), buffer);
    // One that is not there.
    device->table().free_buffer(device->device(), UINT64_MAX);
  }
}

luna_weight_desc dense_weight(std::uint64_t n_rows, std::uint64_t n_cols, std::uint32_t dtype) {
  luna_weight_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.klass = LUNA_WEIGHT_DENSE;
  desc.dtype = dtype;
  desc.n_rows = n_rows;
  desc.n_cols = n_cols;
  desc.row_bytes[LUNA_PLANE_VALUES] =
      n_cols * (dtype == LUNA_DTYPE_F32 ? sizeof(float) : sizeof(std::uint16_t));
  return desc;
}

/// Begins a dense weight of the first type and numerics that the device takes. nullopt: it takes
/// none.
std::optional<std::uint64_t> begin_weight(OpenDevice& device, luna_weight_desc& desc) {
  for (std::uint32_t numerics = 0; numerics < 32; ++numerics) {
    if ((device.info().numerics >> numerics & 1U) == 0) continue;
    for (const std::uint32_t dtype : {LUNA_DTYPE_F32, LUNA_DTYPE_BF16, LUNA_DTYPE_F16}) {
      desc = dense_weight(desc.n_rows, desc.n_cols, dtype);
      std::uint64_t weight = 0;
      luna_err err = make_err();
      if (device.table().weight_begin(device.device(), &desc, numerics, &weight, &err) >= 0)
        return weight;
    }
  }
  return std::nullopt;
}

// Rows of a weight in pages that are read-only, and gone after the call.
void check_weights(CaseRun& run) {
  constexpr std::uint64_t kRows = 130;
  constexpr std::uint64_t kCols = 64;
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kBudgetBytes});
  if (device == nullptr) return;
  const luna_backend_if& table = device->table();
  luna_weight_desc desc{};
  desc.n_rows = kRows;
  desc.n_cols = kCols;
  run.phase("weight_begin");
  const std::optional<std::uint64_t> begun = begin_weight(*device, desc);
  if (!begun) return run.skip("it takes no dense weight of FP32, BF16 or FP16");
  const std::uint64_t weight = *begun;
  const std::uint64_t row_bytes = desc.row_bytes[LUNA_PLANE_VALUES];
  luna_err err = make_err();
  const auto rows_from = [&](std::uint64_t first, std::uint64_t n, const GuardedMemory& memory) {
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.first_row = first;
    rows.n_rows = n;
    rows.planes[LUNA_PLANE_VALUES] = memory.bytes().data();
    return rows;
  };
  const auto refused = [&](const char* what, std::uint64_t first, std::uint64_t n) {
    GuardedMemory memory(row_bytes);
    const luna_weight_rows rows = rows_from(first, n, memory);
    device->refuses(
        what, [&](luna_err* e) { return table.weight_rows(device->device(), weight, &rows, e); });
  };
  refused("a range that begins within 64 rows", 1, 1);
  refused("a range behind the last row", 192, 1);
  refused("a range that leaves the weight", 128, 64);
  for (std::uint64_t first = 0; first < kRows && !run.has_failed(); first += 64) {
    const std::uint64_t n = std::min<std::uint64_t>(64, kRows - first);
    GuardedMemory memory(n * row_bytes);
    memory.make_read_only();
    const luna_weight_rows rows = rows_from(first, n, memory);
    run.phase("weight_rows");
    if (table.weight_rows(device->device(), weight, &rows, &err) < 0)
      return run.fail("D1", "rows of a weight are refused: " + std::string(text_of(err)));
    memory.take_away();
  }
  run.phase("weight_end after the planes have gone");
  if (!run.has_failed() && table.weight_end(device->device(), weight, &err) < 0)
    run.fail("D1", "a whole weight is refused: " + std::string(text_of(err)));
  table.weight_free(device->device(), weight);
  table.weight_free(device->device(), UINT64_MAX);
}

void check_refusals(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto device = OpenDevice::open(run, *subject, {.memory_bytes = kBudgetBytes});
  if (device == nullptr) return;
  const luna_backend_if& table = device->table();
  void* const d = device->device();
  std::uint64_t number = 0;
  void* made = nullptr;
  device->refuses("a buffer of kind 77",
                  [&](luna_err* err) { return table.alloc(d, 77, 100, &number, nullptr, err); });
  device->refuses("a buffer of 2^63 bytes", [&](luna_err* err) {
    return table.alloc(d, LUNA_BUFFER_KV, std::uint64_t{1} << 63U, &number, nullptr, err);
  });
  luna_weight_desc desc = dense_weight(UINT64_MAX, UINT64_MAX, LUNA_DTYPE_F32);
  device->refuses("a weight of 2^64 rows",
                  [&](luna_err* err) { return table.weight_begin(d, &desc, 0, &number, err); });
  desc = dense_weight(64, 64, LUNA_DTYPE_F32);
  desc.klass = 99;
  device->refuses("a weight of an unknown class",
                  [&](luna_err* err) { return table.weight_begin(d, &desc, 0, &number, err); });
  device->refuses("the end of a weight that was not begun",
                  [&](luna_err* err) { return table.weight_end(d, UINT64_MAX, err); });
  luna_program program{};
  device->refuses("a program of size 0", [&](luna_err* err) {
    return table.compile(d, &program, nullptr, 0, &made, err);
  });
  program.struct_size = sizeof(program);
  program.n_ops = 1000;
  device->refuses("a program whose ops are missing", [&](luna_err* err) {
    return table.compile(d, &program, nullptr, 0, &made, err);
  });
  device->refuses("no program",
                  [&](luna_err* err) { return table.supports(d, nullptr, nullptr, err); });
  // Devices are counted until END.
  run.phase("device_info");
  luna_device_info info{};
  info.struct_size = sizeof(info);
  if (table.device_info(device->self(), UINT32_MAX, &info) != LUNA_END)
    run.fail("D2", "device_info() of device 2^32 - 1 is not LUNA_END");
}

constexpr const char* kKind = LUNA_KIND_BACKEND;
constexpr auto kCases = std::to_array<Case>({
    {"E.backend.budget", kKind, "U3", check_budget},
    {"E.backend.weights", kKind, "O2", check_weights},
    {"E.backend.refusals", kKind, "D2", check_refusals},
});

}  // namespace

std::span<const Case> backend_cases() {
  return kCases;
}

}  // namespace luna::check
