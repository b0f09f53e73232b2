// A device keeps to its budget, and a weight is what its canonical rows say.
#include "../src/@NAME@.cpp"

#include <cstdio>

int main() {
  @CLASS@ backend;
  luna_device_open options = {};
  options.struct_size = sizeof(options);
  options.memory_bytes = 1000;
  const auto device = backend.open(options);
  if (!device) return 1;
  const auto buffer = (*device)->alloc(LUNA_BUFFER_OUT, 600);
  if (!buffer || buffer->host == nullptr) return 1;
  if ((*device)->alloc(LUNA_BUFFER_OUT, 600)) {
    std::printf("600 bytes twice fit into 1000\n");
    return 1;
  }
  (*device)->free_buffer(buffer->handle);
  luna_weight_desc desc = {};
  desc.struct_size = sizeof(desc);
  desc.klass = LUNA_WEIGHT_DENSE;
  desc.dtype = LUNA_DTYPE_F32;
  desc.n_rows = 2;
  desc.n_cols = 32;
  desc.row_bytes[LUNA_PLANE_VALUES] = 32 * sizeof(float);
  const auto weight = (*device)->weight_begin(desc, 0);
  if (!weight) return 1;
  float values[64] = {1.0F, 2.0F};
  luna_weight_rows rows = {};
  rows.struct_size = sizeof(rows);
  rows.n_rows = 2;
  rows.planes[LUNA_PLANE_VALUES] = values;
  if (!(*device)->weight_rows(*weight, rows) || !(*device)->weight_end(*weight)) return 1;
  (*device)->weight_free(*weight);
  return (*device)->alloc(LUNA_BUFFER_KV, 1000) ? 0 : 1;
}
