// KV blocks of a loaded model, copied out and in: what tests of blocks and slices share.
#pragma once

#include "loaded_model.hpp"

namespace luna::test {

/// The KV of a loaded model and the calls that copy it.
struct KvDoor {
  const luna_kv_blocks_if& calls;
  Loaded& loaded;
  luna_program abi;
  luna_err err = make_err();

  explicit KvDoor(Loaded& model)
      : calls(*model.device.extension<luna_kv_blocks_if>(LUNA_EXT_KV_BLOCKS)),
        loaded(model),
        abi(model.program.abi()) {}

  [[nodiscard]] std::uint64_t layer_bytes() const {
    luna_kv_layout layout = abi.kv;
    layout.n_layers = 1;
    std::uint64_t bytes = 0;
    loaded.device.table().kv_block_bytes(loaded.device.raw(), &layout, &bytes, nullptr);
    return bytes;
  }
  [[nodiscard]] luna_kv_part part(std::span<const std::uint32_t> blocks,
                                  std::uint32_t first_layer,
                                  std::uint32_t n_layers) const {
    luna_kv_part part{};
    part.struct_size = sizeof(part);
    part.n_blocks = static_cast<std::uint32_t>(blocks.size());
    for (const luna_bind& bind : loaded.run->binds())
      if (bind.slot == loaded.program.bound_slot(LUNA_SLOT_KV)) part.buffer = bind.buffer;
    part.layout = &abi.kv;
    part.blocks = blocks.data();
    part.first_layer = first_layer;
    part.n_layers = n_layers;
    part.n_bytes = layer_bytes() * n_layers * blocks.size();
    return part;
  }
  luna_status out(const luna_kv_part& part, std::vector<std::byte>* bytes) {
    bytes->resize(part.n_bytes);
    return calls.kv_export(loaded.device.raw(), &part, bytes->data(), &err);
  }
  luna_status in(const luna_kv_part& part, const std::vector<std::byte>& bytes) {
    return calls.kv_import(loaded.device.raw(), &part, bytes.data(), &err);
  }
};

}  // namespace luna::test
