// Drives a backend plugin through its C table alone, as core does: loads the shared library, hands
// over weights, compiles programs, runs steps and waits for them.
#pragma once

#include "support/test_seed.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/float16.hpp>
#include <luna/op_program.hpp>
#include <luna/plugin.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <dlfcn.h>
#include <random>
#include <string>
#include <vector>

namespace luna::test {

/// A host without services: logs nowhere, loads on the calling thread.
inline const luna_host* test_host() {
  static const luna_host host = {
      sizeof(luna_host),
      LUNA_ABI_MINOR,
      "luna-test",
      "0",
      [](const luna_host*, std::int32_t, luna_str) {},
      [](const luna_host*) -> std::uint64_t {
        return static_cast<std::uint64_t>(
            std::chrono::steady_clock::now().time_since_epoch().count());
      },
      [](const luna_host*, std::uint64_t) -> std::uint64_t { return 4; },
      [](const luna_host*, std::uint32_t n, void (*fn)(void*, std::uint32_t), void* arg) {
        for (std::uint32_t i = 0; i < n; ++i)
          fn(arg, i);
        return luna_status{LUNA_OK};
      },
      [](const luna_host*, const char*) -> const void* { return nullptr; }};
  return &host;
}

/// The table of a shipped backend: "reference" or "cpu". The library stays loaded.
inline const luna_backend_if* backend_table(const std::string& name) {
  const std::string path = std::string(LUNA_PLUGIN_DIR) + "/backend_" + name + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    ADD_FAILURE() << dlerror();
    std::abort();
  }
  using Query = const luna_plugin* (*)(std::uint32_t, std::uint32_t);
  const auto query = reinterpret_cast<Query>(dlsym(library, "luna_plugin_query"));
  const luna_plugin* plugin = query(LUNA_ABI_MAJOR, LUNA_ABI_MINOR);
  return static_cast<const luna_backend_if*>(plugin->table(LUNA_KIND_BACKEND));
}

// ---- Weights ------------------------------------------------------------------------------------

/// A weight in the canonical layout, in host memory.
struct HostWeight {
  luna_weight_desc desc{};
  std::vector<std::byte> planes[LUNA_N_PLANES];

  void allocate() {
    const auto bytes = plane_row_bytes(desc);
    for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p) {
      desc.row_bytes[p] = bytes[p];
      planes[p].assign(bytes[p] * desc.n_rows, std::byte{0});
    }
  }
  template <typename T, typename Make>
  void fill(std::uint32_t plane, Make&& make) {
    auto* values = reinterpret_cast<T*>(planes[plane].data());
    for (std::size_t i = 0; i < planes[plane].size() / sizeof(T); ++i)
      values[i] = make();
  }
};

/// What a quantized weight looks like; `group` 0: dense of `dtype`.
struct WeightKind {
  std::uint32_t bits = 4;
  std::uint32_t group = 32;
  std::uint32_t super = 0;
  bool has_offset = true;
  bool code_book = false;
  std::uint32_t dtype = LUNA_DTYPE_F32;
};

/// Scales as files hold them: FP16 values.
inline float random_f16(std::mt19937_64& rng, float low, float high) {
  return f16_to_f32(f32_to_f16(std::uniform_real_distribution<float>(low, high)(rng)));
}

inline HostWeight random_weight(std::mt19937_64& rng,
                                std::uint64_t n_rows,
                                std::uint64_t n_cols,
                                const WeightKind& kind) {
  HostWeight w;
  w.desc.struct_size = sizeof(w.desc);
  w.desc.n_rows = n_rows;
  w.desc.n_cols = n_cols;
  const float size = 1.0F / std::sqrt(static_cast<float>(n_cols));
  if (kind.group == 0) {
    w.desc.klass = LUNA_WEIGHT_DENSE;
    w.desc.dtype = kind.dtype;
    w.allocate();
    std::normal_distribution<float> normal(0.0F, size);
    if (kind.dtype == LUNA_DTYPE_F32)
      w.fill<float>(LUNA_PLANE_VALUES, [&] { return normal(rng); });
    else
      w.fill<std::uint16_t>(LUNA_PLANE_VALUES, [&] {
        return kind.dtype == LUNA_DTYPE_F16 ? f32_to_f16(normal(rng)) : f32_to_bf16(normal(rng));
      });
    return w;
  }
  w.desc.klass = kind.code_book ? LUNA_WEIGHT_LUT : LUNA_WEIGHT_AFFINE;
  w.desc.bits = kind.bits;
  w.desc.group = kind.group;
  w.desc.super = kind.super;
  w.desc.has_offset = kind.has_offset ? 1 : 0;
  const auto n_codes = 1U << kind.bits;
  w.desc.zero = kind.has_offset || kind.code_book ? 0.0F : static_cast<float>(n_codes / 2);
  for (int i = 0; i < 16; ++i)
    w.desc.lut[i] = kind.code_book ? static_cast<float>(i * i - 100) : 0.0F;
  w.allocate();
  const float step = size * 3.0F / static_cast<float>(kind.code_book ? 128 : n_codes / 2);
  w.fill<std::uint8_t>(LUNA_PLANE_CODES,
                       [&] { return static_cast<std::uint8_t>(rng() % n_codes); });
  w.fill<float>(LUNA_PLANE_SCALE, [&] { return random_f16(rng, 0.2F * step, step); });
  w.fill<float>(LUNA_PLANE_OFFSET, [&] { return random_f16(rng, -2 * size, 0.0F); });
  w.fill<std::int8_t>(LUNA_PLANE_SUB_SCALE,
                      [&] { return static_cast<std::int8_t>(1 + rng() % 60); });
  w.fill<std::int8_t>(LUNA_PLANE_SUB_OFFSET, [&] { return static_cast<std::int8_t>(rng() % 60); });
  w.fill<float>(LUNA_PLANE_SUPER_SCALE,
                [&] { return random_f16(rng, 0.2F * step / 60, step / 60); });
  w.fill<float>(LUNA_PLANE_SUPER_OFFSET, [&] { return random_f16(rng, -size / 30, 0.0F); });
  return w;
}

/// A norm's weight: near one.
inline HostWeight random_vector(std::mt19937_64& rng, std::uint64_t n) {
  HostWeight w = random_weight(rng, 1, n, {.group = 0});
  w.fill<float>(LUNA_PLANE_VALUES,
                [&] { return std::uniform_real_distribution<float>(0.5F, 1.5F)(rng); });
  return w;
}

// ---- Steps --------------------------------------------------------------------------------------

/// Inputs of one step; sequences are appended.
struct StepInput {
  std::vector<std::uint32_t> token_ids, positions, seq_first_row = {0}, tables;
  std::vector<std::uint32_t> out_rows, out_flags;
  std::vector<luna_kv_copy> kv_copies;
  std::vector<luna_seq_prune> seq_prunes;  // empty, or one a sequence
  std::vector<luna_slice> slices;          // ascending
  std::uint64_t* slice_masses = nullptr;
  std::uint32_t table_stride = 0;

  explicit StepInput(std::uint32_t stride) : table_stride(stride) {}

  /// Appends rows of one sequence; every row of it is an output row unless `wants_output` is false.
  void add(std::span<const std::uint32_t> tokens,
           std::uint32_t first_position,
           std::span<const std::uint32_t> blocks,
           bool wants_output = true) {
    for (std::uint32_t i = 0; i < tokens.size(); ++i) {
      if (wants_output) {
        out_rows.push_back(static_cast<std::uint32_t>(token_ids.size()));
        out_flags.push_back(LUNA_OUT_LOGITS | LUNA_OUT_CANDIDATES);
      }
      token_ids.push_back(tokens[i]);
      positions.push_back(first_position + i);
    }
    seq_first_row.push_back(static_cast<std::uint32_t>(token_ids.size()));
    tables.insert(tables.end(), blocks.begin(), blocks.end());
    tables.resize(table_stride * (seq_first_row.size() - 1));
  }
};

/// What a finished step answered.
struct StepAnswer {
  luna_status status = LUNA_INTERNAL;
  std::string text;
  std::uint64_t busy_ns = 0;
};

/// A compiled program with its KV and output buffers. A resource; the device outlives it.
class TestProgram;

/// An open device. A resource.
class TestDevice {
 public:
  struct Setup {
    std::uint32_t n_threads = 1;
    std::uint64_t memory_bytes = std::uint64_t{1} << 32;
    bool shares_weights = false;  ///< a setting of the cpu backend
  };

  explicit TestDevice(const std::string& backend,
                      std::uint32_t n_threads = 1,
                      std::uint64_t memory_bytes = std::uint64_t{1} << 32)
      : TestDevice(backend, Setup{n_threads, memory_bytes, false}) {}
  TestDevice(const std::string& backend, const Setup& setup) : table_(backend_table(backend)) {
    luna_err err = make_err();
    luna_kv shares{};
    shares.key = to_abi("share_weights");
    shares.type = LUNA_TYPE_BOOL;
    shares.i = setup.shares_weights ? 1 : 0;
    EXPECT_EQ(table_->head.create(test_host(), &shares, 1, &self_, &err), LUNA_OK) << err.text;
    luna_device_open options{};
    options.struct_size = sizeof(options);
    options.memory_bytes = setup.memory_bytes;
    options.n_threads = setup.n_threads;
    EXPECT_EQ(table_->open(self_, &options, &device_, &err), LUNA_OK) << err.text;
  }
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;
  ~TestDevice() {
    for (const std::uint64_t weight : weights_)
      table_->weight_free(device_, weight);
    table_->close(device_);
    table_->head.destroy(self_);
  }

  /// Loads a weight in two ranges (the first a multiple of 64 rows) and keeps its handle.
  Result<std::uint64_t> load(const HostWeight& w, std::uint32_t numerics = LUNA_NUMERICS_I12) {
    luna_err err = make_err();
    std::uint64_t handle = 0;
    LUNA_TRY(to_result(
        table_->weight_begin(device_, &w.desc, numerics, &handle, &err), err, "weight_begin"));
    weights_.push_back(handle);
    const std::uint64_t half = w.desc.n_rows / 128 * 64;
    for (const auto& [first, n] :
         {std::pair{std::uint64_t{0}, half}, std::pair{half, w.desc.n_rows - half}}) {
      if (n == 0) continue;
      luna_weight_rows rows{};
      rows.struct_size = sizeof(rows);
      rows.first_row = first;
      rows.n_rows = n;
      for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p)
        if (w.desc.row_bytes[p] != 0)
          rows.planes[p] = const_cast<std::byte*>(w.planes[p].data()) + first * w.desc.row_bytes[p];
      LUNA_TRY(to_result(table_->weight_rows(device_, handle, &rows, &err), err, "weight_rows"));
    }
    LUNA_TRY(to_result(table_->weight_end(device_, handle, &err), err, "weight_end"));
    return handle;
  }
  Result<std::vector<std::uint64_t>> load_all(const std::vector<HostWeight>& weights,
                                              std::uint32_t numerics = LUNA_NUMERICS_I12) {
    std::vector<std::uint64_t> handles;
    for (const HostWeight& w : weights) {
      LUNA_TRY(const std::uint64_t handle, load(w, numerics));
      handles.push_back(handle);
    }
    return handles;
  }
  [[nodiscard]] const luna_backend_if& table() const { return *table_; }
  /// An extension of the backend, or null.
  template <typename Table>
  [[nodiscard]] const Table* extension(const char* id) const {
    return static_cast<const Table*>(table_->head.ext(self_, id));
  }
  [[nodiscard]] void* raw() const { return device_; }

 private:
  const luna_backend_if* table_;
  void* self_ = nullptr;
  void* device_ = nullptr;
  std::vector<std::uint64_t> weights_;
};

class TestProgram {
 public:
  static Result<std::unique_ptr<TestProgram>> compile(TestDevice& device,
                                                      const Program& program,
                                                      std::span<const std::uint64_t> weights,
                                                      std::uint32_t n_kv_blocks = 16) {
    std::unique_ptr<TestProgram> made(new TestProgram(device));
    const luna_program abi = program.abi();
    luna_err err = make_err();
    LUNA_TRY(to_result(device.table().compile(device.raw(),
                                              &abi,
                                              weights.data(),
                                              static_cast<std::uint32_t>(weights.size()),
                                              &made->executable_,
                                              &err),
                       err,
                       "compile"));
    if (const auto slot = program.bound_slot(LUNA_SLOT_KV)) {
      std::uint64_t block_bytes = 0;
      LUNA_TRY(to_result(device.table().kv_block_bytes(device.raw(), &abi.kv, &block_bytes, &err),
                         err,
                         "kv_block_bytes"));
      LUNA_TRY(made->bind(*slot, LUNA_BUFFER_KV, n_kv_blocks * block_bytes, nullptr));
    }
    if (const auto slot = program.bound_slot(LUNA_SLOT_LOGITS))
      LUNA_TRY(
          made->bind(*slot, LUNA_BUFFER_OUT, out_bytes(abi, LUNA_SLOT_LOGITS), &made->logits_));
    if (const auto slot = program.bound_slot(LUNA_SLOT_CANDIDATES))
      LUNA_TRY(made->bind(
          *slot, LUNA_BUFFER_OUT, out_bytes(abi, LUNA_SLOT_CANDIDATES), &made->candidates_));
    return made;
  }
  ~TestProgram() {
    if (executable_ != nullptr) device_.table().release(executable_);
    for (const auto* binds : {&binds_, &lane_binds_})
      for (const luna_bind& bind : *binds)
        if (bind.buffer != 0) device_.table().free_buffer(device_.raw(), bind.buffer);
  }
  void bind_comm(std::uint32_t slot, const void* comm) { binds_.push_back({slot, 0, 0, comm}); }

  /// What another step in flight needs for itself: the same bindings, with outputs of their own.
  struct Lane {
    std::vector<luna_bind> binds;
    void* logits = nullptr;
    void* candidates = nullptr;
  };
  Result<Lane> add_lane(const Program& program) {
    Lane lane{.binds = binds_, .logits = nullptr, .candidates = nullptr};
    const luna_program abi = program.abi();
    const auto replace = [&](std::uint32_t kind, void** host) -> Result<void> {
      const auto slot = program.bound_slot(kind);
      if (!slot) return {};
      luna_bind own{};
      own.slot = *slot;
      luna_err err = make_err();
      const std::uint64_t bytes = out_bytes(abi, kind);
      LUNA_TRY(to_result(
          device_.table().alloc(device_.raw(), LUNA_BUFFER_OUT, bytes, &own.buffer, host, &err),
          err,
          "alloc"));
      lane_binds_.push_back(own);
      for (luna_bind& bind : lane.binds)
        if (bind.slot == *slot) bind = own;
      return {};
    };
    LUNA_TRY(replace(LUNA_SLOT_LOGITS, &lane.logits));
    LUNA_TRY(replace(LUNA_SLOT_CANDIDATES, &lane.candidates));
    return lane;
  }

  /// Runs one step and waits for it.
  StepAnswer run(const StepInput& input) {
    StepAnswer answer;
    if (const Result<void> started = start(input); !started) {
      answer.status = static_cast<luna_status>(started.error().code());
      answer.text = started.error().message();
      return answer;
    }
    return wait();
  }
  Result<void> start(const StepInput& in) {
    done_.store(0);
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = static_cast<std::uint32_t>(in.token_ids.size());
    step.n_seqs = static_cast<std::uint32_t>(in.seq_first_row.size() - 1);
    step.n_out_rows = static_cast<std::uint32_t>(in.out_rows.size());
    step.token_ids = in.token_ids.data();
    step.positions = in.positions.data();
    step.seq_first_row = in.seq_first_row.data();
    step.block_tables = in.tables.data();
    step.block_table_stride = in.table_stride;
    step.n_kv_copies = static_cast<std::uint32_t>(in.kv_copies.size());
    step.kv_copies = in.kv_copies.data();
    step.seq_prunes = in.seq_prunes.empty() ? nullptr : in.seq_prunes.data();
    step.slices = in.slices.data();
    step.n_slices = static_cast<std::uint32_t>(in.slices.size());
    step.slice_masses = in.slice_masses;
    step.out_rows = in.out_rows.data();
    step.out_flags = in.out_flags.data();
    step.binds = binds_.data();
    step.n_binds = static_cast<std::uint32_t>(binds_.size());
    step.done = [](void* context, const luna_step_result* result) {
      auto* program = static_cast<TestProgram*>(context);
      program->answer_ = {result->status, result->message, result->busy_ns};
      program->done_.store(1);
      program->done_.notify_all();
    };
    step.done_context = this;
    luna_err err = make_err();
    return to_result(device_.table().submit(executable_, &step, &err), err, "submit");
  }
  StepAnswer wait() {
    done_.wait(0);
    return answer_;
  }
  [[nodiscard]] void* raw() const { return executable_; }
  [[nodiscard]] const std::vector<luna_bind>& binds() const { return binds_; }
  [[nodiscard]] const float* logits() const { return static_cast<const float*>(logits_); }
  [[nodiscard]] const std::uint32_t* candidates() const {
    return static_cast<const std::uint32_t*>(candidates_);
  }

 private:
  explicit TestProgram(TestDevice& device) : device_(device) {}
  Result<void> bind(std::uint32_t slot, std::uint32_t kind, std::uint64_t bytes, void** host) {
    luna_err err = make_err();
    luna_bind bind{};
    bind.slot = slot;
    LUNA_TRY(to_result(
        device_.table().alloc(device_.raw(), kind, bytes, &bind.buffer, host, &err), err, "alloc"));
    binds_.push_back(bind);
    return {};
  }

  TestDevice& device_;  // outlives the program
  void* executable_ = nullptr;
  std::vector<luna_bind> binds_;
  std::vector<luna_bind> lane_binds_;  // outputs of further lanes
  void* logits_ = nullptr;
  void* candidates_ = nullptr;
  std::atomic<std::uint32_t> done_{0};
  StepAnswer answer_;
};

}  // namespace luna::test
