// A device with memory that computes nothing yet: supports() names the op that is missing, and the
// host refuses the placement with it. Add ops one by one: `luna plugins check` holds each that
// supports() takes against its formula, within the bounds of its formats.
#include <luna/backend.hpp>
#include <luna/backend_blocks.hpp>
#include <luna/quant.hpp>

#include <memory>
#include <string>
#include <vector>

namespace detail {

// Plain memory of the host, within the budget that the host gives.
struct Buffer {
  luna::Reservation reservation;
  std::unique_ptr<std::byte[]> bytes;
};

struct Weight {
  luna::Reservation reservation;
  luna_weight_desc desc = {};
  std::vector<float> values;  // [n_rows, n_cols]
};

}  // namespace detail

class @CLASS@Device final : public luna::Device {
 public:
  explicit @CLASS@Device(std::uint64_t memory_bytes) : budget_(memory_bytes) {}

  luna::Result<std::uint64_t> weight_bytes(const luna_weight_desc& desc, std::uint32_t) override {
    return desc.n_rows * desc.n_cols * sizeof(float);
  }
  luna::Result<std::uint64_t> scratch_bytes(const luna_program&) override { return std::uint64_t{0}; }
  luna::Result<std::uint64_t> kv_block_bytes(const luna_kv_layout& layout) override {
    return luna::Error{luna::Code::unsupported, "no attention yet, " +
                                                    std::to_string(layout.n_layers) +
                                                    " layers have no KV here"};
  }
  luna::Result<void> supports(const luna_program& program, std::uint32_t op_idx) override {
    return luna::Error{luna::Code::unsupported,
                       std::string(luna::op_name(program.ops[op_idx].op)) + " is not written yet"};
  }

  // A weight comes in ranges of rows, in canonical form; the planes are gone after each call.
  luna::Result<std::uint64_t> weight_begin(const luna_weight_desc& desc, std::uint32_t) override {
    auto weight = std::make_unique<detail::Weight>();
    LUNA_TRY(weight->reservation,
             luna::Reservation::make(&budget_, desc.n_rows * desc.n_cols * sizeof(float), "weight"));
    weight->desc = luna::copy_record(desc);
    weight->values.resize(desc.n_rows * desc.n_cols);
    return weights_.add(std::move(weight));
  }
  luna::Result<void> weight_rows(std::uint64_t handle, const luna_weight_rows& rows) override {
    detail::Weight* weight = weights_.find(handle);
    if (weight == nullptr) return luna::Error{luna::Code::invalid_argument, "no such weight"};
    LUNA_TRY(luna::check_weight_rows(weight->desc, rows));
    const luna::CanonicalRows canonical(weight->desc, rows);
    for (std::uint64_t row = 0; row < rows.n_rows; ++row)
      for (std::uint64_t col = 0; col < weight->desc.n_cols; ++col)
        weight->values[(rows.first_row + row) * weight->desc.n_cols + col] =
            canonical.value(row, col);
    return {};
  }
  luna::Result<void> weight_end(std::uint64_t handle) override {
    if (weights_.find(handle) != nullptr) return {};
    return luna::Error{luna::Code::invalid_argument, "no such weight"};
  }
  void weight_free(std::uint64_t handle) override { weights_.remove(handle); }

  luna::Result<luna::DeviceBuffer> alloc(std::uint32_t kind, std::uint64_t bytes) override {
    auto buffer = std::make_unique<detail::Buffer>();
    LUNA_TRY(buffer->reservation, luna::Reservation::make(&budget_, bytes, "buffer"));
    buffer->bytes = std::make_unique<std::byte[]>(bytes);  // zeroed
    void* const host = kind == LUNA_BUFFER_OUT ? buffer->bytes.get() : nullptr;
    LUNA_TRY(const std::uint64_t handle, buffers_.add(std::move(buffer)));
    return luna::DeviceBuffer{handle, host};
  }
  void free_buffer(std::uint64_t handle) override { buffers_.remove(handle); }

  luna::Result<std::unique_ptr<luna::Executable>> compile(const luna_program& program,
                                                          std::span<const std::uint64_t>) override {
    for (std::uint32_t i = 0; i < program.n_ops; ++i)
      LUNA_TRY(supports(program, i));
    return luna::Error{luna::Code::unsupported, "a program without ops"};
  }

 private:
  luna::MemoryBudget budget_;
  luna::HandleTable<detail::Weight> weights_{4096};
  luna::HandleTable<detail::Buffer> buffers_{64};
};

class @CLASS@ {
 public:
  static luna::Result<std::unique_ptr<@CLASS@>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<@CLASS@>();
  }
  std::optional<luna_device_info> device_info(std::uint32_t index) {
    if (index > 0) return std::nullopt;
    luna_device_info info = {};
    info.struct_size = sizeof(info);
    info.memory_bytes_total = info.memory_bytes_free = std::uint64_t{1} << 30;
    info.n_threads_max = 1;
    info.numerics = 1U << LUNA_NUMERICS_F32;
    luna::copy_literal(info.name, "@NAME@");
    luna::copy_literal(info.detail, "computes nothing yet");
    return info;
  }
  luna::Result<std::unique_ptr<luna::Device>> open(const luna_device_open& options) {
    return std::unique_ptr<luna::Device>(new @CLASS@Device(options.memory_bytes));
  }
  using OpenDevice = @CLASS@Device;
};

static constexpr luna_backend_if kTable = luna::make_backend_table<@CLASS@>();

LUNA_DEFINE_PLUGIN("@ID@", "@NAME@", "0.1.0", "A device that computes nothing yet.",
                   LUNA_KIND_BACKEND, kTable)
