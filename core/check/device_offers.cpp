#include "core/check/device_offers.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <array>

namespace luna::check {
namespace {

constexpr std::array kKvTypes = {LUNA_DTYPE_F32,
                                 LUNA_DTYPE_F16,
                                 LUNA_DTYPE_BF16,
                                 LUNA_DTYPE_I8,
                                 LUNA_DTYPE_F8_E4M3,
                                 LUNA_DTYPE_F8_E5M2};

std::vector<std::uint32_t> kv_types_of(const OpenDevice& device) {
  std::vector<std::uint32_t> types;
  for (const std::uint32_t dtype : kKvTypes)
    if ((device.info().kv_dtypes >> dtype & 1U) != 0) types.push_back(dtype);
  // One that has none computes without KV, or not at all.
  if (types.empty()) types.push_back(LUNA_DTYPE_BF16);
  return types;
}

}  // namespace

std::string class_name(std::uint32_t numerics) {
  constexpr std::array kNames = {"f32", "i12", "i8", "bf16"};
  return numerics < kNames.size() ? kNames[numerics] : "unknown";
}

std::vector<DeviceOffer> offers_of(OpenDevice& device, std::uint64_t seed) {
  std::vector<DeviceOffer> offers;
  for (std::uint32_t numerics = 0; numerics <= LUNA_NUMERICS_BF16; ++numerics) {
    if ((device.info().numerics >> numerics & 1U) == 0) continue;
    const std::vector<WeightForm> forms = device.forms_taken(numerics, seed);
    for (const std::uint32_t kv_dtype : kv_types_of(device))
      offers.push_back({numerics, kv_dtype, forms});
  }
  return offers;
}

std::uint32_t n_kv_types(const OpenDevice& device) {
  return static_cast<std::uint32_t>(kv_types_of(device).size());
}

bool is_first_kv(const OpenDevice& device, const DeviceOffer& offer) {
  return offer.kv_dtype == kv_types_of(device).front();
}

bool is_supported(OpenDevice& device, const luna_program& program) {
  std::vector<std::uint8_t> per_op(program.n_ops, 2);
  luna_err err = make_err();
  device.run().phase("supports");
  const luna_status status =
      device.table().supports(device.device(), &program, per_op.data(), &err);
  const bool has_all = std::ranges::all_of(per_op, [](std::uint8_t can) { return can == 1; });
  const bool is_told = std::ranges::all_of(per_op, [](std::uint8_t can) { return can <= 1; });
  if (!is_told || (status >= 0) != has_all)
    device.run().fail("D2", "supports() answers otherwise for the program than for its ops");
  if (status < 0 && err.text[0] == '\0') device.run().fail("E2", "supports() says no and not why");
  return status >= 0;
}

std::vector<const OpRow*> rows_offered(OpenDevice& device,
                                       const DeviceOffer& offer,
                                       bool (*is_wanted)(const OpRow&)) {
  std::vector<const OpRow*> rows;
  for (const OpRow& row : op_rows()) {
    if (!is_wanted(row)) continue;
    const Result<DrawnProgram> drawn = ProgramDraft::of_row(row, 1, offer);
    LUNA_VERIFY(drawn.has_value());
    if (is_supported(device, drawn->program.abi())) rows.push_back(&row);
  }
  return rows;
}

}  // namespace luna::check
