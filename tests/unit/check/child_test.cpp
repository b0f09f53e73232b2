// A process of its own: whatever the body does to it, its parent learns how it ended.
#include "core/check/child.hpp"

#include "core/check/guarded_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <unistd.h>

namespace luna::check {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

ChildReport run(const std::function<void(CaseRun&)>& body,
                milliseconds limit = milliseconds(60000)) {
  return run_in_child({}, limit, body);
}

TEST(Child, TellsWhatItsBodySays) {
  const ChildReport report = run([](CaseRun& run) {
    run.phase("one");
    run.fail("S1", "first");
    run.figure("n", "7");
    run.phase("two");
  });
  EXPECT_EQ(report.end, ChildEnd::finished);
  EXPECT_EQ(report.phase, "two");
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].rule, "S1");
  EXPECT_EQ(report.findings[0].message, "first");
  EXPECT_EQ(report.figures.front().second, "7");
  EXPECT_FALSE(report.is_fine());
}

TEST(Child, KeepsAFewOfManyFindings) {
  const ChildReport report = run([](CaseRun& run) {
    for (int i = 0; i < 1000; ++i)
      run.fail("S1", "again");
  });
  EXPECT_EQ(report.findings.size(), 5U);
}

TEST(Child, TellsSignalExitAndThrow) {
  const ChildReport crashed = run([](CaseRun& run) {
    run.phase("the crash");
    ::raise(SIGSEGV);
  });
  EXPECT_EQ(crashed.end, ChildEnd::signalled);
  EXPECT_EQ(crashed.number, SIGSEGV);
  const Finding finding = describe_end(crashed, "O1", milliseconds(1));
  EXPECT_EQ(finding.rule, "O1");
  EXPECT_THAT(finding.message, HasSubstr("the crash"));

  const ChildReport exited = run([](CaseRun&) { std::exit(3); });
  EXPECT_EQ(exited.end, ChildEnd::exited);
  EXPECT_EQ(exited.number, 3);
  EXPECT_EQ(describe_end(exited, "O1", milliseconds(1)).rule, "U3");

  const ChildReport thrown = run([](CaseRun&) {
    const auto body = [] { throw std::runtime_error("out of here"); };
    [&]() noexcept { body(); }();
  });
  EXPECT_EQ(thrown.end, ChildEnd::terminated);
  EXPECT_EQ(thrown.thrown, "out of here");
  EXPECT_EQ(describe_end(thrown, "O1", milliseconds(1)).rule, "E1");
}

TEST(Child, IsKilledWithAllThatItStartedWhenItsTimeIsUp) {
  const ChildReport report = run(
      [](CaseRun& run) {
        run.phase("waiting");
        // Holds the pipe open beyond the child's end.
        if (::fork() == 0)
          for (;;)
            ::pause();
        for (;;)
          ::pause();
      },
      milliseconds(200));
  EXPECT_EQ(report.end, ChildEnd::timed_out);
  const Finding finding = describe_end(report, "O1", milliseconds(200));
  EXPECT_EQ(finding.rule, "U4");
  EXPECT_THAT(finding.message, HasSubstr("200 ms while: waiting"));
}

TEST(Child, ItsOutputIsKeptForTheReport) {
  const ChildReport report = run([](CaseRun&) {
    std::fputs("about to fall\n", stderr);
    std::fflush(stderr);
    std::abort();
  });
  EXPECT_EQ(report.number, SIGABRT);
  EXPECT_EQ(report.output, "about to fall");
}

TEST(GuardedMemory, TellsWritesBehindItsEndAndWhatIsTouchedLater) {
  const auto behind = run([](CaseRun&) {
    const GuardedMemory memory(64);
    volatile std::byte* const end = memory.bytes().data() + memory.bytes().size();
    *end = std::byte{1};
  });
  EXPECT_EQ(behind.number, SIGSEGV);
  const auto written = run([](CaseRun&) {
    GuardedMemory memory(40);
    memory.bytes()[0] = std::byte{1};
    memory.make_read_only();
    volatile std::byte* const first = memory.bytes().data();
    *first = std::byte{2};
  });
  EXPECT_EQ(written.number, SIGSEGV);
  const auto gone = run([](CaseRun& run) {
    GuardedMemory memory(40);
    memory.take_away();
    const volatile std::byte* const first = memory.bytes().data();
    if (*first == std::byte{0}) run.skip("it was there");
  });
  EXPECT_EQ(gone.number, SIGSEGV);
}

}  // namespace
}  // namespace luna::check
