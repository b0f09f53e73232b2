// The backend of the sdk's template, with one fault, chosen by the name that it is linked with.
// Compiled once.
#include "zoo_descriptor.hpp"

#include <luna/backend.hpp>

// The template is a whole plugin; here it is a part of one.
#undef LUNA_DEFINE_PLUGIN
#define LUNA_DEFINE_PLUGIN(...)
#include "zoo/backend_of_template.hpp"

#include <cstdint>
#include <string_view>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

luna_status device_info(void* self, std::uint32_t i, luna_device_info* info) {
  return kTable.device_info(self, is("endless_devices") ? 0 : i, info);
}

luna_status open(void* self, const luna_device_open* options, void** device, luna_err* err) {
  luna_device_open own = *options;
  if (is("ignores_its_budget")) own.memory_bytes *= 100;
  return kTable.open(self, &own, device, err);
}

luna_status alloc(void* device,
                  std::uint32_t kind,
                  std::uint64_t bytes,
                  std::uint64_t* buffer,
                  void** host,
                  luna_err* err) {
  const bool is_known = kind == LUNA_BUFFER_KV || kind == LUNA_BUFFER_OUT;
  if (is("takes_any_buffer") && !is_known) kind = LUNA_BUFFER_KV;
  return kTable.alloc(device, kind, bytes, buffer, host, err);
}

void free_buffer(void* device, std::uint64_t buffer) {
  if (!is("keeps_buffers")) kTable.free_buffer(device, buffer);
}

luna_status weight_rows(void* device,
                        std::uint64_t weight,
                        const luna_weight_rows* rows,
                        luna_err* err) {
  if (is("writes_planes")) *static_cast<volatile float*>(rows->planes[LUNA_PLANE_VALUES]) = 0.0F;
  const luna_status status = kTable.weight_rows(device, weight, rows, err);
  return is("takes_any_rows") ? LUNA_OK : status;
}

luna_status supports(void* device,
                     const luna_program* program,
                     std::uint8_t* per_op,
                     luna_err* err) {
  if (!is("says_it_can")) return kTable.supports(device, program, per_op, err);
  for (std::uint32_t i = 0; program != nullptr && i < program->n_ops; ++i)
    per_op[i] = 1;
  return program != nullptr ? LUNA_OK : luna::report(err, LUNA_INVALID_ARGUMENT, "no program");
}

const luna_backend_if& backend() {
  static const luna_backend_if table = [] {
    luna_backend_if made = kTable;
    made.device_info = device_info;
    made.open = open;
    made.alloc = alloc;
    made.free_buffer = free_buffer;
    made.weight_rows = weight_rows;
    made.supports = supports;
    return made;
  }();
  return table;
}

const void* table(const char* kind) {
  return std::string_view(kind) == LUNA_KIND_BACKEND ? &backend() : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t /*minor*/) {
  static constexpr luna_plugin kPlugin = zoo_plugin("A backend with one fault.", table);
  return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;
}
