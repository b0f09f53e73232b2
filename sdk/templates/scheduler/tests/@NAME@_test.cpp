// Two requests and room for one: the first goes first.
#include "../src/@NAME@.cpp"

#include <cstdio>

int main() {
  @CLASS@ policy{luna::Settings(nullptr, 0)};
  luna_req_row rows[2] = {};
  for (std::uint32_t i = 0; i < 2; ++i) {
    rows[i].id = i + 1;
    rows[i].n_prompt = 40;
    rows[i].n_generated_max = 10;
    rows[i].moving_to = LUNA_NO_DEVICE;
  }
  luna_device_row device = {};
  device.n_kv_blocks_total = device.n_kv_blocks_free = 100;
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
  luna_action actions[8] = {};
  luna_plan raw = {};
  raw.struct_size = sizeof(raw);
  raw.n_actions_max = 8;
  raw.actions = actions;
  luna::Plan plan;
  plan.begin(&snapshot, &raw);
  policy.plan(luna::Snapshot(&snapshot), plan);
  if (raw.n_actions == 1 && actions[0].row == 0 && actions[0].n_tokens == 40) return 0;
  std::printf("%u actions, the first of row %u with %u tokens\n", raw.n_actions, actions[0].row,
              actions[0].n_tokens);
  return 1;
}
