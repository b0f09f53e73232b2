// The inner backend answers through it, and its budget holds. argv[1]: the inner backend.
#include "../src/meter.cpp"

#include <chrono>
#include <cstdio>
#include <string>

// A host as small as it can be.
static std::string g_log;
static const luna_host kHost = {
    sizeof(luna_host),
    LUNA_ABI_MINOR,
    "test",
    "0",
    [](const luna_host*, std::int32_t, luna_str text) {
      g_log += std::string(luna::view(text)) + "\n";
    },
    [](const luna_host*) {
      return static_cast<std::uint64_t>(
          std::chrono::steady_clock::now().time_since_epoch().count());
    },
    [](const luna_host*, std::uint64_t) { return std::uint64_t{4}; },
    [](const luna_host*, std::uint32_t n, void (*fn)(void*, std::uint32_t), void* arg) {
      for (std::uint32_t i = 0; i < n; ++i)
        fn(arg, i);
      return luna_status{LUNA_OK};
    },
    [](const luna_host*, const char*) -> const void* { return nullptr; }};

int main(int, char** argv) {
  const luna_kv row = {luna::to_abi("inner"), LUNA_TYPE_STRING, 0, 0, 0.0, luna::to_abi(argv[1])};
  void* self = nullptr;
  luna_err err = luna::make_err();
  const luna_backend_if& table = meter::kTable;
  if (table.head.create(&kHost, &row, 1, &self, &err) < 0) {
    std::printf("%s\n", err.text);
    return 1;
  }
  luna_device_info info = {};
  info.struct_size = sizeof(info);
  luna_device_open options = {};
  options.struct_size = sizeof(options);
  options.memory_bytes = 1000;
  void* device = nullptr;
  std::uint64_t buffer = 0;
  void* host = nullptr;
  const bool is_open = table.device_info(self, 0, &info) == LUNA_OK && info.name[0] != '\0' &&
                       table.open(self, &options, &device, &err) == LUNA_OK;
  const bool keeps_to_budget =
      is_open && table.alloc(device, LUNA_BUFFER_OUT, 600, &buffer, &host, &err) == LUNA_OK &&
      host != nullptr &&
      table.alloc(device, LUNA_BUFFER_OUT, 600, &buffer, &host, &err) == LUNA_EXHAUSTED;
  if (is_open) table.close(device);
  table.head.destroy(self);
  if (!keeps_to_budget) std::printf("open %d: %s\n", is_open, err.text);
  return keeps_to_budget ? 0 : 1;
}
