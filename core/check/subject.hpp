// The plugin under the validator: loaded, started and made as the program does it.
#pragma once

#include "core/check/case_run.hpp"
#include "core/check/check_host.hpp"
#include "core/plugin/instance.hpp"
#include "core/plugin/library.hpp"
#include "core/plugin/settings_rows.hpp"

#include <luna/plugin.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// What create() answered.
struct Created {
  luna_status status = LUNA_OK;
  void* self = nullptr;
  luna_err err = make_err();
  std::uint64_t n_allocations = 0;  ///< where they were watched
};

/// One library in a case's process. What goes wrong on the way is told to the run.
class Subject {
 public:
  /// Loads, queries, starts. nullptr: the run was told why.
  static std::unique_ptr<Subject> load(CaseRun& run);

  [[nodiscard]] const luna_note& note() const { return note_; }
  [[nodiscard]] const plugin::Library& library() const { return library_; }
  [[nodiscard]] std::vector<std::string> kinds() const;
  [[nodiscard]] CheckHost& host() { return host_; }

  /// The head of a kind that the note names.
  [[nodiscard]] const luna_if& head(const std::string& kind) const;
  /// Its settings: the defaults, and what the input says. nullopt: the run was told why.
  std::optional<plugin::SettingRows> settings(const luna_if& head);
  /// One call of create(), whatever it answers.
  ///
  /// fail_at  the allocation that gets no memory, by AllocationWatch, which is installed; 0: none
  Created create(const luna_if& head, std::span<const luna_kv> rows, std::uint64_t fail_at = 0);
  /// Whether it made an instance. False: the run was told why.
  bool is_made(const Created& made);
  /// An instance that must be there. An empty one: the run was told why.
  template <typename Table>
  plugin::Instance<Table> make(const std::string& kind) {
    const luna_if& table = head(kind);
    const std::optional<plugin::SettingRows> rows = settings(table);
    if (!rows) return {};
    const Created made = create(table, rows->rows());
    if (!is_made(made)) return {};
    return {reinterpret_cast<const Table*>(&table), made.self, note_.name};
  }

 private:
  Subject(CaseRun& run, const luna_note& note, plugin::Library library)
      : run_(run), note_(note), library_(std::move(library)), host_(run.input().seed, note.name) {}
  bool start();

  CaseRun& run_;
  luna_note note_;
  plugin::Library library_;
  CheckHost host_;
};

/// Runs `call` of a plugin; what it throws breaks E1 and is told. False then.
template <typename Call>
bool call_fenced(CaseRun& run, std::string_view what, Call&& call) {
  std::string thrown;
  try {
    call();
    return true;
  } catch (const std::exception& e) {
    thrown = e.what();
  } catch (...) {
    thrown = "an exception that is not a std::exception";
  }
  run.fail("E1", std::string(what) + " threw: " + thrown);
  return false;
}

}  // namespace luna::check
