// Recordings of plans: what was seen and answered comes back, and nothing else is believed.
#include "core/engine/plan_record.hpp"

#include "core/engine/snapshot_check.hpp"
#include "plugins/scheduler_flowsplit/flow_policy.hpp"
#include "support/engine_fixture.hpp"
#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace luna::test {
namespace {

using engine::check_snapshot;
using engine::PlanEncoder;
using engine::PlanFileReader;
using engine::PlanHead;
using engine::PlanRecorder;
using engine::RecordEnd;

/// Tables of a snapshot that change a little from plan to plan.
struct Session {
  std::mt19937_64 random{test_seed()};
  std::vector<luna_req_row> reqs;
  std::vector<luna_device_row> devices = std::vector<luna_device_row>(3);
  std::vector<luna_link_row> links = std::vector<luna_link_row>(2);
  std::vector<luna_slice_row> slices;
  std::vector<luna_prefix_row> prefixes;
  std::vector<luna_action> actions;
  std::uint64_t step = 0;
  std::uint64_t last_id = 0;

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }

  void change() {
    ++step;
    std::erase_if(reqs, [&](const luna_req_row&) { return below(6) == 0; });
    for (std::uint32_t n = below(4); n > 0; --n) {
      luna_req_row row{};
      row.id = last_id += 1 + below(3);
      row.n_prompt = 100 + below(100);
      row.n_generated_max = 50;
      row.device = below(3);
      row.moving_to = LUNA_NO_DEVICE;
      reqs.push_back(row);
    }
    for (luna_req_row& row : reqs)
      if (below(3) == 0) row.n_computed = below(row.n_prompt);
    for (std::uint32_t d = 0; d < devices.size(); ++d) {
      devices[d].device = d;
      devices[d].kv_bytes_total = 1000;
      devices[d].kv_bytes_free = below(1000);
    }
    links[0] = {0, 1, 500, 10.0};
    links[1] = {1, 2, 500 + below(2), 10.0};
    slices.clear();
    prefixes.clear();
    for (std::uint32_t i = 0; i < reqs.size(); ++i) {
      if (below(4) == 0) slices.push_back({i, below(3), 0, 256, 0, 0.25F});
      if (below(4) == 0) prefixes.push_back({i, below(3), 32, 1});
    }
    actions.assign(reqs.empty() ? 0 : below(static_cast<std::uint32_t>(reqs.size())), {});
    for (luna_action& action : actions)
      action = {.row = 0,
                .verb = LUNA_VERB_RUN,
                .reason = 0,
                .device = 0,
                .first_token = 0,
                .n_tokens = 1 + below(9),
                .arg = 0};
  }

  [[nodiscard]] luna_snapshot snapshot() const {
    luna_snapshot s{};
    s.struct_size = sizeof(s);
    s.req_stride = sizeof(luna_req_row);
    s.device_stride = sizeof(luna_device_row);
    s.link_stride = sizeof(luna_link_row);
    s.slice_stride = sizeof(luna_slice_row);
    s.prefix_stride = sizeof(luna_prefix_row);
    s.n_reqs = static_cast<std::uint32_t>(reqs.size());
    s.n_devices = static_cast<std::uint32_t>(devices.size());
    s.n_links = static_cast<std::uint32_t>(links.size());
    s.n_slices = static_cast<std::uint32_t>(slices.size());
    s.n_prefixes = static_cast<std::uint32_t>(prefixes.size());
    s.n_rows_max = 64;
    s.n_seqs_max = 8;
    s.kv_block_tokens = 32;
    s.step = step;
    s.now_ns = step * 1000;
    s.n_steps_in_flight_max = 1;
    s.reqs = reqs.data();
    s.devices = devices.data();
    s.links = links.data();
    s.slices = slices.data();
    s.prefixes = prefixes.data();
    return s;
  }
  [[nodiscard]] luna_plan answer() {
    luna_plan plan{};
    plan.struct_size = sizeof(plan);
    plan.n_actions_max = 4096;
    plan.n_actions = static_cast<std::uint32_t>(actions.size());
    plan.actions = actions.data();
    plan.wake_at_ns = step * 7;
    return plan;
  }
  /// As a recorder hands it to the encoder.
  [[nodiscard]] std::vector<std::byte> flat() {
    PlanHead head{snapshot(), answer(), LUNA_OK, static_cast<std::uint32_t>(actions.size())};
    std::vector<std::byte> bytes;
    const auto append = [&bytes](const void* data, std::size_t n) {
      const std::size_t n_before = bytes.size();
      bytes.resize(n_before + n);
      if (n > 0) std::memcpy(bytes.data() + n_before, data, n);
    };
    append(&head, sizeof(head));
    append(reqs.data(), reqs.size() * sizeof(luna_req_row));
    append(devices.data(), devices.size() * sizeof(luna_device_row));
    append(links.data(), links.size() * sizeof(luna_link_row));
    append(slices.data(), slices.size() * sizeof(luna_slice_row));
    append(prefixes.data(), prefixes.size() * sizeof(luna_prefix_row));
    append(actions.data(), actions.size() * sizeof(luna_action));
    return bytes;
  }
};

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> file_of(std::size_t n_plans) {
  Session session;
  PlanEncoder encoder;
  std::vector<std::byte> file = encoder.begin("policy = \"static\"\n");
  for (std::size_t i = 0; i < n_plans; ++i) {
    session.change();
    append(file, encoder.add(session.flat()));
  }
  append(file, encoder.end(RecordEnd::stopped));
  return file;
}

template <typename Row>
void expect_rows(const std::vector<Row>& rows, const Row* read) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(std::memcmp(&rows[i], read + i, sizeof(Row)), 0) << "row " << i;
}

TEST(PlanFile, EveryPlanComesBackAsItWasSeenAndAnswered) {
  Session session;
  PlanEncoder encoder;
  std::vector<std::byte> file = encoder.begin("some text");
  std::vector<Session> sessions;
  std::size_t n_flat = 0;
  for (int i = 0; i < 100; ++i) {
    session.change();
    sessions.push_back(session);
    n_flat += session.flat().size();
    append(file, encoder.add(session.flat()));
  }
  append(file, encoder.end(RecordEnd::stopped));
  EXPECT_LT(file.size(), n_flat) << "what did not change takes no room";
  auto reader = PlanFileReader::open(file);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(reader->text(), "some text");
  for (Session& seen : sessions) {
    const auto more = reader->next();
    ASSERT_TRUE(more.has_value()) << more.error().message();
    ASSERT_TRUE(*more);
    const auto& plan = reader->plan();
    ASSERT_EQ(plan.snapshot.n_reqs, seen.reqs.size());
    ASSERT_EQ(plan.snapshot.step, seen.step);
    ASSERT_EQ(plan.snapshot.n_slices, seen.slices.size());
    ASSERT_EQ(plan.plan.wake_at_ns, seen.step * 7);
    expect_rows(seen.reqs, plan.snapshot.reqs);
    expect_rows(seen.devices, plan.snapshot.devices);
    expect_rows(seen.links, plan.snapshot.links);
    expect_rows(seen.slices, plan.snapshot.slices);
    expect_rows(seen.prefixes, plan.snapshot.prefixes);
    ASSERT_EQ(plan.actions.size(), seen.actions.size());
    expect_rows(seen.actions, plan.actions.data());
  }
  const auto last = reader->next();
  ASSERT_TRUE(last.has_value() && !*last);
  EXPECT_EQ(reader->end(), RecordEnd::stopped);
}

TEST(PlanFile, ACutFileGivesItsWholePlansAndSaysThatItIsCut) {
  const auto file = file_of(6);
  for (std::size_t n = 0; n < file.size(); ++n) {
    auto reader = PlanFileReader::open(std::span(file).first(n));
    if (!reader) continue;  // within the head
    for (;;) {
      const auto more = reader->next();
      ASSERT_TRUE(more.has_value()) << n;
      if (!*more) break;
    }
    EXPECT_FALSE(reader->end().has_value());
  }
}

TEST(PlanFile, EveryFlippedBitIsFound) {
  auto file = file_of(3);
  for (std::size_t bit = 0; bit < file.size() * 8; bit += 3) {
    file[bit / 8] ^= std::byte(1U << bit % 8);
    auto reader = PlanFileReader::open(file);
    bool is_found = !reader.has_value();
    while (!is_found) {
      const auto more = reader->next();
      is_found = !more.has_value();
      if (more.has_value() && !*more) break;
    }
    // A length that became longer than the file cuts it off.
    is_found = is_found || !reader->end().has_value();
    ASSERT_TRUE(is_found) << "bit " << bit;
    file[bit / 8] ^= std::byte(1U << bit % 8);
  }
}

TEST(PlanFile, APlanThatNoEngineAsksForIsRefused) {
  const auto broken = [](void (*harm)(Session&)) {
    Session session;
    while (session.reqs.size() < 4)
      session.change();
    harm(session);
    PlanEncoder encoder;
    std::vector<std::byte> file = encoder.begin("");
    append(file, encoder.add(session.flat()));
    auto reader = PlanFileReader::open(file);
    return !reader->next().has_value();
  };
  EXPECT_FALSE(broken([](Session&) {}));
  EXPECT_TRUE(broken([](Session& s) { s.reqs[1].id = s.reqs[0].id; }));
  EXPECT_TRUE(broken([](Session& s) { s.reqs[1].device = 3; }));
  EXPECT_TRUE(broken([](Session& s) { s.reqs[1].state = 9; }));
  EXPECT_TRUE(broken([](Session& s) { s.reqs[1].n_computed = s.reqs[1].n_prompt + 1; }));
  EXPECT_TRUE(broken([](Session& s) { s.reqs[1].slice_end_token = UINT32_MAX; }));
  EXPECT_TRUE(broken([](Session& s) { s.devices[2].device = 1; }));
  EXPECT_TRUE(broken([](Session& s) { s.devices[0].kv_bytes_free = 1001; }));
  EXPECT_TRUE(broken([](Session& s) { s.devices[0].step_ns_fixed = NAN; }));
  EXPECT_TRUE(broken([](Session& s) { s.slices.push_back({999, 0, 0, 256, 0, 0.0F}); }));
  EXPECT_TRUE(broken([](Session& s) { s.slices.push_back({0, 0, 0, 256, 0, NAN}); }));
  EXPECT_TRUE(broken([](Session& s) { s.prefixes.assign(1, {0, 0, 1000, 0}); }));
  EXPECT_TRUE(broken([](Session& s) { s.links[0].to = 7; }));
}

std::filesystem::path file_in_temp(const char* name) {
  return std::filesystem::path(testing::TempDir()) / name;
}

std::vector<std::byte> read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

/// The end of a recording of `session`'s plans into a file of so many bytes.
RecordEnd end_of_recording(std::uint64_t file_bytes_max, std::size_t ring_bytes, int n_plans) {
  const auto path = file_in_temp("plan_record_test.plans");
  {
    auto recorder = PlanRecorder::open({path, "", file_bytes_max, ring_bytes});
    EXPECT_TRUE(recorder.has_value());
    Session session;
    for (int i = 0; i < n_plans; ++i) {
      session.change();
      (*recorder)->record(session.snapshot(), session.answer(), LUNA_OK);
    }
  }
  const auto file = read(path);
  EXPECT_LE(file.size(), file_bytes_max);
  auto reader = PlanFileReader::open(file);
  EXPECT_TRUE(reader.has_value());
  for (;;) {
    const auto more = reader->next();
    EXPECT_TRUE(more.has_value()) << more.error().message();
    if (!more || !*more) break;
  }
  std::filesystem::remove(path);
  return reader->end().value_or(RecordEnd::write_failed);
}

TEST(PlanRecorder, EndsWithItsEngineWithTheFullFileOrWithTheFullRing) {
  EXPECT_EQ(end_of_recording(1U << 26U, 1U << 24U, 500), RecordEnd::stopped);
  EXPECT_EQ(end_of_recording(1U << 14U, 1U << 24U, 500), RecordEnd::file_full);
  EXPECT_EQ(end_of_recording(1U << 26U, 600, 500), RecordEnd::too_slow);
}

TEST(PlanRecorder, AFileThatCannotBeCreatedIsAnError) {
  const auto recorder = PlanRecorder::open({"/nowhere/at/all", "", 1U << 20U});
  ASSERT_FALSE(recorder.has_value());
  EXPECT_EQ(recorder.error().code(), Code::io);
}

/// Shows a policy the plans of a file. How many there are.
std::uint64_t expect_equal_answers(const std::filesystem::path& path,
                                   const plugin::Instance<luna_scheduler_if>& policy) {
  const auto file = read(path);
  auto reader = PlanFileReader::open(file);
  EXPECT_TRUE(reader.has_value());
  std::vector<luna_action> actions;
  for (;;) {
    const auto more = reader->next();
    EXPECT_TRUE(more.has_value()) << more.error().message();
    if (!more || !*more) break;
    const auto& plan = reader->plan();
    actions.assign(plan.plan.n_actions_max, {});
    luna_plan answer{};
    answer.struct_size = sizeof(answer);
    answer.n_actions_max = plan.plan.n_actions_max;
    answer.actions = actions.data();
    luna_err err = make_err();
    EXPECT_EQ(policy->plan(policy.self(), &plan.snapshot, &answer, &err), plan.status);
    EXPECT_EQ(answer.n_actions, plan.actions.size());
    EXPECT_EQ(answer.wake_at_ns, plan.plan.wake_at_ns);
    if (answer.n_actions == plan.actions.size()) expect_rows(plan.actions, actions.data());
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_EQ(reader->end(), RecordEnd::stopped);
  std::filesystem::remove(path);
  return reader->n_plans();
}

/// Runs requests of many lengths to their ends.
void run_requests(EngineRig& rig) {
  std::vector<Asked> asked;
  for (int i = 0; i < 24; ++i) {
    const int n_prompt = 3 + 5 * (i % 12);
    asked.push_back(
        rig.submit(EngineRig::request(std::vector<TokenId>(n_prompt, kTheToken), 4 + i)));
  }
  rig.run();
  for (const Asked& one : asked)
    EXPECT_TRUE(one.ended());
  EXPECT_EQ(rig.stats.n_plans_rejected.load(), 0U);
}

TEST(PlanRecorder, ARunOfTheEngineIsAnsweredEquallyByANewInstance) {
  const auto path = file_in_temp("plan_record_engine.plans");
  const scheduler_static::StaticOptions policy{.target_itl_ms = 50, .ageing_ms = 1000};
  {
    auto recorder = PlanRecorder::open({path, "", 1U << 26U});
    ASSERT_TRUE(recorder.has_value());
    EngineOptions options;
    options.plan_recorder = recorder->get();
    EngineRig rig({}, static_scheduler(policy), options);
    run_requests(rig);
    rig.engine.reset();
  }
  EXPECT_GT(expect_equal_answers(path, static_scheduler(policy)), 10U);
}

plugin::Instance<luna_scheduler_if> flow_scheduler() {
  using scheduler_flowsplit::FlowPolicy;
  static constexpr luna_scheduler_if kTable = make_scheduler_table<FlowPolicy>({});
  scheduler_flowsplit::FlowOptions options;
  options.target_itl_ms = 50;
  options.ageing_ms = 1000;
  options.fair_tenants = true;
  options.adaptive_batch = true;
  return {&kTable,
          new SchedulerInstance<FlowPolicy>(std::make_unique<FlowPolicy>(options)),
          "flowsplit"};
}

TEST(PlanRecorder, FlowSplitRunsGroupsOfAnEngineAndIsAnsweredEqually) {
  const auto path = file_in_temp("plan_record_flow.plans");
  FakeModelOptions group;
  group.n_kv_blocks = 20;
  FakeModelOptions pipeline = group;
  pipeline.n_shards = 2;
  pipeline.n_lanes = 2;
  {
    auto recorder = PlanRecorder::open({path, "", 1U << 26U});
    ASSERT_TRUE(recorder.has_value());
    EngineOptions options;
    options.plan_recorder = recorder->get();
    EngineRig rig(group, flow_scheduler(), options, {pipeline});
    run_requests(rig);
    EXPECT_GT(rig.stats.groups[0].n_steps.load(), 5U);
    EXPECT_GT(rig.stats.groups[1].n_steps.load(), 5U);
    rig.engine.reset();
  }
  EXPECT_GT(expect_equal_answers(path, flow_scheduler()), 10U);
}

}  // namespace
}  // namespace luna::test
