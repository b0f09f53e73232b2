// Ops by hand, and a device that keeps to its budget.
#include "../src/plain.cpp"

#include <cstdio>

#define EXPECT(what)                                   \
  if (!(what)) {                                       \
    std::printf("line %d: not " #what "\n", __LINE__); \
    return 1;                                          \
  }

static plain::Rows rows(float* values, std::uint32_t n_rows, std::uint32_t width) {
  return {reinterpret_cast<std::byte*>(values), width * sizeof(float), n_rows, width};
}

int main() {
  // Two tokens of a head with two dimensions: the second attends to both.
  luna_kv_layout layout = {1, 1, 2, LUNA_DTYPE_F32, 32, 0};
  std::vector<float> memory(plain::kv_bytes(layout) / sizeof(float) * 2);
  const std::uint32_t table[] = {1};  // its only block is the second
  const plain::KvOfSequence kv = {memory.data(), layout, table};
  const float k[2][2] = {{1, 0}, {0, 1}};
  const float v[2][2] = {{10, 0}, {0, 20}};
  for (std::uint32_t t = 0; t < 2; ++t)
    plain::kv_write(k[t], v[t], kv, 0, t);
  EXPECT(memory[layout.block_tokens * 4] == 1.0F);
  const float q[2] = {0, std::log(3.0F)};  // weights 1 and 3
  float out[2] = {};
  std::vector<double> scores(2);
  plain::attend(q, kv, {0, 1, 1.0F, 0, 0.0F}, scores, out);
  EXPECT(std::abs(out[0] - 2.5F) < 1e-5F && std::abs(out[1] - 15.0F) < 1e-5F);
  plain::attend(q, kv, {0, 1, 1.0F, 1, 0.0F}, scores, out);  // a window of itself
  EXPECT(out[0] == 0.0F && out[1] == 20.0F);

  float x[3] = {1, 2, 3};
  const float w[6] = {1, 1, 1, 0, 0, 1};
  const float bias[2] = {0, 10};
  float y[2] = {};
  plain::linear(rows(x, 1, 3), {w, 2, 3}, bias, rows(y, 1, 2));
  EXPECT(y[0] == 6.0F && y[1] == 13.0F);

  const float logits[5] = {1, 7, 3, 7, 5};
  std::uint32_t top[8] = {};
  plain::top_candidates(logits, 3, top);
  EXPECT(top[1] == 1 && top[3] == 3 && top[5] == 4 && std::bit_cast<float>(top[4]) == 5.0F);
  EXPECT(std::abs(std::bit_cast<float>(top[6]) - 7.7683F) < 1e-3F && top[7] == 0);

  plain::PlainBackend backend(luna::Host{nullptr});
  luna_device_open options = {};
  options.struct_size = sizeof(options);
  options.memory_bytes = 1000;
  const auto device = backend.open(options);
  EXPECT(device);
  const auto buffer = (*device)->alloc(LUNA_BUFFER_OUT, 600);
  EXPECT(buffer && buffer->host != nullptr);
  EXPECT(!(*device)->alloc(LUNA_BUFFER_OUT, 600));
  (*device)->free_buffer(buffer->handle);
  EXPECT((*device)->alloc(LUNA_BUFFER_KV, 1000));
  return 0;
}
