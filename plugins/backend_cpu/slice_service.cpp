#include "slice_service.hpp"

#include <luna/op_rules.hpp>
#include <luna/time_slice.hpp>

#include <chrono>
#include <cstring>
#include <string>

namespace luna::cpu {
namespace {

// As the engine's: an owner's whole step waits for an answer that takes less.
constexpr std::chrono::microseconds kTimeSlice{100};

}  // namespace

std::uint64_t service_bytes_of(const SliceShape& shape) {
  return 2 * slice_message_bytes(shape) +
         kernels::attend_scratch_bytes(static_cast<int>(shape.head_dim));
}

CpuSliceService::CpuSliceService(const luna_program& program, const SliceServiceOptions& options)
    : options_(options),
      kernels_(kernels::select_kernels()),
      shape_(slice_shape_of(program)),
      layers_(program.kv.n_layers) {
  for (std::uint32_t i = 0; i < program.n_ops; ++i) {
    const OpReader op(program, program.ops[i]);
    if (op.op().op != LUNA_OP_ATTEND) continue;
    layers_[op.attr(LUNA_ATTEND_LAYER)] = {op.attr(LUNA_ATTEND_N_HEADS),
                                           op.attr_f32(LUNA_ATTEND_SCALE),
                                           op.attr(LUNA_ATTEND_WINDOW),
                                           op.attr_f32(LUNA_ATTEND_SOFTCAP)};
  }
}

Result<std::unique_ptr<SliceService>> CpuSliceService::make(const luna_program& program,
                                                            const SliceServiceOptions& options) {
  std::unique_ptr<CpuSliceService> made(new CpuSliceService(program, options));
  if (made->shape_.n_heads == 0)
    return Error{Code::invalid_argument, "serve: the program attends to nothing"};
  const std::uint64_t bytes = service_bytes_of(made->shape_);
  LUNA_TRY(made->reservation_, Reservation::make(options.budget, bytes, "slice service"));
  LUNA_TRY(made->memory_, Mapping::make(bytes));
  made->request_ = made->memory_.data();
  made->states_ = made->request_ + slice_message_bytes(made->shape_);
  made->scratch_ = made->states_ + slice_message_bytes(made->shape_);
  made->thread_ = std::thread([service = made.get()] { service->run(); });
  return std::unique_ptr<SliceService>(std::move(made));
}

CpuSliceService::~CpuSliceService() {
  if (thread_.joinable()) thread_.join();
}

void CpuSliceService::run() {
  bind_to_cpus(options_.cpus);
  ask_for_time_slices(kTimeSlice);
  kernels::set_thread_float_mode();
  for (;;) {
    SliceHeader header;
    if (receive(&header, sizeof(header)) != LUNA_OK) return;
    if (Result<void> checked = check(header); !checked) {
      // What follows cannot be known, and so the owner's wait ends by an answer of another size.
      refuse(checked.error());
      const SliceVerdict verdict{header.serial, LUNA_CORRUPT, 0};
      const luna_comm& comm = *options_.comm;
      comm.send(comm.self, LUNA_SLICE_OWNER, LUNA_SLICE_TAG_STATES, &verdict, sizeof(verdict));
      return;
    }
    if (receive(request_, header.body_bytes) != LUNA_OK) return;
    if (answer(header) != LUNA_OK) return;
  }
}

luna_status CpuSliceService::receive(void* to, std::uint64_t n_bytes) const {
  const luna_comm& comm = *options_.comm;
  return comm.recv(comm.self, LUNA_SLICE_OWNER, LUNA_SLICE_TAG_QUERIES, to, n_bytes);
}

SliceShape CpuSliceService::shape_of(const SliceHeader& header) const {
  SliceShape shape = shape_;
  shape.n_heads = layers_[header.layer].n_heads;
  return shape;
}

Result<void> CpuSliceService::check(const SliceHeader& header) const {
  if (header.layer >= layers_.size() || layers_[header.layer].n_heads == 0)
    return Error{Code::corrupt, "queries: layer = " + std::to_string(header.layer)};
  return check_slice_header(header, shape_of(header), slice_message_bytes(shape_));
}

luna_status CpuSliceService::answer(const SliceHeader& header) {
  const SliceShape shape = shape_of(header);
  const SliceBody body = SliceBody::place(header, shape, request_);
  SliceVerdict verdict{header.serial, LUNA_OK, 0};
  if (Result<void> checked = check_slice_body(header, shape, body, options_.n_kv_blocks); checked) {
    attend(header, body);
  } else {
    refuse(checked.error());
    std::memset(states_, 0, header.state_bytes);
    verdict.status = LUNA_CORRUPT;
  }
  std::memcpy(states_ + header.state_bytes, &verdict, sizeof(verdict));
  const luna_comm& comm = *options_.comm;
  return comm.send(comm.self,
                   LUNA_SLICE_OWNER,
                   LUNA_SLICE_TAG_STATES,
                   states_,
                   header.state_bytes + sizeof(verdict));
}

void CpuSliceService::attend(const SliceHeader& header, const SliceBody& body) {
  const Layer& layer = layers_[header.layer];
  const SliceShape shape = shape_of(header);
  kernels::AttendPartialArgs args;
  kernels::AttendArgs& rows = args.attend;
  rows.kv.shape = options_.kv.shape;
  rows.kv.base = options_.kv.base + header.layer * kernels::kv_block_bytes(options_.kv.shape);
  rows.kv.block_stride_bytes = options_.kv.block_bytes;
  rows.group_heads = static_cast<int>(shape.group_heads());
  rows.window = layer.window;
  rows.scale = layer.scale;
  rows.softcap = layer.softcap;
  rows.q_stride = static_cast<std::int64_t>(shape.query_floats());
  rows.scratch = scratch_;
  args.states = reinterpret_cast<float*>(states_);
  const float* queries = body.queries;
  const SliceRange* slice = body.slices.data();
  const std::uint32_t* blocks = body.blocks.data();
  for (const SliceRun& run : body.runs) {
    rows.first_position = run.first_position;
    rows.n_rows = run.n_rows;
    for (std::uint32_t s = 0; s < run.n_slices; ++s, ++slice) {
      args.first_partition = slice->first_partition;
      args.n_partitions = slice->n_partitions;
      rows.kv.table = blocks;
      rows.kv.first_block = args.first_partition * shape.blocks_per_partition();
      const std::uint64_t head_floats = count_nodes(slice->first_partition, slice->n_partitions) *
                                        run.n_rows * shape.group_floats();
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        rows.kv_head = static_cast<int>(head);
        rows.q = queries + std::size_t{head} * shape.group_heads() * shape.head_dim;
        kernels_.attend_partial(args);
        args.states += head_floats;
      }
      blocks += std::size_t{slice->n_partitions} * shape.blocks_per_partition();
    }
    queries += run.n_rows * shape.query_floats();
  }
}

void CpuSliceService::refuse(const Error& why) const {
  options_.host.log(LUNA_LOG_WARN, "slices: a message of their owner is refused: " + why.message());
}

}  // namespace luna::cpu
