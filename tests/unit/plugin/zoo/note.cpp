// The note of a plugin of the zoo, as the build finds it in the file; some faults lie here.
#include <luna/plugin.hpp>

#include <string_view>

#ifndef LUNA_ZOO_KIND
#define LUNA_ZOO_KIND LUNA_KIND_SCHEDULER
#endif

namespace {

constexpr bool is(std::string_view fault) {
  return fault == LUNA_ZOO_FAULT;
}

constexpr luna::NoteRecord make_zoo_note() {
  luna::NoteRecord record = luna::make_note("org.luna.test.zoo", "zoo", LUNA_ZOO_KIND);
  if (is("other_major")) record.note.abi_major = 99;
  if (is("newer_minor")) record.note.abi_minor_needed = 99;
  if (is("broken_note")) record.name[0] = 'X';
  return record;
}

}  // namespace

__attribute__((
    section(".note.luna"), used, aligned(4))) static constexpr luna::NoteRecord luna_note_record =
    make_zoo_note();
