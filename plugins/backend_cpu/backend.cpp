// The CPU backend: devices are teams of bound threads with a share of the host's memory.
#include "executable.hpp"
#include "slice_service.hpp"
#include "weight_share.hpp"

#include <luna/backend.hpp>

#include <sys/sysinfo.h>

#include <cpuid.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace luna::cpu {
namespace {

constexpr std::size_t kWeightsMax = 1 << 16;  // the largest models have a few thousand tensors
constexpr std::size_t kBuffersMax = 1 << 10;  // three a model
constexpr std::uint32_t kThreadsMax = 256;
constexpr std::uint64_t kTouchStep = 4096;  // the smallest page
// A virtual machine may take a second or more a GiB to give pages: whoever waits for a buffer does
// not wait for more of them than these few milliseconds.
constexpr std::uint64_t kTouchedAtOnceMax = std::uint64_t{4} << 20;

constexpr luna_param kParams[] = {
    param(LUNA_TYPE_BOOL,
          "share_weights",
          "false",
          nullptr,
          nullptr,
          nullptr,
          "Weights that equal another device's in this process, to the byte, use its memory; each "
          "device's budget is charged all the same."),
};

class CpuDevice final : public SlicingDevice {
 public:
  CpuDevice(Host host, const luna_device_open& options, bool shares_weights)
      : shares_weights_(shares_weights),
        budget_(options.memory_bytes),
        weights_(kWeightsMax),
        buffers_(kBuffersMax),
        team_(options.n_threads, options.first_cpu, activity_),
        services_{host, &team_, &budget_, &buffers_, &weights_} {}

  Result<std::uint64_t> weight_bytes(const luna_weight_desc& desc,
                                     std::uint32_t numerics) override {
    LUNA_TRY(check_numerics(numerics));
    LUNA_TRY(const kernels::PackedForm form, plan(desc, numerics));
    return weight_bytes_of(desc, form);
  }
  Result<std::uint64_t> scratch_bytes(const luna_program& program) override {
    LUNA_TRY(check_numerics(program.numerics));
    return scratch_bytes_of(program, team_.n_threads());
  }
  Result<std::uint64_t> kv_block_bytes(const luna_kv_layout& layout) override {
    LUNA_TRY(check_kv_type(layout));
    return kv_block_bytes_of(layout);
  }
  Result<void> supports(const luna_program& program, std::uint32_t op_idx) override {
    LUNA_TRY(check_numerics(program.numerics));
    if (!kOpRules[program.ops[op_idx].op].defined)
      return Error{Code::unsupported, "the cpu backend does not have this op yet"};
    if (program.ops[op_idx].op == LUNA_OP_ATTEND) return check_kv_type(program.kv);
    return {};
  }

  Result<std::uint64_t> weight_begin(const luna_weight_desc& desc,
                                     std::uint32_t numerics) override {
    LUNA_TRY(const std::uint64_t bytes, weight_bytes(desc, numerics));
    auto weight = std::make_unique<Weight>();
    weight->desc = copy_record(desc);
    weight->numerics = numerics;
    LUNA_TRY(weight->form, plan(desc, numerics));
    LUNA_TRY(weight->memory, Reservation::make(&budget_, bytes, "weight"));
    LUNA_TRY(weight->packed, arena_.take(kernels::packed_bytes(weight->form)));
    if (weight->is_vector()) weight->vector.resize(desc.n_rows * desc.n_cols);
    touch_strips(*weight);
    return weights_.add(std::move(weight));
  }
  Result<void> weight_rows(std::uint64_t handle, const luna_weight_rows& rows) override {
    Weight* weight = weights_.find(handle);
    if (weight == nullptr) return unknown_weight(handle);
    LUNA_TRY(check_weight_rows(weight->desc, rows));
    return weight->load(rows);
  }
  Result<void> weight_end(std::uint64_t handle) override {
    Weight* weight = weights_.find(handle);
    if (weight == nullptr) return unknown_weight(handle);
    if (weight->n_rows_loaded != weight->desc.n_rows)
      return Error{Code::invalid_argument,
                   "weight_end: " + std::to_string(weight->n_rows_loaded) + " rows of " +
                       std::to_string(weight->desc.n_rows) + " were loaded"};
    if (shares_weights_) WeightShare::of_process().share(*weight);
    weight->is_complete = true;
    return {};
  }
  void weight_free(std::uint64_t handle) override { weights_.remove(handle); }

  Result<DeviceBuffer> alloc(std::uint32_t kind, std::uint64_t bytes) override {
    auto buffer = std::make_unique<Buffer>();
    LUNA_TRY(buffer->reservation, Reservation::make(&budget_, bytes, "buffer"));
    LUNA_TRY(buffer->memory, Mapping::make(bytes));
    buffer->kind = kind;
    buffer->bytes = bytes;
    std::byte* data = buffer->memory.data();
    if (kind == LUNA_BUFFER_KV || bytes > kTouchedAtOnceMax)
      buffer->populator.emplace(buffer->memory, team_.cpus(), activity_);
    else
      team_.run_and_wait([&](std::uint32_t thread) { touch(data, bytes, thread); });
    LUNA_TRY(const std::uint64_t handle, buffers_.add(std::move(buffer)));
    return DeviceBuffer{handle, kind == LUNA_BUFFER_OUT ? data : nullptr};
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

  Result<std::uint64_t> slice_message_bytes(const luna_program& program) override {
    LUNA_TRY(const SliceShape shape, sliced_shape(program));
    return cpu::slice_message_bytes(shape);
  }
  Result<std::uint64_t> slice_service_bytes(const luna_program& program) override {
    LUNA_TRY(const SliceShape shape, sliced_shape(program));
    return service_bytes_of(shape);
  }

  Result<std::unique_ptr<Executable>> compile(const luna_program& program,
                                              std::span<const std::uint64_t> weights) override {
    for (std::uint32_t i = 0; i < program.n_ops; ++i)
      if (Result<void> can = supports(program, i); !can)
        return can.error().in(op_name(program.ops[i].op));
    return CpuExecutable::make(program, weights, services_);
  }

 private:
  static Error unknown_weight(std::uint64_t handle) {
    return {Code::invalid_argument, "there is no weight " + std::to_string(handle)};
  }
  static Result<SliceShape> sliced_shape(const luna_program& program) {
    LUNA_TRY(check_kv_type(program.kv));
    const SliceShape shape = slice_shape_of(program);
    if (shape.n_heads != 0) return shape;
    return Error{Code::invalid_argument, "the program attends to nothing: it has no slices"};
  }
  Result<KvMemory> kv_memory(const luna_kv_part& part) const {
    LUNA_TRY(check_kv_type(*part.layout));
    const Buffer* buffer = buffers_.find(part.buffer);
    if (buffer == nullptr || buffer->kind != LUNA_BUFFER_KV)
      return Error{Code::invalid_argument, "there is no KV buffer " + std::to_string(part.buffer)};
    return KvMemory{buffer->memory.data(), buffer->bytes, kv_block_bytes_of(*part.layout)};
  }
  /// The packed form before an op says how K is cut; what is stored does not depend on that.
  static Result<kernels::PackedForm> plan(const luna_weight_desc& desc, std::uint32_t numerics) {
    return plan_weight(desc, linear_numerics(desc, desc.n_rows, numerics).segment, numerics);
  }
  /// Writes to each page of a thread's share of fresh, zeroed memory.
  void touch(std::byte* data, std::uint64_t bytes, std::uint32_t thread) const {
    const std::uint64_t n = team_.n_threads();
    const std::uint64_t last = bytes * (thread + 1) / n;
    for (std::uint64_t at = bytes * thread / n; at < last; at += kTouchStep)
      data[at] = std::byte{0};
  }
  /// Threads share weights by strips, so shares of the memory are shares of the strips.
  void touch_strips(const Weight& weight) {
    const std::uint64_t bytes = kernels::packed_bytes(weight.form);
    team_.run_and_wait([&](std::uint32_t thread) { touch(weight.packed.data, bytes, thread); });
  }

  const bool shares_weights_;
  MemoryBudget budget_;
  WeightArena arena_;
  TeamActivity activity_;
  HandleTable<Weight> weights_;
  HandleTable<Buffer> buffers_;
  ThreadTeam team_;
  DeviceServices services_;
};

std::string cpu_name() {
  char brand[49] = {};
  unsigned regs[4] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    if (__get_cpuid(0x80000002U + leaf, &regs[0], &regs[1], &regs[2], &regs[3]) == 0) return "x86";
    std::memcpy(brand + std::size_t{16} * leaf, regs, sizeof(regs));
  }
  const std::string name = brand;
  const std::size_t first = name.find_first_not_of(' ');
  const std::size_t last = name.find_last_not_of(' ');
  return first == std::string::npos ? "x86" : name.substr(first, last - first + 1);
}

/// Memory that the system can give without swapping; all of it if the system does not say.
std::uint64_t available_bytes(std::uint64_t total_bytes) {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return total_bytes;
  char line[128];
  unsigned long long kib = total_bytes / 1024;
  while (std::fgets(line, sizeof(line), file) != nullptr)
    if (std::sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
  std::fclose(file);
  return kib * 1024;
}

// A processor is cut into devices by configuration: each has threads and a budget of its own.
constexpr std::uint32_t kDevicesMax = 64;

class CpuBackend {
 public:
  using OpenDevice = CpuDevice;

  static Result<std::unique_ptr<CpuBackend>> create(Host host, const Settings& settings) {
    const char* why = nullptr;
    const char* const isa = std::getenv("LUNA_ISA");
    if (isa != nullptr && kernels::find_kernels(isa, &why) == nullptr)
      return Error{Code::unsupported, std::string("LUNA_ISA = ") + isa + ": " + why};
    return std::unique_ptr<CpuBackend>(new CpuBackend(host, settings.flag("share_weights")));
  }

  std::optional<luna_device_info> device_info(std::uint32_t index) {
    if (index >= kDevicesMax) return std::nullopt;
    luna_device_info info{};
    info.struct_size = sizeof(info);
    struct sysinfo memory {};
    if (sysinfo(&memory) == 0)
      info.memory_bytes_total = std::uint64_t{memory.totalram} * memory.mem_unit;
    info.memory_bytes_free = available_bytes(info.memory_bytes_total);
    info.n_threads_max = std::min(usable_threads(), kThreadsMax);
    info.numerics = 1U << LUNA_NUMERICS_I12 | 1U << LUNA_NUMERICS_I8 | 1U << LUNA_NUMERICS_BF16;
    info.kv_dtypes = 1U << LUNA_DTYPE_BF16 | 1U << LUNA_DTYPE_I8;
    std::snprintf(info.name, sizeof(info.name), "%s", cpu_name().c_str());
    std::snprintf(info.detail,
                  sizeof(info.detail),
                  "%s, %u threads",
                  kernels::select_kernels().name,
                  info.n_threads_max);
    return info;
  }

  Result<std::unique_ptr<Device>> open(const luna_device_open& options) {
    luna_device_open chosen = options;
    if (chosen.n_threads == 0) chosen.n_threads = usable_threads();
    if (chosen.n_threads > kThreadsMax)
      return Error{Code::invalid_argument,
                   "n_threads = " + std::to_string(chosen.n_threads) + ": must be in 0.." +
                       std::to_string(kThreadsMax)};
    return std::unique_ptr<Device>(new CpuDevice(host_, chosen, shares_weights_));
  }

 private:
  CpuBackend(Host host, bool shares_weights) : host_(host), shares_weights_(shares_weights) {}
  Host host_;
  bool shares_weights_;
};

constexpr luna_backend_if kTable = make_backend_table<CpuBackend>(kParams);

}  // namespace
}  // namespace luna::cpu

LUNA_DEFINE_PLUGIN("org.luna.backend.cpu",
                   "cpu",
                   "0.1.0",
                   "x86-64 CPUs: quantized weights in classes i12, i8 and bf16, BF16 or INT8 KV.",
                   LUNA_KIND_BACKEND,
                   luna::cpu::kTable)
