// The backend `reference` with one fault, chosen by the name that it is linked with: what a device
// may compute wrongly. Compiled once.
#include "zoo_descriptor.hpp"

#include <luna/backend.hpp>

// The backend is a whole plugin; here it is a part of one.
#undef LUNA_DEFINE_PLUGIN
#define LUNA_DEFINE_PLUGIN(...)
#include "plugins/backend_reference/backend.cpp"

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

using luna::reference::kTable;

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

std::uint32_t times(std::uint32_t bits, float factor) {
  return std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) * factor);
}

/// Changes one op's attributes as the fault wants it. odd: for steps of an odd number of rows.
void spoil(const luna_op& op, std::uint32_t* attrs, bool odd) {
  const bool varies = is("rounds_by_the_batch") && odd;
  switch (op.op) {
    case LUNA_OP_ATTEND:
      if (is("widens_the_window") && attrs[LUNA_ATTEND_WINDOW] != 0) ++attrs[LUNA_ATTEND_WINDOW];
      if (is("forgets_the_cap")) attrs[LUNA_ATTEND_SOFTCAP] = 0;
      if (varies) attrs[LUNA_ATTEND_SCALE] = times(attrs[LUNA_ATTEND_SCALE], 1.0F + 0x1p-14F);
      return;
    case LUNA_OP_ROPE:
      if (is("pairs_the_other_way")) attrs[LUNA_ROPE_STYLE] ^= 1U;
      return;
    case LUNA_OP_RMS_NORM:
      if (is("adds_no_eps")) attrs[LUNA_RMS_NORM_EPS] = 0;
      if (varies) attrs[LUNA_RMS_NORM_EPS] = times(attrs[LUNA_RMS_NORM_EPS], 1.0F + 0x1p-14F);
      return;
    case LUNA_OP_SCALE:
      if (varies) attrs[LUNA_SCALE_FACTOR] = times(attrs[LUNA_SCALE_FACTOR], 1.0F + 0x1p-20F);
      return;
    case LUNA_OP_ACT_MUL:
      if (is("knows_one_activation")) attrs[LUNA_ACT_MUL_KIND] = LUNA_ACT_SILU;
      return;
    default:
      return;
  }
}

/// A program, and what runs it: for even and odd numbers of rows.
struct Spoilt {
  void* even = nullptr;
  void* odd = nullptr;
};

luna_status compile_spoilt(void* device,
                           const luna_program& program,
                           const std::uint64_t* weights,
                           std::uint32_t n_weights,
                           bool odd,
                           void** made,
                           luna_err* err) {
  luna_program own = program;
  std::vector<std::uint32_t> attrs(program.attrs, program.attrs + program.n_attrs);
  for (std::uint32_t i = 0; i < program.n_ops; ++i)
    spoil(program.ops[i], attrs.data() + program.ops[i].first_attr, odd);
  own.attrs = attrs.data();
  own.hash = luna::hash_program(own);
  return kTable.compile(device, &own, weights, n_weights, made, err);
}

luna_status compile(void* device,
                    const luna_program* program,
                    const std::uint64_t* weights,
                    std::uint32_t n_weights,
                    void** executable,
                    luna_err* err) {
  if (program == nullptr || luna::check_program(program).has_value() == false)
    return kTable.compile(device, program, weights, n_weights, executable, err);
  Spoilt made;
  luna_status status = compile_spoilt(device, *program, weights, n_weights, false, &made.even, err);
  if (status >= 0)
    status = compile_spoilt(device, *program, weights, n_weights, true, &made.odd, err);
  if (status >= 0) {
    *executable = new Spoilt(made);
  } else if (made.even != nullptr) {
    kTable.release(made.even);
  }
  return status;
}

void release(void* executable) {
  auto* const spoilt = static_cast<Spoilt*>(executable);
  kTable.release(spoilt->even);
  kTable.release(spoilt->odd);
  delete spoilt;
}

/// Output buffers by their ends, for what writes behind them.
std::map<std::uint64_t, unsigned char*>& ends() {
  static std::map<std::uint64_t, unsigned char*> all;
  return all;
}

struct Twice {
  void (*done)(void*, const luna_step_result*);
  void* context;
};

void call_twice(void* context, const luna_step_result* result) {
  const Twice twice = *static_cast<Twice*>(context);
  delete static_cast<Twice*>(context);
  twice.done(twice.context, result);
  twice.done(twice.context, result);
}

luna_status submit(void* executable, const luna_step* step, luna_err* err) {
  const auto& spoilt = *static_cast<Spoilt*>(executable);
  if (step == nullptr || step->struct_size < sizeof(luna_step))
    return kTable.submit(spoilt.even, step, err);
  luna_step own = *step;
  if (is("ends_steps_twice")) {
    own.done = call_twice;
    own.done_context = new Twice{step->done, step->done_context};
  }
  if (is("copies_no_blocks")) own.n_kv_copies = 0;
  if (is("writes_behind_its_rows"))
    for (std::uint32_t i = 0; i < step->n_binds; ++i)
      if (const auto end = ends().find(step->binds[i].buffer); end != ends().end())
        end->second[-1] = 0;
  const luna_status status =
      kTable.submit(step->n_rows % 2 == 0 ? spoilt.even : spoilt.odd, &own, err);
  if (status < 0 && is("ends_what_it_refuses")) {
    luna_step_result result{};
    result.struct_size = sizeof(result);
    result.message = "";
    step->done(step->done_context, &result);
  }
  return status < 0 && is("takes_any_step") ? LUNA_OK : status;
}

luna_status alloc(void* device,
                  std::uint32_t kind,
                  std::uint64_t bytes,
                  std::uint64_t* buffer,
                  void** host,
                  luna_err* err) {
  const luna_status status = kTable.alloc(device, kind, bytes, buffer, host, err);
  if (status == LUNA_EXHAUSTED && is("loses_what_it_refuses")) {
    std::uint64_t lost = 0;
    luna_err ignored = luna::make_err();
    kTable.alloc(device, LUNA_BUFFER_KV, 4096, &lost, nullptr, &ignored);
  }
  if (status == LUNA_EXHAUSTED && is("hides_that_it_is_full"))
    return luna::report(err, LUNA_INTERNAL, "something went wrong");
  if (status >= 0 && kind == LUNA_BUFFER_OUT)
    ends()[*buffer] = static_cast<unsigned char*>(*host) + bytes;
  return status;
}

luna_status scratch_bytes(void* device,
                          const luna_program* program,
                          std::uint64_t* bytes,
                          luna_err* err) {
  const luna_status status = kTable.scratch_bytes(device, program, bytes, err);
  // A program is compiled twice here.
  if (status >= 0 && !is("promises_too_little")) *bytes *= 2;
  return status;
}

luna_status weight_begin(void* device,
                         const luna_weight_desc* desc,
                         std::uint32_t numerics,
                         std::uint64_t* weight,
                         luna_err* err) {
  luna_weight_desc own = *desc;
  if (is("misses_the_zero") && own.klass == LUNA_WEIGHT_AFFINE && own.has_offset == 0)
    own.zero += 1.0F;
  return kTable.weight_begin(device, &own, numerics, weight, err);
}

luna_status kv_import(void* device, const luna_kv_part* part, const void* bytes, luna_err* err) {
  luna_kv_part own = *part;
  std::vector<std::uint32_t> blocks(part->blocks, part->blocks + part->n_blocks);
  // The first two change places.
  if (is("mixes_blocks_up") && blocks.size() > 1) std::swap(blocks[0], blocks[1]);
  own.blocks = blocks.data();
  return luna::KvBlockThunks::kTable.kv_import(device, &own, bytes, err);
}

const void* ext(void* self, const char* id) {
  static constexpr luna_kv_blocks_if kBlocks = {
      sizeof(luna_kv_blocks_if), 0, luna::KvBlockThunks::kv_export, kv_import};
  if (std::string_view(id) == LUNA_EXT_KV_BLOCKS) return &kBlocks;
  return kTable.head.ext(self, id);
}

const luna_backend_if& device_table() {
  static const luna_backend_if table = [] {
    luna_backend_if made = kTable;
    made.head.ext = ext;
    made.compile = compile;
    made.release = release;
    made.submit = submit;
    made.alloc = alloc;
    made.weight_begin = weight_begin;
    made.scratch_bytes = scratch_bytes;
    return made;
  }();
  return table;
}

const void* table(const char* kind) {
  return std::string_view(kind) == LUNA_KIND_BACKEND ? &device_table() : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t /*minor*/) {
  static constexpr luna_plugin kPlugin =
      zoo_plugin("A backend that computes, with one fault.", table);
  return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;
}
