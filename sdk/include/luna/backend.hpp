// Writing a backend in C++: derive from Device and Executable, write a Backend class, and
// make_backend_table<Backend>() turns them into the C table. Building blocks that every backend
// needs (handles, memory budget, step checks) are in backend_blocks.hpp.
//
// Devices whose KV blocks can be copied out and in derive from KvBlockDevice instead; the Backend
// class then says so: `using OpenDevice = MyDevice;`, what open() makes.
//
//   class MyBackend {
//    public:
//     static Result<std::unique_ptr<MyBackend>> create(Host, const Settings&);      // [main]
//     std::optional<luna_device_info> device_info(std::uint32_t index);             // [main]
//     Result<std::unique_ptr<Device>> open(const luna_device_open& options);        // [main]
//   };
//   constexpr luna_backend_if kTable = luna::make_backend_table<MyBackend>();
//   LUNA_DEFINE_PLUGIN("org.me.backend", "me", "1.0.0", "...", LUNA_KIND_BACKEND, kTable)
#pragma once

#include <luna/kv_blocks.hpp>
#include <luna/op_verify.hpp>
#include <luna/plugin.hpp>

#include <algorithm>
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace luna {

/// A compiled program. Owned by core through a handle; the device outlives it.
class Executable {
 public:
  Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  virtual ~Executable() = default;

  /// Starts a step and returns at once; on success `step.done` will be called exactly once, from
  /// any thread. Allocates nothing when it succeeds. [step]
  virtual Result<void> submit(const luna_step& step) = 0;
};

/// Answers the queries of one owner, on a thread of its own. Its end waits for that of its
/// communicator. A resource, owned by core through a handle.
class SliceService {
 public:
  SliceService() = default;
  SliceService(const SliceService&) = delete;
  SliceService& operator=(const SliceService&) = delete;
  virtual ~SliceService() = default;
};

/// A compiled program whose steps may have slices, and whose device serves those of others.
class SlicingExecutable : public Executable {
 public:
  virtual Result<std::unique_ptr<SliceService>> serve(std::uint64_t buffer,
                                                      const luna_comm& comm) = 0;  // [main]
};

/// Memory from Device::alloc().
struct DeviceBuffer {
  std::uint64_t handle = 0;
  void* host = nullptr;  ///< the address for LUNA_BUFFER_OUT, null for the others
};

/// An open device with its memory and threads. Programs it is given have passed verify(), weight
/// descriptions check_weight_desc(). Owned by core through a handle.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;  ///< stops the threads [main]

  virtual Result<std::uint64_t> weight_bytes(const luna_weight_desc& desc,
                                             std::uint32_t numerics) = 0;          // [any]
  virtual Result<std::uint64_t> scratch_bytes(const luna_program& program) = 0;    // [any]
  virtual Result<std::uint64_t> kv_block_bytes(const luna_kv_layout& layout) = 0;  // [any]
  /// Nothing if op `op_idx` can run here, else why not. [any]
  virtual Result<void> supports(const luna_program& program, std::uint32_t op_idx) = 0;

  virtual Result<std::uint64_t> weight_begin(const luna_weight_desc& desc,
                                             std::uint32_t numerics) = 0;  // [main]
  virtual Result<void> weight_rows(std::uint64_t weight,
                                   const luna_weight_rows& rows) = 0;  // [load]
  virtual Result<void> weight_end(std::uint64_t weight) = 0;           // [main]
  virtual void weight_free(std::uint64_t weight) = 0;                  // [main]

  virtual Result<DeviceBuffer> alloc(std::uint32_t kind, std::uint64_t bytes) = 0;  // [main]
  virtual void free_buffer(std::uint64_t buffer) = 0;                               // [main]

  virtual Result<std::unique_ptr<Executable>> compile(
      const luna_program& program, std::span<const std::uint64_t> weights) = 0;  // [main]
};

/// A device whose KV blocks can be copied out and in. Parts have passed check_kv_part().
class KvBlockDevice : public Device {
 public:
  virtual Result<void> kv_export(const luna_kv_part& part, void* bytes) = 0;        // [any]
  virtual Result<void> kv_import(const luna_kv_part& part, const void* bytes) = 0;  // [any]
};

/// A device that holds slices too: what it compiles are SlicingExecutables.
class SlicingDevice : public KvBlockDevice {
 public:
  virtual Result<std::uint64_t> slice_message_bytes(const luna_program& program) = 0;  // [any]
  virtual Result<std::uint64_t> slice_service_bytes(const luna_program& program) = 0;  // [any]
};

/// Whether Backend says that it opens devices of a kind.
template <typename Backend, typename Kind>
concept Opens = std::derived_from<typename Backend::OpenDevice, Kind>;

/// What a program from outside must be before anybody reads it.
inline Result<void> check_program(const luna_program* program) {
  if (program == nullptr) return Error{Code::invalid_argument, "the program is missing"};
  return verify(*program);
}

/// The C functions of luna.ext.kv_blocks/1.
struct KvBlockThunks {
  static KvBlockDevice& device_of(void* device) {
    return static_cast<KvBlockDevice&>(*static_cast<Device*>(device));
  }
  static luna_status kv_export(void* device,
                               const luna_kv_part* part,
                               void* bytes,
                               luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(check_kv_part(part, bytes));
      return device_of(device).kv_export(*part, bytes);
    });
  }
  static luna_status kv_import(void* device,
                               const luna_kv_part* part,
                               const void* bytes,
                               luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(check_kv_part(part, bytes));
      return device_of(device).kv_import(*part, bytes);
    });
  }
  static constexpr luna_kv_blocks_if kTable = {sizeof(luna_kv_blocks_if), 0, kv_export, kv_import};
};

/// The C functions of luna.ext.slices/1.
struct SliceThunks {
  static SlicingDevice& device_of(void* device) {
    return static_cast<SlicingDevice&>(*static_cast<Device*>(device));
  }
  static luna_status message_bytes(void* device,
                                   const luna_program* program,
                                   std::uint64_t* bytes,
                                   luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(check_program(program));
      LUNA_TRY(*bytes, device_of(device).slice_message_bytes(*program));
      return {};
    });
  }
  static luna_status service_bytes(void* device,
                                   const luna_program* program,
                                   std::uint64_t* bytes,
                                   luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(check_program(program));
      LUNA_TRY(*bytes, device_of(device).slice_service_bytes(*program));
      return {};
    });
  }
  static luna_status serve(void* executable,
                           std::uint64_t buffer,
                           const luna_comm* comm,
                           void** service,
                           luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (!LUNA_HAS(comm, luna_comm, all_reduce) || service == nullptr)
        return Error{Code::invalid_argument, "serve: its communicator is missing"};
      auto& slicing = static_cast<SlicingExecutable&>(*static_cast<Executable*>(executable));
      LUNA_TRY(std::unique_ptr<SliceService> made, slicing.serve(buffer, *comm));
      *service = made.release();
      return {};
    });
  }
  static void end_service(void* service) noexcept { delete static_cast<SliceService*>(service); }
  static constexpr luna_slices_if kTable = {
      sizeof(luna_slices_if), 0, message_bytes, service_bytes, serve, end_service};
};

template <typename Backend>
const void* backend_extension(void* /*self*/, const char* id) noexcept {
  if constexpr (Opens<Backend, KvBlockDevice>)
    if (std::string_view(id) == LUNA_EXT_KV_BLOCKS) return &KvBlockThunks::kTable;
  if constexpr (Opens<Backend, SlicingDevice>)
    if (std::string_view(id) == LUNA_EXT_SLICES) return &SliceThunks::kTable;
  return nullptr;
}

/// The C functions of a backend: checks of the border, then the C++ method, behind a fence.
template <typename Backend>
struct BackendThunks {
  static Device& device_of(void* device) { return *static_cast<Device*>(device); }

  /// Runs `call`, which returns Result<T>, and stores its value.
  template <typename T, typename Call>
  static luna_status store(T* to, luna_err* err, Call&& call) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (to == nullptr) return Error{Code::invalid_argument, "no place for the answer"};
      LUNA_TRY(*to, call());
      return {};
    });
  }

  static luna_status device_info(void* self, std::uint32_t i, luna_device_info* info) noexcept {
    return fenced(nullptr, [&]() -> luna_status {
      if (!LUNA_HAS(info, luna_device_info, detail)) return LUNA_INVALID_ARGUMENT;
      const std::optional<luna_device_info> found = static_cast<Backend*>(self)->device_info(i);
      if (!found) return LUNA_END;
      fill_record(info, *found);
      return LUNA_OK;
    });
  }
  static luna_status open(void* self,
                          const luna_device_open* options,
                          void** device,
                          luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (!LUNA_HAS(options, luna_device_open, first_cpu) || device == nullptr)
        return Error{Code::invalid_argument, "open: its options are incomplete"};
      LUNA_TRY(std::unique_ptr<Device> made, static_cast<Backend*>(self)->open(*options));
      *device = made.release();
      return {};
    });
  }
  static void close(void* device) noexcept { delete static_cast<Device*>(device); }

  static luna_status weight_bytes(void* device,
                                  const luna_weight_desc* desc,
                                  std::uint32_t numerics,
                                  std::uint64_t* bytes,
                                  luna_err* err) noexcept {
    return store(bytes, err, [&]() -> Result<std::uint64_t> {
      LUNA_TRY(check_weight_desc(desc));
      return device_of(device).weight_bytes(*desc, numerics);
    });
  }
  static luna_status scratch_bytes(void* device,
                                   const luna_program* program,
                                   std::uint64_t* bytes,
                                   luna_err* err) noexcept {
    return store(bytes, err, [&]() -> Result<std::uint64_t> {
      LUNA_TRY(check_program(program));
      return device_of(device).scratch_bytes(*program);
    });
  }
  static luna_status kv_block_bytes(void* device,
                                    const luna_kv_layout* layout,
                                    std::uint64_t* bytes,
                                    luna_err* err) noexcept {
    return store(bytes, err, [&]() -> Result<std::uint64_t> {
      LUNA_TRY(check_kv_layout(layout));
      return device_of(device).kv_block_bytes(*layout);
    });
  }
  static luna_status supports(void* device,
                              const luna_program* program,
                              std::uint8_t* per_op,
                              luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(check_program(program));
      Result<void> answer;
      for (std::uint32_t i = 0; i < program->n_ops; ++i) {
        Result<void> can = device_of(device).supports(*program, i);
        if (per_op != nullptr) per_op[i] = can ? 1 : 0;
        if (!can && answer)
          answer = can.error().in("op " + std::to_string(i) + " (" +
                                  std::string(op_name(program->ops[i].op)) + ")");
      }
      return answer;
    });
  }

  static luna_status weight_begin(void* device,
                                  const luna_weight_desc* desc,
                                  std::uint32_t numerics,
                                  std::uint64_t* weight,
                                  luna_err* err) noexcept {
    return store(weight, err, [&]() -> Result<std::uint64_t> {
      LUNA_TRY(check_weight_desc(desc));
      return device_of(device).weight_begin(*desc, numerics);
    });
  }
  static luna_status weight_rows(void* device,
                                 std::uint64_t weight,
                                 const luna_weight_rows* rows,
                                 luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (!LUNA_HAS(rows, luna_weight_rows, planes))
        return Error{Code::invalid_argument, "weight_rows: the range is incomplete"};
      return device_of(device).weight_rows(weight, *rows);
    });
  }
  static luna_status weight_end(void* device, std::uint64_t weight, luna_err* err) noexcept {
    return fenced(err, [&] { return device_of(device).weight_end(weight); });
  }
  static void weight_free(void* device, std::uint64_t weight) noexcept {
    fenced(nullptr, [&]() -> luna_status {
      device_of(device).weight_free(weight);
      return LUNA_OK;
    });
  }

  // NOLINTNEXTLINE(readability-function-size): the ABI's signature
  static luna_status alloc(void* device,
                           std::uint32_t kind,
                           std::uint64_t bytes,
                           std::uint64_t* buffer,
                           void** host,
                           luna_err* err) noexcept {
    return store(buffer, err, [&]() -> Result<std::uint64_t> {
      if (kind != LUNA_BUFFER_KV && kind != LUNA_BUFFER_OUT)
        return Error{Code::invalid_argument, "alloc: unknown kind " + std::to_string(kind)};
      LUNA_TRY(const DeviceBuffer made, device_of(device).alloc(kind, bytes));
      if (host != nullptr) *host = made.host;
      return made.handle;
    });
  }
  static void free_buffer(void* device, std::uint64_t buffer) noexcept {
    fenced(nullptr, [&]() -> luna_status {
      device_of(device).free_buffer(buffer);
      return LUNA_OK;
    });
  }

  // NOLINTNEXTLINE(readability-function-size): the ABI's signature
  static luna_status compile(void* device,
                             const luna_program* program,
                             const std::uint64_t* weights,
                             std::uint32_t n_weights,
                             void** executable,
                             luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (executable == nullptr || (weights == nullptr && n_weights != 0))
        return Error{Code::invalid_argument, "compile: arguments are missing"};
      LUNA_TRY(check_program(program));
      for (std::uint32_t i = 0; i < program->n_slots; ++i) {
        const luna_slot& slot = program->slots[i];
        if (slot.kind == LUNA_SLOT_WEIGHT && slot.index >= n_weights)
          return Error{Code::invalid_argument,
                       "slot " + std::to_string(i) + " is weight " + std::to_string(slot.index) +
                           " of " + std::to_string(n_weights)};
      }
      LUNA_TRY(std::unique_ptr<Executable> made,
               device_of(device).compile(*program, std::span(weights, n_weights)));
      *executable = made.release();
      return {};
    });
  }
  static void release(void* executable) noexcept { delete static_cast<Executable*>(executable); }
  static luna_status submit(void* executable, const luna_step* step, luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      if (!LUNA_HAS(step, luna_step, done_context) || step->done == nullptr)
        return Error{Code::invalid_argument, "submit: the step is incomplete"};
      return static_cast<Executable*>(executable)->submit(*step);
    });
  }
};

/// The backend table of class Backend; `params` are the settings it takes.
template <typename Backend>
constexpr luna_backend_if make_backend_table(std::span<const luna_param> params = {}) {
  using Thunks = BackendThunks<Backend>;
  luna_backend_if table{};
  table.head = make_head<Backend, luna_backend_if>(params);
  table.head.ext = backend_extension<Backend>;
  table.device_info = Thunks::device_info;
  table.open = Thunks::open;
  table.close = Thunks::close;
  table.weight_bytes = Thunks::weight_bytes;
  table.scratch_bytes = Thunks::scratch_bytes;
  table.kv_block_bytes = Thunks::kv_block_bytes;
  table.supports = Thunks::supports;
  table.weight_begin = Thunks::weight_begin;
  table.weight_rows = Thunks::weight_rows;
  table.weight_end = Thunks::weight_end;
  table.weight_free = Thunks::weight_free;
  table.alloc = Thunks::alloc;
  table.free_buffer = Thunks::free_buffer;
  table.compile = Thunks::compile;
  table.release = Thunks::release;
  table.submit = Thunks::submit;
  return table;
}

}  // namespace luna
