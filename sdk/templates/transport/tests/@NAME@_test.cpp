// A message from one endpoint to another.
#include "../src/@NAME@.cpp"

#include <cstdio>

int main() {
  @CLASS@ a;
  @CLASS@ b;
  std::uint8_t blob[LUNA_ADDRESS_BYTES_MAX];
  std::uint32_t to_b = 99;
  std::uint32_t to_a = 99;
  if (a.connect({blob, b.address(blob)}, to_b, nullptr) != LUNA_OK) return 1;
  if (b.connect({blob, a.address(blob)}, to_a, nullptr) != LUNA_OK) return 1;
  char from[16] = "hello";
  char to[16] = "";
  const auto from_key = a.register_memory({LUNA_MEM_HOST, 0, from, sizeof(from), -1, 0});
  const auto to_key = b.register_memory({LUNA_MEM_HOST, 0, to, sizeof(to), -1, 0});
  const luna_xfer send = {LUNA_XFER_SEND, to_b, 5, 0, *from_key, 0, sizeof(from), 1};
  const luna_xfer recv = {LUNA_XFER_RECV, to_a, 5, 0, *to_key, 0, sizeof(to), 2};
  if (!a.post({&send, 1}) || !b.post({&recv, 1})) return 1;
  luna_xfer_done done[2];
  if (a.poll(done) != 1 || b.poll(done) != 1 || done[0].status != LUNA_OK) return 1;
  if (std::string_view(to) == "hello") return 0;
  std::printf("it received '%s'\n", to);
  return 1;
}
