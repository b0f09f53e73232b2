// Group D: records that a plugin fills. A host of an older minor version has less room for them.
#include "core/check/answer_room.hpp"
#include "core/check/cases.hpp"
#include "core/check/subject.hpp"

#include <luna/abi/backend.h>
#include <luna/abi/transport.h>

#include <array>

namespace luna::check {
namespace {

void check_caps(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto transport = subject->make<luna_transport_if>(LUNA_KIND_TRANSPORT);
  if (!transport) return;
  run.phase("caps");
  AnswerRoom<luna_transport_caps> room;
  transport->caps(transport.self(), room.record());
  if (!room.is_kept()) run.fail("O3", "caps() writes behind its record's struct_size");
}

void check_device_info(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  const auto backend = subject->make<luna_backend_if>(LUNA_KIND_BACKEND);
  if (!backend) return;
  run.phase("device_info");
  AnswerRoom<luna_device_info> room;
  backend->device_info(backend.self(), 0, room.record());
  if (!room.is_kept()) run.fail("O3", "device_info() writes behind its record's struct_size");
}

constexpr auto kCases = std::to_array<Case>({
    {"D.transport.answers", LUNA_KIND_TRANSPORT, "O3", check_caps},
    {"D.backend.answers", LUNA_KIND_BACKEND, "O3", check_device_info},
});

}  // namespace

std::span<const Case> answer_cases() {
  return kCases;
}

}  // namespace luna::check
