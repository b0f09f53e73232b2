// Plugins with one fault each: the validator finds it and names its rule, whatever the plugin does
// to its process.
#include "core/base/sanitizer.hpp"
#include "core/check/checker.hpp"
#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace luna::check {
namespace {

struct Animal {
  std::string fault;
  std::string rule;
  std::string where;  ///< the cases that run: those whose names begin so
  /// Found by what a sanitizer changes: its heap cannot be counted, and it ends a process itself.
  bool is_hidden_by_sanitizer = false;
};

std::vector<Finding> findings_of(const Animal& animal) {
  CheckOptions options;
  options.input.file =
      std::string(LUNA_ZOO_DIR) + "/" + animal.fault + "/zoo_" + animal.fault + ".so";
  options.only = animal.where;
  // Only what hangs meets the limit.
  if (animal.fault.starts_with("hangs")) options.limit = std::chrono::milliseconds(500);
  const auto result = check_plugin(options, [](const CaseResult&) {});
  EXPECT_TRUE(result) << result.error().message();
  std::vector<Finding> findings;
  if (!result) return findings;
  EXPECT_EQ(result->verdict(), Verdict::broken);
  for (const CaseResult& one : result->cases)
    findings.insert(findings.end(), one.findings.begin(), one.findings.end());
  return findings;
}

class ZooCheck : public testing::TestWithParam<Animal> {};

TEST_P(ZooCheck, FindsTheFaultAndNamesItsRule) {
  const Animal& animal = GetParam();
  if (animal.is_hidden_by_sanitizer && kHasSanitizer) GTEST_SKIP() << "not under a sanitizer";
  std::vector<std::string> rules;
  std::string said;
  for (const Finding& finding : findings_of(animal)) {
    rules.push_back(finding.rule);
    said += finding.rule + ": " + finding.message + "\n";
  }
  EXPECT_THAT(rules, testing::Contains(animal.rule)) << said;
}

// What the host refuses too.
INSTANTIATE_TEST_SUITE_P(Start,
                         ZooCheck,
                         testing::Values(Animal{"no_note", "V1", "A"},
                                         Animal{"broken_note", "V1", "A"},
                                         Animal{"other_major", "V2", "A"},
                                         Animal{"newer_minor", "V2", "A"},
                                         Animal{"no_entry", "B2", "A"},
                                         Animal{"extra_export", "B2", "A"},
                                         Animal{"undefined_symbol", "B8", "B.load"},
                                         Animal{"note_differs", "V3", "B.load"},
                                         Animal{"refuses_host", "V2", "B.load"},
                                         Animal{"small_table", "V6", "B.load"},
                                         Animal{"no_table", "V6", "B.load"},
                                         Animal{"no_create", "V6", "B.load"},
                                         Animal{"no_plan", "V6", "B.load"},
                                         Animal{"throws_in_constructor", "E1", "B.load"},
                                         Animal{"throws_in_query", "E1", "B.load"},
                                         Animal{"throws_in_init", "E1", "B.load"},
                                         Animal{"throws_in_create", "E1", "C.several"},
                                         Animal{"hangs_in_constructor", "U4", "B.load"},
                                         Animal{"hangs_in_init", "U4", "B.load"},
                                         Animal{"hangs_in_create", "U4", "C.leaks"},
                                         Animal{"crashes_in_constructor", "U3", "B.load"},
                                         Animal{"crashes_in_create", "U3", "C.leaks"},
                                         Animal{"aborts_in_create", "U3", "C.leaks"},
                                         Animal{"exits_in_constructor", "U3", "B.load"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(File,
                         ZooCheck,
                         testing::Values(Animal{"static_tls", "B4", "A"},
                                         Animal{"text_relocation", "B6", "A"},
                                         Animal{"executable_stack", "B5", "A"},
#if !defined(__clang__)
                                         Animal{"unique_symbol", "B3", "A"},
#endif
                                         Animal{"absolute_run_path", "B7", "A"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(Load,
                         ZooCheck,
                         testing::Values(Animal{"slow_load", "U1", "B.load"},
                                         Animal{"writes_at_load", "U1", "B.load"},
                                         Animal{"thread_at_load", "U1", "B.load"},
                                         Animal{"opens_file_at_load", "U1", "B.load"},
                                         Animal{"environment_at_load", "T1", "B.load"},
                                         Animal{"two_descriptors", "V4", "B.query"},
                                         Animal{"refuses_newer_host", "V2", "B.query"},
                                         Animal{"serves_every_major", "V8", "B.query"},
                                         Animal{"knows_every_kind", "V5", "B.query"},
                                         Animal{"knows_kinds_by_their_beginning", "V5", "B.query"},
                                         Animal{"default_out_of_range", "V9", "B.settings"},
                                         Animal{"setting_without_help", "V9", "B.settings"},
                                         Animal{"setting_twice", "V9", "B.settings"},
                                         Animal{"setting_in_camel_case", "V9", "B.settings"},
                                         Animal{"bound_of_other_type", "V9", "B.settings"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(Instance,
                         ZooCheck,
                         testing::Values(Animal{"fails_silently", "E2", "C.several"},
                                         Animal{"makes_nothing", "V6", "C.several"},
                                         Animal{"writes_settings", "O1", "D.settings_unchanged"},
                                         Animal{"keeps_settings", "O2", "D.settings_not_kept"},
                                         Animal{"leaks_memory", "O4", "C.leaks", true},
                                         Animal{"leaks_descriptor", "O4", "C.leaks"},
                                         Animal{"leaks_thread", "O4", "C.leaks"},
                                         Animal{"sets_environment", "T1", "D.process_state"},
                                         Animal{"sets_rounding", "T1", "D.process_state"},
                                         Animal{"sets_locale", "T1", "D.process_state"},
                                         Animal{"sets_signal", "T1", "D.process_state"},
                                         Animal{"changes_folder", "T1", "D.process_state"},
                                         Animal{"shares_its_instance", "U2", "C.several"},
                                         Animal{"throws_without_memory", "E1", "C.out_of", true},
                                         Animal{"aborts_in_destroy", "U3", "C.leaks"},
                                         Animal{"knows_every_extension", "V5", "D.extensions"}),
                         [](const auto& instance) { return instance.param.fault; });

constexpr const char* kLegal = "E.scheduler.legal";
INSTANTIATE_TEST_SUITE_P(Plan,
                         ZooCheck,
                         testing::Values(Animal{"throws_in_plan", "E1", kLegal},
                                         Animal{"crashes_in_plan", "U3", kLegal},
                                         Animal{"exits_in_plan", "U3", kLegal},
                                         Animal{"hangs_in_plan", "U4", kLegal},
                                         Animal{"fails_silently_in_plan", "E2", kLegal},
                                         Animal{"fails_in_plan", "S5", kLegal},
                                         Animal{"writes_rows", "O1", "E.scheduler.tables_unch"},
                                         Animal{"keeps_rows", "O2", "E.scheduler.tables_not"},
                                         Animal{"writes_no_zero", "O3", kLegal},
                                         Animal{"writes_too_many", "O3", kLegal},
                                         Animal{"counts_too_many", "O3", kLegal},
                                         Animal{"fixed_stride", "V7", "E.scheduler.wider"},
                                         Animal{"names_no_row", "S1", kLegal},
                                         Animal{"names_a_row_twice", "S1", kLegal},
                                         Animal{"unknown_verb", "S1", kLegal},
                                         Animal{"preempts_waiting", "S1", kLegal},
                                         Animal{"preempts_in_step", "S1", kLegal},
                                         Animal{"assigns_running", "S1", kLegal},
                                         Animal{"more_than_it_wants", "S1", kLegal},
                                         Animal{"too_many_tokens", "S2", kLegal},
                                         Animal{"too_many_rows", "S2", kLegal},
                                         Animal{"too_many_blocks", "S2", kLegal},
                                         Animal{"slices_within_a_partition", "S1", kLegal},
                                         Animal{"slices_to_where_it_is", "S1", kLegal},
                                         Animal{"slices_what_is_not_finished", "S1", kLegal},
                                         Animal{"orders_by_address", "S3", "E.scheduler.same"},
                                         Animal{"orders_by_clock", "S3", "E.scheduler.same"},
                                         Animal{"starves_long_ones", "S4", "E.scheduler.starv"},
                                         Animal{"stands_still", "S5", kLegal},
                                         Animal{"turns_illegal", "S1", kLegal},
                                         Animal{"slow_plan", "S6", "F.scheduler.decision"},
                                         Animal{"late_plan", "S6", "F.scheduler.decision"},
                                         Animal{"reason_twice", "S7", "E.scheduler.reasons"},
                                         Animal{"reason_unnamed", "S7", "E.scheduler.reasons"},
                                         Animal{
                                             "allocates_in_plan", "C1", "F.scheduler.alloc", true},
                                         Animal{"knows_its_thread", "T2", "D.scheduler.threads"},
                                         Animal{"logs_in_plan", "C2", kLegal}),
                         [](const auto& instance) { return instance.param.fault; });

constexpr const char* kStreams = "E.role.streams";
INSTANTIATE_TEST_SUITE_P(Role,
                         ZooCheck,
                         testing::Values(Animal{"never_ends", "R1", kStreams},
                                         Animal{"ends_twice", "R1", kStreams},
                                         Animal{"counts_items", "R2", kStreams},
                                         Animal{"halves_characters", "R4", kStreams},
                                         Animal{"unknown_item", "R4", kStreams},
                                         Animal{"asks_no_json", "R4", kStreams},
                                         Animal{"asks_twice", "R4", kStreams},
                                         Animal{"updates_late", "R4", kStreams},
                                         Animal{"speaks_for_another", "R3", kStreams},
                                         Animal{"remembers_dropped", "R3", "E.role.drops", true},
                                         Animal{"waits_for_the_request", "R1", kStreams},
                                         Animal{"cuts_large_items", "R2", "E.role.sizes"},
                                         Animal{"drops_show_elsewhere", "R5", "E.role.neigh"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(Format,
                         ZooCheck,
                         testing::Values(Animal{"scores_high", "Q4", "E.quant.decoding"},
                                         Animal{"believes_the_shape", "Q3", "E.quant.hostile"},
                                         Animal{"decodes_behind_the_end", "Q3", "E.quant.hostile"},
                                         Animal{"decodes_from_the_top", "Q2", "E.quant.decoding"},
                                         Animal{"off_by_one", "Q1", "E.quant.decoding"},
                                         Animal{"counts_its_own_size", "O3", "E.quant.decoding"},
                                         Animal{"writes_behind_its_plane", "Q3", "E.quant"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(
    Transport,
    ZooCheck,
    testing::Values(Animal{"cuts_large_messages", "X1", "E.transport.integrity"},
                    Animal{"moves_messages", "X1", "E.transport.integrity"},
                    Animal{"turns_pairs_round", "X1", "E.transport.order"},
                    Animal{"swallows_refusals", "X2", "E.transport.refusals"},
                    Animal{"takes_any_address", "X2", "E.transport.addresses"},
                    Animal{"forgets_what_failed", "X3", "E.transport.peer_loss"},
                    Animal{"writes_behind_its_answer", "O3", "D.transport.answers"},
                    Animal{"estimates_vary", "X4", "E.transport.estimates"},
                    Animal{"claims_another_reach", "X1", "E.transport.two_sides"},
                    Animal{"keeps_what_nobody_takes", "X5", "E.transport.back_pressure"}),
    [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(Backend,
                         ZooCheck,
                         testing::Values(Animal{"endless_devices", "D2", "E.backend.refusals"},
                                         Animal{"takes_any_buffer", "D2", "E.backend.refusals"},
                                         Animal{"takes_any_rows", "D2", "E.backend.weights"},
                                         Animal{"writes_planes", "O2", "E.backend.weights"},
                                         Animal{"ignores_its_budget", "D1", "E.backend.budget"},
                                         Animal{"keeps_buffers", "D1", "E.backend.budget"},
                                         Animal{"says_it_can", "D2", "E.backend.ops"}),
                         [](const auto& instance) { return instance.param.fault; });

INSTANTIATE_TEST_SUITE_P(
    Device,
    ZooCheck,
    testing::Values(Animal{"widens_the_window", "D3", "E.backend.ops"},
                    Animal{"forgets_the_cap", "D3", "E.backend.ops"},
                    Animal{"pairs_the_other_way", "D3", "E.backend.ops"},
                    Animal{"adds_no_eps", "D3", "E.backend.ops"},
                    Animal{"knows_one_activation", "D3", "E.backend.programs"},
                    Animal{"copies_no_blocks", "D3", "E.backend.ops"},
                    Animal{"misses_the_zero", "D3", "E.backend.weight_forms"},
                    Animal{"rounds_by_the_batch", "D4", "E.backend.same_bits"},
                    Animal{"loses_what_it_refuses", "D5", "E.backend.out_of_memory"},
                    Animal{"hides_that_it_is_full", "D5", "E.backend.out_of_memory"},
                    Animal{"ends_steps_twice", "D6", "E.backend.ops"},
                    Animal{"ends_what_it_refuses", "D6", "E.backend.wrong_steps"},
                    Animal{"takes_any_step", "D2", "E.backend.wrong_steps"},
                    Animal{"writes_behind_its_rows", "O3", "E.backend.queue"},
                    Animal{"mixes_blocks_up", "D7", "E.backend.kv_blocks"},
                    Animal{"promises_too_little", "D1", "E.backend.promises"}),
    [](const auto& instance) { return instance.param.fault; });

/// Every case of a plugin that breaks no rule.
void expect_passed(const std::string& file) {
  if (kHasSanitizer) GTEST_SKIP() << "a sanitizer adds to the file what the rules forbid";
  CheckOptions options;
  options.input.file = file;
  const auto result = check_plugin(options, [](const CaseResult&) {});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_GT(result->cases.size(), 10U);
  for (const CaseResult& one : result->cases) {
    for (const Finding& finding : one.findings)
      ADD_FAILURE() << one.checked.name << ": " << finding.rule << ": " << finding.message;
    EXPECT_EQ(one.skipped, "") << one.checked.name;
  }
}

TEST(ZooCheckGood, APolicyWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_policy/zoo_good_policy.so");
}

TEST(ZooCheckGood, ARoleWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_role/zoo_good_role.so");
}

TEST(ZooCheckGood, AFormatWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_format/zoo_good_format.so");
}

TEST(ZooCheckGood, ATransportWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_transport/zoo_good_transport.so");
}

TEST(ZooCheckGood, ABackendWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_backend/zoo_good_backend.so");
}

TEST(ZooCheckGood, ADeviceWithoutAFaultPassesEveryCase) {
  expect_passed(std::string(LUNA_ZOO_DIR) + "/good_device/zoo_good_device.so");
}

class ShippedPlugins : public testing::TestWithParam<std::string> {};

TEST_P(ShippedPlugins, PassEveryCase) {
  expect_passed(std::string(LUNA_PLUGIN_DIR) + "/" + GetParam() + ".so");
}

class ShippedSchedulers : public testing::TestWithParam<std::string> {};

// Each seed is other machines and other requests.
TEST_P(ShippedSchedulers, KeepTheRulesOverSeeds) {
  CheckOptions options;
  options.input.file = std::string(LUNA_PLUGIN_DIR) + "/scheduler_" + GetParam() + ".so";
  options.input.seed = test::test_seed();
  options.n_seeds = kHasSanitizer ? 1 : 8;
  options.only = "E.scheduler.legal";
  const auto result = check_plugin(options, [](const CaseResult&) {});
  ASSERT_TRUE(result) << result.error().message();
  const CaseResult& last = result->cases.front();
  for (const Finding& finding : last.findings)
    ADD_FAILURE() << "seed " << last.seed << ": " << finding.rule << ": " << finding.message;
}

INSTANTIATE_TEST_SUITE_P(Plugins,
                         ShippedSchedulers,
                         testing::Values("static", "flowsplit", "srf", "edf", "fair"),
                         [](const auto& instance) { return instance.param; });

INSTANTIATE_TEST_SUITE_P(Plugins,
                         ShippedPlugins,
                         testing::Values("scheduler_static",
                                         "scheduler_flowsplit",
                                         "scheduler_srf",
                                         "scheduler_edf",
                                         "scheduler_fair",
                                         "role_generate",
                                         "role_postprocess",
                                         "quant_awq",
                                         "quant_dense",
                                         "quant_gguf",
                                         "quant_gptq",
                                         "quant_int8",
                                         "transport_inproc",
                                         "transport_shm",
                                         "transport_tcp",
                                         "backend_reference",
                                         "backend_cpu"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace luna::check
