// One case of the validator while it runs: what it is told, and what it says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::check {

/// What a case is told.
struct CaseInput {
  std::filesystem::path file;  ///< absolute
  std::uint64_t seed = 1;      ///< of everything that is drawn
  /// Settings that differ from the plugin's defaults: key, text of the value.
  std::vector<std::pair<std::string, std::string>> settings;
  bool is_large = false;  ///< with what takes gigabytes
};

/// A breach of a rule.
struct Finding {
  std::string rule;  ///< "S1"
  std::string message;
};

/// What a case says goes to a sink at once, because the process may end at any time.
class CaseRun {
 public:
  enum class Word : char { phase = 'P', finding = 'F', skip = 'S', figure = 'N' };
  using Sink = std::function<void(Word, std::string_view first, std::string_view second)>;

  CaseRun(CaseInput input, Sink sink) : input_(std::move(input)), sink_(std::move(sink)) {}

  [[nodiscard]] const CaseInput& input() const { return input_; }
  /// What begins now: told if the process ends in it.
  void phase(std::string_view what) { sink_(Word::phase, what, {}); }
  void fail(std::string_view rule, std::string_view message) {
    ++n_findings_;
    // A plugin that breaks a rule in each of a thousand plans is told a few times.
    if (n_findings_ <= kFindingsMax) sink_(Word::finding, rule, message);
  }
  void skip(std::string_view why) { sink_(Word::skip, why, {}); }
  void figure(std::string_view name, std::string_view value) { sink_(Word::figure, name, value); }
  [[nodiscard]] bool has_failed() const { return n_findings_ > 0; }

 private:
  static constexpr int kFindingsMax = 5;
  CaseInput input_;
  Sink sink_;
  int n_findings_ = 0;
};

/// One case. A value of static texts.
struct Case {
  std::string_view name;  ///< "E.scheduler.legal_plans"; the first letter is the group
  std::string_view kind;  ///< LUNA_KIND_*; empty: every plugin
  /// What is broken where the process crashes in it.
  std::string_view rule_of_crash;
  void (*run)(CaseRun&);
};

}  // namespace luna::check
