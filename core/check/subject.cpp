#include "core/check/subject.hpp"

#include "core/base/assert.hpp"
#include "core/check/allocation_watch.hpp"
#include "core/plugin/elf_note.hpp"

#include <algorithm>

namespace luna::check {

std::unique_ptr<Subject> Subject::load(CaseRun& run) {
  const plugin::NoteReading reading = plugin::read_note(run.input().file);
  if (reading.refusal) {
    run.skip("the host refuses the file: " + reading.refusal->message());
    return nullptr;
  }
  run.phase("load");
  // The process may end: it is a child. The time limit is the parent's.
  auto library = plugin::Library::load(
      run.input().file, *reading.note, {"", std::chrono::milliseconds::zero()});
  if (!library) {
    const std::string_view rule = library.error().reason();
    run.fail(rule.empty() ? "B8" : rule, library.error().message());
    return nullptr;
  }
  std::unique_ptr<Subject> subject(new Subject(run, *reading.note, *std::move(library)));
  if (!subject->start()) return nullptr;
  return subject;
}

bool Subject::start() {
  const luna_plugin& plugin = library_.descriptor();
  if (plugin.init == nullptr) return true;
  run_.phase("init");
  luna_err err = make_err();
  luna_status status = LUNA_OK;
  if (!call_fenced(run_, "init", [&] { status = plugin.init(host_.raw(), &err); })) return false;
  if (status >= 0) return true;
  if (err.text[0] == '\0')
    run_.fail("E2", "init failed with status " + std::to_string(status) + " and no reason");
  else
    run_.skip("it cannot be started here: " + std::string(text_of(err)));
  return false;
}

std::vector<std::string> Subject::kinds() const {
  std::vector<std::string> kinds;
  for (const std::string_view kind : plugin::kinds_of(note_))
    if (plugin::table_size(kind) != 0) kinds.emplace_back(kind);
  return kinds;
}

const luna_if& Subject::head(const std::string& kind) const {
  const auto found = library_.table(kind, plugin::table_size(kind));
  LUNA_VERIFY(found.has_value());  // Library::load has asked for each
  return **found;
}

std::optional<plugin::SettingRows> Subject::settings(const luna_if& head) {
  config::RawGroup group{"--set", "settings", {1, 1}, {}, {}};
  const auto params = plugin::params_of(head);
  for (const auto& [key, text] : run_.input().settings) {
    const auto param =
        std::ranges::find_if(params, [&key = key](const luna_param* p) { return key == p->key; });
    // Without a type it is an unknown key, which check_rows says.
    auto value = param == params.end() ? std::optional<config::RawValue>(text)
                                       : plugin::parse_setting(**param, text.c_str());
    if (!value) value = config::RawValue(text);
    group.rows.push_back({key, *std::move(value), {1, 1}, {1, 1}});
  }
  plugin::CheckedRows checked = plugin::check_rows(head, group);
  if (checked.errors.empty()) return std::move(checked.rows);
  bool is_broken = false;
  std::string text;
  for (const Error& error : checked.errors) {
    is_broken |= error.code() == Code::corrupt;
    text += (text.empty() ? "" : "; ") + error.message();
  }
  if (is_broken)
    run_.fail("V9", text);
  else
    run_.skip("it needs other settings, give --set KEY=VALUE: " + text);
  return std::nullopt;
}

Created Subject::create(const luna_if& head, std::span<const luna_kv> rows, std::uint64_t fail_at) {
  Created made;
  if (fail_at == 0) run_.phase("create");
  if (!call_fenced(run_, "create", [&] {
        const AllocationWatch::Failing failing(fail_at, made.n_allocations);
        made.status = head.create(host_.raw(),
                                  rows.data(),
                                  static_cast<std::uint32_t>(rows.size()),
                                  &made.self,
                                  &made.err);
      }))
    made.status = LUNA_INTERNAL;
  return made;
}

bool Subject::is_made(const Created& made) {
  if (made.status >= 0 && made.self != nullptr) return true;
  if (run_.has_failed()) return false;
  if (made.status >= 0)
    run_.fail("V6", "create succeeded and made no instance");
  else if (made.err.text[0] == '\0')
    run_.fail("E2", "create failed with status " + std::to_string(made.status) + " and no reason");
  else
    // A device that is not here is no fault of the plugin's.
    run_.skip("it cannot be made here: " + std::string(text_of(made.err)));
  return false;
}

}  // namespace luna::check
