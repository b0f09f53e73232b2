// A message takes as long as it is told, and an estimate says so. argv[1]: the inner transport.
#include "../src/slow.cpp"

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

// Two endpoints that know each other.
struct Pair {
  std::unique_ptr<luna::Decorated<Slow>> a, b;
  std::uint32_t to_a = 0, to_b = 0;
};
static Pair make_pair_of(const luna::Settings& settings) {
  auto a = luna::Decorated<Slow>::create(luna::Host(&kHost), settings);
  auto b = luna::Decorated<Slow>::create(luna::Host(&kHost), settings);
  if (!a || !b) {
    std::printf("%s\n", (a ? b : a).error().message().c_str());
    std::exit(1);
  }
  Pair pair = {*std::move(a), *std::move(b)};
  std::uint8_t blob[LUNA_ADDRESS_BYTES_MAX];
  if (pair.a->connect({blob, pair.b->address(blob)}, pair.to_b, nullptr) != LUNA_OK) std::exit(1);
  if (pair.b->connect({blob, pair.a->address(blob)}, pair.to_a, nullptr) != LUNA_OK) std::exit(1);
  return pair;
}

// Sends a message from a to b; nanoseconds until b has it.
static std::uint64_t send(Pair& pair, char (&from)[16], char (&to)[16]) {
  const auto from_key = pair.a->register_memory({LUNA_MEM_HOST, 0, from, sizeof(from), -1, 0});
  const auto to_key = pair.b->register_memory({LUNA_MEM_HOST, 0, to, sizeof(to), -1, 0});
  const luna_xfer out = {LUNA_XFER_SEND, pair.to_b, 5, 0, *from_key, 0, sizeof(from), 1};
  const luna_xfer in = {LUNA_XFER_RECV, pair.to_a, 5, 0, *to_key, 0, sizeof(to), 2};
  const std::uint64_t began_ns = kHost.now_ns(&kHost);
  if (!pair.a->post({&out, 1}) || !pair.b->post({&in, 1})) std::exit(1);
  luna_xfer_done done[2];
  for (std::uint32_t n_a = 0, n_b = 0; n_a == 0 || n_b == 0;) {
    n_a += pair.a->poll({done, 1});
    n_b += pair.b->poll({done + 1, 1});
  }
  return kHost.now_ns(&kHost) - began_ns;
}

int main(int, char** argv) {
  const auto text = [](const char* key, const char* value) {
    return luna_kv{luna::to_abi(key), LUNA_TYPE_STRING, 0, 0, 0.0, luna::to_abi(value)};
  };
  const luna_kv rows[] = {text("inner", argv[1]),
                          {luna::to_abi("latency_us"), LUNA_TYPE_FLOAT, 0, 0, 20'000.0, {}},
                          {luna::to_abi("bytes_per_us"), LUNA_TYPE_FLOAT, 0, 0, 1000.0, {}}};
  char from[16] = "hello";
  char to[16] = "";
  Pair pair = make_pair_of(luna::Settings(rows, 3));
  const std::uint64_t took_ns = send(pair, from, to);
  const std::uint64_t estimated_ns = pair.a->estimate_ns(pair.to_b, 1'000'000);
  if (std::string_view(to) == "hello" && took_ns >= 20'000'000 && estimated_ns >= 21'000'000 &&
      pair.a->caps().latency_ns >= 20'000'000 && pair.a->caps().bytes_per_ns <= 1.0)
    return 0;
  std::printf("it took %llu ns, estimated were %llu\n",
              static_cast<unsigned long long>(took_ns),
              static_cast<unsigned long long>(estimated_ns));
  return 1;
}
