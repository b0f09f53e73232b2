// Two requests and room for one: the shorter one goes first.
#include "../src/shortest.cpp"

#include <cstdio>

int main() {
  const luna_kv settings[] = {{luna::to_abi("aging"), LUNA_TYPE_FLOAT, 0, 0, 0.5, {}}};
  Shortest policy{luna::Settings(settings, 1)};
  luna_req_row rows[2] = {};
  for (std::uint32_t i = 0; i < 2; ++i) {
    rows[i].id = i + 1;
    rows[i].n_prompt = i == 0 ? 4000 : 40;  // the large one came first
    rows[i].n_generated_max = 10;
    rows[i].moving_to = LUNA_NO_DEVICE;
  }
  luna_device_row device = {};
  device.n_kv_blocks_total = device.n_kv_blocks_free = 1000;
  device.n_steps_in_flight_max = 1;
  luna_snapshot snapshot = {};
  snapshot.struct_size = sizeof(snapshot);
  snapshot.req_stride = sizeof(luna_req_row);
  snapshot.device_stride = sizeof(luna_device_row);
  snapshot.n_reqs = 2;
  snapshot.n_devices = 1;
  snapshot.n_rows_max = 40;
  snapshot.n_seqs_max = 8;
  snapshot.kv_block_tokens = 32;
  snapshot.n_steps_in_flight_max = 1;
  snapshot.reqs = rows;
  snapshot.devices = &device;
  const auto first_at = [&](std::uint64_t now_ns) {
    snapshot.now_ns = now_ns;
    luna_action actions[8] = {};
    luna_plan raw = {};
    raw.struct_size = sizeof(raw);
    raw.n_actions_max = 8;
    raw.actions = actions;
    luna::Plan plan;
    plan.begin(&snapshot, &raw);
    policy.plan(luna::Snapshot(&snapshot), plan);
    return raw.n_actions == 0 ? -1 : static_cast<int>(actions[0].row);
  };
  const int first = first_at(1'000'000);
  if (first == 1) return 0;
  std::printf("row %d goes first\n", first);
  return 1;
}
