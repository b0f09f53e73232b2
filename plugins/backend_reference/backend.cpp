// The reference backend: one host device, one thread, FP32 throughout.
#include "executable.hpp"

#include <luna/backend.hpp>

#include <sys/sysinfo.h>

#include <thread>

namespace luna::reference {
namespace {

constexpr std::size_t kWeightsMax = 1 << 16;  // the largest models have a few thousand tensors
constexpr std::size_t kBuffersMax = 1 << 10;  // three a model

class ReferenceDevice final : public KvBlockDevice {
 public:
  ReferenceDevice(Host host, std::uint64_t memory_bytes)
      : budget_(memory_bytes),
        weights_(kWeightsMax),
        buffers_(kBuffersMax),
        services_{host, &queue_, &budget_, &buffers_, &weights_},
        thread_([this] { run(); }) {}
  ~ReferenceDevice() override {
    queue_.close();
    thread_.join();
  }

  Result<std::uint64_t> weight_bytes(const luna_weight_desc& desc, std::uint32_t) override {
    LUNA_TRY(Weight::check_supported(desc));
    return desc.n_rows * desc.n_cols * sizeof(float);
  }
  Result<std::uint64_t> scratch_bytes(const luna_program& program) override {
    return scratch_bytes_of(program);
  }
  Result<std::uint64_t> kv_block_bytes(const luna_kv_layout& layout) override {
    return kv_block_bytes_of(layout);
  }
  Result<void> supports(const luna_program& program, std::uint32_t op_idx) override {
    if (!kOpRules[program.ops[op_idx].op].defined)
      return Error{Code::unsupported, "the reference backend does not have this op yet"};
    return {};
  }

  Result<std::uint64_t> weight_begin(const luna_weight_desc& desc, std::uint32_t) override {
    LUNA_TRY(const std::uint64_t bytes, weight_bytes(desc, 0));
    auto weight = std::make_unique<Weight>();
    LUNA_TRY(weight->memory, Reservation::make(&budget_, bytes, "weight"));
    weight->desc = copy_record(desc);
    weight->values.resize(desc.n_rows * desc.n_cols);
    return weights_.add(std::move(weight));
  }
  Result<void> weight_rows(std::uint64_t handle, const luna_weight_rows& rows) override {
    Weight* weight = weights_.find(handle);
    if (weight == nullptr) return unknown_weight(handle);
    LUNA_TRY(check_weight_rows(weight->desc, rows));
    weight->load(rows);
    return {};
  }
  Result<void> weight_end(std::uint64_t handle) override {
    Weight* weight = weights_.find(handle);
    if (weight == nullptr) return unknown_weight(handle);
    if (weight->n_rows_loaded != weight->desc.n_rows)
      return Error{Code::invalid_argument,
                   "weight_end: " + std::to_string(weight->n_rows_loaded) + " rows of " +
                       std::to_string(weight->desc.n_rows) + " were loaded"};
    weight->is_complete = true;
    return {};
  }
  void weight_free(std::uint64_t handle) override { weights_.remove(handle); }

  Result<DeviceBuffer> alloc(std::uint32_t kind, std::uint64_t bytes) override {
    auto buffer = std::make_unique<Buffer>();
    LUNA_TRY(buffer->reservation, Reservation::make(&budget_, bytes, "buffer"));
    buffer->kind = kind;
    buffer->bytes = bytes;
    buffer->memory = std::make_unique<std::byte[]>(bytes);
    void* host = kind == LUNA_BUFFER_OUT ? buffer->memory.get() : nullptr;
    LUNA_TRY(const std::uint64_t handle, buffers_.add(std::move(buffer)));
    return DeviceBuffer{handle, host};
  }
  void free_buffer(std::uint64_t handle) override { buffers_.remove(handle); }

  Result<void> kv_export(const luna_kv_part& part, void* bytes) override {
    LUNA_TRY(const KvMemory memory, kv_memory(part));
    return KvCopier(memory, part).to(bytes);
  }
  Result<void> kv_import(const luna_kv_part& part, const void* bytes) override {
    LUNA_TRY(const KvMemory memory, kv_memory(part));
    return KvCopier(memory, part).from(bytes);
  }

  Result<std::unique_ptr<Executable>> compile(const luna_program& program,
                                              std::span<const std::uint64_t> weights) override {
    for (std::uint32_t i = 0; i < program.n_ops; ++i)
      if (Result<void> can = supports(program, i); !can)
        return can.error().in(op_name(program.ops[i].op));
    if (step_bounds(program).can_slice)
      return Error{Code::unsupported,
                   "slices: the reference backend attends to what lies on its device alone"};
    return ReferenceExecutable::make(program, weights, services_);
  }

 private:
  static Error unknown_weight(std::uint64_t handle) {
    return {Code::invalid_argument, "there is no weight " + std::to_string(handle)};
  }
  Result<KvMemory> kv_memory(const luna_kv_part& part) const {
    const Buffer* buffer = buffers_.find(part.buffer);
    if (buffer == nullptr || buffer->kind != LUNA_BUFFER_KV)
      return Error{Code::invalid_argument, "there is no KV buffer " + std::to_string(part.buffer)};
    return KvMemory{buffer->memory.get(), buffer->bytes, kv_block_bytes_of(*part.layout)};
  }
  void run() {
    Job job;
    for (;;) {
      const std::uint32_t seen = queue_.signal();
      if (queue_.pop(&job)) {
        job.executable->run(job.step);
      } else if (queue_.is_closed()) {
        return;
      } else {
        queue_.sleep(seen);
      }
    }
  }

  MemoryBudget budget_;
  HandleTable<Weight> weights_;
  HandleTable<Buffer> buffers_;
  StepQueue queue_;
  DeviceServices services_;
  std::thread thread_;  // last: it uses all of the above
};

// A processor is cut into devices by configuration: each has threads and a budget of its own.
constexpr std::uint32_t kDevicesMax = 64;

class ReferenceBackend {
 public:
  using OpenDevice = ReferenceDevice;

  static Result<std::unique_ptr<ReferenceBackend>> create(Host host, const Settings&) {
    return std::unique_ptr<ReferenceBackend>(new ReferenceBackend(host));
  }

  std::optional<luna_device_info> device_info(std::uint32_t index) {
    if (index >= kDevicesMax) return std::nullopt;
    luna_device_info info{};
    info.struct_size = sizeof(info);
    struct sysinfo memory {};
    if (sysinfo(&memory) == 0) {
      info.memory_bytes_total = std::uint64_t{memory.totalram} * memory.mem_unit;
      info.memory_bytes_free = std::uint64_t{memory.freeram} * memory.mem_unit;
    }
    info.n_threads_max = 1;
    info.numerics = (2U << LUNA_NUMERICS_BF16) - 1;   // any class, computed exactly
    info.kv_dtypes = (2U << LUNA_DTYPE_F8_E5M2) - 1;  // any type, kept as FP32
    copy_literal(info.name, "reference");
    copy_literal(info.detail, "FP32, one thread");
    return info;
  }
  Result<std::unique_ptr<Device>> open(const luna_device_open& options) {
    return std::unique_ptr<Device>(new ReferenceDevice(host_, options.memory_bytes));
  }

 private:
  explicit ReferenceBackend(Host host) : host_(host) {}
  Host host_;
};

constexpr luna_backend_if kTable = make_backend_table<ReferenceBackend>();

}  // namespace
}  // namespace luna::reference

LUNA_DEFINE_PLUGIN("org.luna.backend.reference",
                   "reference",
                   "0.1.0",
                   "The oracle: every op as one obvious FP32 function, on one thread.",
                   LUNA_KIND_BACKEND,
                   luna::reference::kTable)
