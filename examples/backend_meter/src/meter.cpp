// A decorator: stands in front of another backend and says, when a program goes, how fast it ran:
// steps, rows, arithmetic and bytes of weights a second, by the numbers that the program itself
// states of its ops. Written on the C table, function by function.
#include <luna/abi/backend.h>
#include <luna/inner_plugin.hpp>
#include <luna/op_rules.hpp>

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>

namespace meter {

struct Backend {
  luna::Host host;
  luna::InnerPlugin inner;
  const luna_backend_if* table() const {
    return reinterpret_cast<const luna_backend_if*>(inner.head());
  }
  const luna_kv_blocks_if* kv_blocks() const {
    return static_cast<const luna_kv_blocks_if*>(
        inner.head()->ext(inner.self(), LUNA_EXT_KV_BLOCKS));
  }

  static luna::Result<std::unique_ptr<Backend>> create(luna::Host host,
                                                       const luna::Settings& settings) {
    LUNA_TRY(
        luna::InnerPlugin inner,
        luna::InnerPlugin::open(host,
                                "backend",
                                {LUNA_KIND_BACKEND, LUNA_SIZE_THROUGH(luna_backend_if, submit)},
                                settings.text("inner"),
                                {}));
    return std::unique_ptr<Backend>(new Backend{host, std::move(inner)});
  }
};

struct Device {
  const Backend* backend;
  void* inner;
};

// A step that runs: the copy of it that the inner backend has, and whom to tell.
struct Step {
  std::atomic<bool> is_used{false};
  luna_step step = {};
  struct Executable* owner = nullptr;
  void (*done)(void*, const luna_step_result*) = nullptr;
  void* done_context = nullptr;
};

struct Executable {
  const Device* device;
  void* inner = nullptr;
  // Of one step, by the program: of each row, of each row with logits, and whatever the rows.
  double flops_per_row = 0;
  double flops_per_out_row = 0;
  double weight_bytes = 0;

  std::atomic<std::uint64_t> n_steps{0};
  std::atomic<std::uint64_t> n_rows{0};
  std::atomic<std::uint64_t> n_out_rows{0};
  std::atomic<std::uint64_t> busy_ns{0};
  std::array<Step, 16> steps;  // a program has eight in flight at most

  void read(const luna_program& program) {
    for (std::uint32_t i = 0; i < program.n_ops; ++i) {
      const luna_op& op = program.ops[i];
      const luna::OpReader reader(program, op);
      const bool is_out = op.n_out > 0 && reader.out(0).dims[0] == LUNA_DIM_OUT_ROWS;
      (is_out ? flops_per_out_row : flops_per_row) += static_cast<double>(op.flops_per_row);
      weight_bytes += static_cast<double>(op.bytes_fixed);
    }
  }
  void log() const {
    if (n_steps == 0 || busy_ns == 0) return;
    const double ns = static_cast<double>(busy_ns);
    const double flops = flops_per_row * static_cast<double>(n_rows) +
                         flops_per_out_row * static_cast<double>(n_out_rows);
    char text[256];
    std::snprintf(text,
                  sizeof(text),
                  "%llu steps of %.1f rows: %.3f ms a step, %.1f GFLOP/s, %.2f GB/s of weights",
                  static_cast<unsigned long long>(n_steps),
                  static_cast<double>(n_rows) / static_cast<double>(n_steps),
                  ns * 1e-6 / static_cast<double>(n_steps),
                  flops / ns,
                  weight_bytes * static_cast<double>(n_steps) / ns);
    device->backend->host.log(LUNA_LOG_INFO, text);
  }
};

Device& device_of(void* device) {
  return *static_cast<Device*>(device);
}
const luna_backend_if& table_of(void* device) {
  return *device_of(device).backend->table();
}

luna_status device_info(void* self, std::uint32_t i, luna_device_info* info) noexcept {
  const Backend& own = *static_cast<Backend*>(self);
  return own.table()->device_info(own.inner.self(), i, info);
}
luna_status open(void* self,
                 const luna_device_open* options,
                 void** device,
                 luna_err* err) noexcept {
  return luna::fenced(err, [&]() -> luna_status {
    const Backend& own = *static_cast<Backend*>(self);
    auto made = std::make_unique<Device>(Device{&own, nullptr});
    const luna_status status = own.table()->open(own.inner.self(), options, &made->inner, err);
    if (status >= 0) *device = made.release();
    return status;
  });
}
void close(void* device) noexcept {
  table_of(device).close(device_of(device).inner);
  delete &device_of(device);
}

// What has nothing to do with steps goes through as it is: the function of that name, with the
// inner device in the place of ours.
template <auto Function, typename... Args>
auto forward(void* device, Args... args) noexcept {
  return (table_of(device).*Function)(device_of(device).inner, args...);
}

luna_status compile(void* device,
                    const luna_program* program,
                    const std::uint64_t* weights,
                    std::uint32_t n_weights,
                    void** executable,
                    luna_err* err) noexcept {
  return luna::fenced(err, [&]() -> luna_status {
    auto made = std::make_unique<Executable>();
    made->device = &device_of(device);
    const luna_status status = table_of(device).compile(
        device_of(device).inner, program, weights, n_weights, &made->inner, err);
    if (status < 0) return status;
    made->read(*program);  // the inner backend has checked it
    *executable = made.release();
    return status;
  });
}
void release(void* executable) noexcept {
  auto* const own = static_cast<Executable*>(executable);
  own->device->backend->table()->release(own->inner);
  own->log();
  delete own;
}

// Called by the inner backend, from any thread, when a step has ended.
void finish(void* context, const luna_step_result* result) noexcept {
  Step& step = *static_cast<Step*>(context);
  Executable& own = *step.owner;
  if (result->status == LUNA_OK) {
    own.n_steps.fetch_add(1, std::memory_order_relaxed);
    own.n_rows.fetch_add(step.step.n_rows, std::memory_order_relaxed);
    own.n_out_rows.fetch_add(step.step.n_out_rows, std::memory_order_relaxed);
    own.busy_ns.fetch_add(result->busy_ns, std::memory_order_relaxed);
  }
  auto* const done = step.done;
  void* const done_context = step.done_context;
  step.is_used.store(false, std::memory_order_release);
  done(done_context, result);
}
luna_status submit(void* executable, const luna_step* step, luna_err* err) noexcept {
  auto& own = *static_cast<Executable*>(executable);
  if (!LUNA_HAS(step, luna_step, done_context))
    return luna::report(err, LUNA_INVALID_ARGUMENT, "submit: the step is incomplete");
  for (Step& place : own.steps) {
    bool is_used = false;
    if (!place.is_used.compare_exchange_strong(is_used, true)) continue;
    place.step = luna::copy_record(*step);
    place.owner = &own;
    place.done = step->done;
    place.done_context = step->done_context;
    // Without somebody to tell, the step is refused by the inner backend.
    place.step.done = step->done == nullptr ? nullptr : finish;
    place.step.done_context = &place;
    const luna_status status = own.device->backend->table()->submit(own.inner, &place.step, err);
    if (status < 0) place.is_used.store(false, std::memory_order_release);
    return status;
  }
  return luna::report(err, LUNA_EXHAUSTED, "submit: sixteen steps of the program are in flight");
}

luna_status kv_export(void* device, const luna_kv_part* part, void* bytes, luna_err* err) noexcept {
  return device_of(device).backend->kv_blocks()->kv_export(
      device_of(device).inner, part, bytes, err);
}
luna_status kv_import(void* device,
                      const luna_kv_part* part,
                      const void* bytes,
                      luna_err* err) noexcept {
  return device_of(device).backend->kv_blocks()->kv_import(
      device_of(device).inner, part, bytes, err);
}
constexpr luna_kv_blocks_if kKvBlocks = {sizeof(luna_kv_blocks_if), 0, kv_export, kv_import};

// Extensions that are not forwarded are not offered: slices/1, whose services would run unseen.
const void* extension(void* self, const char* id) noexcept {
  if (std::string_view(id) != LUNA_EXT_KV_BLOCKS || self == nullptr) return nullptr;
  return static_cast<Backend*>(self)->kv_blocks() == nullptr ? nullptr : &kKvBlocks;
}

constexpr luna_param kParams[] = {
    luna::param(LUNA_TYPE_STRING,
                "inner",
                "cpu",
                nullptr,
                nullptr,
                nullptr,
                "the backend behind: its name, or its file (with a '/')")};

constexpr luna_backend_if make_table() {
  using T = luna_backend_if;
  luna_backend_if table = {};
  table.head = luna::make_head<Backend, luna_backend_if>(kParams);
  table.head.ext = extension;
  table.device_info = device_info;
  table.open = open;
  table.close = close;
  table.weight_bytes = forward<&T::weight_bytes>;
  table.scratch_bytes = forward<&T::scratch_bytes>;
  table.kv_block_bytes = forward<&T::kv_block_bytes>;
  table.supports = forward<&T::supports>;
  table.weight_begin = forward<&T::weight_begin>;
  table.weight_rows = forward<&T::weight_rows>;
  table.weight_end = forward<&T::weight_end>;
  table.weight_free = forward<&T::weight_free>;
  table.alloc = forward<&T::alloc>;
  table.free_buffer = forward<&T::free_buffer>;
  table.compile = compile;
  table.release = release;
  table.submit = submit;
  return table;
}
constexpr luna_backend_if kTable = make_table();

}  // namespace meter

LUNA_DEFINE_PLUGIN("org.luna.example.backend.meter",
                   "meter",
                   "0.1.0",
                   "Says how fast the programs of another backend ran.",
                   LUNA_KIND_BACKEND,
                   meter::kTable)
