#include "core/check/open_device.hpp"

#include "core/check/guarded_memory.hpp"

#include <luna/backend_blocks.hpp>

#include <algorithm>

namespace luna::check {
namespace {

// A form is tried at a size that it divides: two rows of strips, two super-blocks.
constexpr std::uint64_t kTriedRows = 70;
constexpr std::uint64_t kTriedCols = 512;

}  // namespace

std::unique_ptr<OpenDevice> OpenDevice::open(CaseRun& run, Subject& subject, const Setup& setup) {
  std::unique_ptr<OpenDevice> made(new OpenDevice(run));
  made->backend_ = subject.make<luna_backend_if>(LUNA_KIND_BACKEND);
  if (!made->backend_) return nullptr;
  made->info_.struct_size = sizeof(made->info_);
  run.phase("device_info");
  if (made->table().device_info(made->backend_.self(), 0, &made->info_) != LUNA_OK) {
    run.skip("it has no device here");
    return nullptr;
  }
  luna_device_open options{};
  options.struct_size = sizeof(options);
  options.memory_bytes = setup.memory_bytes;
  options.n_threads = setup.n_threads;
  luna_err err = make_err();
  run.phase("open");
  const luna_status status =
      made->table().open(made->backend_.self(), &options, &made->device_, &err);
  if (status >= 0 && made->device_ != nullptr) return made;
  run.skip("its device cannot be opened here: " + std::string(text_of(err)));
  return nullptr;
}

OpenDevice::~OpenDevice() {
  if (device_ == nullptr) return;
  run_.phase("close");
  table().close(device_);
}

// In two ranges, the second first, from pages that end where the planes do.
Result<std::uint64_t> OpenDevice::load(const DrawnWeight& weight, std::uint32_t numerics) {
  const luna_weight_desc& desc = weight.desc;
  luna_err err = make_err();
  std::uint64_t handle = 0;
  run_.phase("weight_begin");
  LUNA_TRY(to_result(
      table().weight_begin(device_, &desc, numerics, &handle, &err), err, "weight_begin"));
  const std::uint64_t half = desc.n_rows / 128 * 64;
  Result<void> filled;
  for (const auto& [first, n] :
       {std::pair{half, desc.n_rows - half}, std::pair{std::uint64_t{0}, half}}) {
    if (n == 0 || !filled) continue;
    std::vector<std::unique_ptr<GuardedMemory>> memory;
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.first_row = first;
    rows.n_rows = n;
    for (std::uint32_t p = 0; p < LUNA_N_PLANES; ++p) {
      if (desc.row_bytes[p] == 0) continue;
      memory.push_back(std::make_unique<GuardedMemory>(n * desc.row_bytes[p]));
      const auto bytes = std::span(weight.planes[p]).subspan(first * desc.row_bytes[p]);
      std::copy_n(bytes.begin(), n * desc.row_bytes[p], memory.back()->bytes().begin());
      memory.back()->make_read_only();
      rows.planes[p] = memory.back()->bytes().data();
    }
    run_.phase("weight_rows");
    filled = to_result(table().weight_rows(device_, handle, &rows, &err), err, "weight_rows");
  }
  run_.phase("weight_end");
  if (filled) filled = to_result(table().weight_end(device_, handle, &err), err, "weight_end");
  if (filled) return handle;
  table().weight_free(device_, handle);
  return filled.error();
}

std::vector<WeightForm> OpenDevice::forms_taken(std::uint32_t numerics, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<WeightForm> taken;
  for (const WeightForm& form : weight_forms()) {
    const Result<std::uint64_t> handle =
        load(draw_weight(random, kTriedRows, kTriedCols, form), numerics);
    if (handle) {
      table().weight_free(device_, *handle);
      taken.push_back(form);
      continue;
    }
    const std::string what =
        "a weight of " + std::string(form.name) + " is refused with " + handle.error().message();
    if (handle.error().code() != Code::unsupported)
      run_.fail("D2", what + ": what it does not know is `unsupported`");
  }
  return taken;
}

ScriptedPeer::ScriptedPeer(std::uint32_t rank) {
  comm_.struct_size = sizeof(comm_);
  comm_.rank = rank;
  comm_.n_ranks = 2;
  comm_.self = this;
  comm_.send = send;
  comm_.recv = recv;
  comm_.all_reduce = reduce;
}

std::map<std::uint32_t, std::deque<std::vector<float>>> ScriptedPeer::take_sent() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sent_, {});
}

luna_status ScriptedPeer::send(void* self,
                               std::uint32_t peer,
                               std::uint32_t tag,
                               const void* data,
                               std::uint64_t n_bytes) noexcept {
  auto& me = *static_cast<ScriptedPeer*>(self);
  if (peer != 1 - me.comm_.rank) return LUNA_INVALID_ARGUMENT;
  const std::lock_guard lock(me.mutex_);
  std::vector<float>& message = me.sent_[tag].emplace_back(n_bytes / sizeof(float));
  std::memcpy(message.data(), data, message.size() * sizeof(float));
  return LUNA_OK;
}

luna_status ScriptedPeer::recv(
    void* self, std::uint32_t peer, std::uint32_t tag, void* data, std::uint64_t n_bytes) noexcept {
  auto& me = *static_cast<ScriptedPeer*>(self);
  if (peer != 1 - me.comm_.rank) return LUNA_INVALID_ARGUMENT;
  const std::lock_guard lock(me.mutex_);
  const std::uint64_t message = me.n_received_[tag]++;
  for (std::uint64_t i = 0; i < n_bytes / sizeof(float); ++i) {
    const float number = PeerScript::number(tag, message, i);
    std::memcpy(static_cast<std::byte*>(data) + i * sizeof(number), &number, sizeof(number));
  }
  return LUNA_OK;
}

luna_status ScriptedPeer::reduce(
    void* self, const void* in, void* out, std::uint64_t n, std::uint32_t op) noexcept {
  if (self == nullptr || op != LUNA_REDUCE_SUM_F32) return LUNA_INVALID_ARGUMENT;
  for (std::uint64_t i = 0; i < n; ++i) {
    float number = 0.0F;
    std::memcpy(&number, static_cast<const std::byte*>(in) + i * sizeof(number), sizeof(number));
    number += PeerScript::addend(i);
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof(number), &number, sizeof(number));
  }
  return LUNA_OK;
}

}  // namespace luna::check
