#include "core/cluster/messages.hpp"

#include "core/base/units.hpp"
#include "core/cluster/step_messages.hpp"
#include "core/cluster/survey_wire.hpp"

#include <algorithm>
#include <utility>

namespace luna::cluster {
namespace {

// Bounds of what a peer that knows the token may say: far beyond what is useful, far below what
// would hurt.
constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kPathBytesMax = 4096;
constexpr std::size_t kPluginsMax = 256;
constexpr std::size_t kDevicesMax = 64;
constexpr std::size_t kFingerprintsMax = 64;
constexpr std::size_t kRanksMax = 4096;

template <std::size_t N>
void put_chars(WireWriter& writer, const char (&text)[N]) {
  writer.text({text, strnlen(text, N)});
}
template <std::size_t N>
void take_chars(WireReader& reader, char (&text)[N]) {
  const std::string value = reader.text(N - 1);
  std::copy(value.begin(), value.end(), text);
  text[value.size()] = '\0';
}

void put_device(WireWriter& writer, const DeviceOffer& device) {
  writer.text(device.name);
  writer.text(device.backend);
  writer.number(device.info.memory_bytes_total);
  writer.number(device.info.memory_bytes_free);
  writer.number(device.info.n_threads_max);
  writer.number(device.info.numerics);
  writer.number(device.info.kv_dtypes);
  put_chars(writer, device.info.name);
  put_chars(writer, device.info.detail);
  writer.number(device.memory_bytes);
  writer.number(device.n_threads);
  writer.flag(device.can_slice);
  writer.number(static_cast<std::uint32_t>(device.fingerprints.size()));
  for (const Fingerprint& fingerprint : device.fingerprints) {
    writer.number(fingerprint.numerics);
    writer.number(fingerprint.kv_dtype);
    writer.number(fingerprint.hash);
  }
}

DeviceOffer take_device(WireReader& reader) {
  DeviceOffer device;
  device.name = reader.text(kNameBytesMax);
  device.backend = reader.text(kNameBytesMax);
  device.info.struct_size = sizeof(device.info);
  device.info.memory_bytes_total = reader.number<std::uint64_t>();
  device.info.memory_bytes_free = reader.number<std::uint64_t>();
  device.info.n_threads_max = reader.number<std::uint32_t>();
  device.info.numerics = reader.number<std::uint32_t>();
  device.info.kv_dtypes = reader.number<std::uint32_t>();
  take_chars(reader, device.info.name);
  take_chars(reader, device.info.detail);
  device.memory_bytes = reader.number<std::uint64_t>();
  device.n_threads = reader.number<std::uint32_t>();
  device.can_slice = reader.flag();
  const std::uint32_t n = reader.count(kFingerprintsMax);
  for (std::uint32_t i = 0; i < n && !reader.failed(); ++i) {
    Fingerprint& fingerprint = device.fingerprints.emplace_back();
    fingerprint.numerics = reader.number<std::uint32_t>();
    fingerprint.kv_dtype = reader.number<std::uint32_t>();
    fingerprint.hash = reader.number<std::uint64_t>();
  }
  return device;
}

void put_program(WireWriter& writer, const model::ProgramOptions& program) {
  writer.number(program.numerics);
  writer.number(program.kv_dtype);
  writer.number(program.kv_block_tokens);
  writer.flag(program.prunes);
  writer.number(program.n_candidates);
  writer.number(program.n_lanes);
  writer.number(program.n_slice_peers);
  writer.number(program.limits.n_rows_max);
  writer.number(program.limits.n_seqs_max);
  writer.number(program.limits.n_out_rows_max);
  writer.number(program.limits.n_positions_max);
}

model::ProgramOptions take_program(WireReader& reader) {
  model::ProgramOptions program;
  program.numerics = reader.number<std::uint32_t>();
  program.kv_dtype = reader.number<std::uint32_t>();
  program.kv_block_tokens = reader.number<std::uint32_t>();
  program.prunes = reader.flag();
  program.n_candidates = reader.number<std::uint32_t>();
  program.n_lanes = reader.number<std::uint32_t>();
  program.n_slice_peers = reader.number<std::uint32_t>();
  program.limits.n_rows_max = reader.number<std::uint32_t>();
  program.limits.n_seqs_max = reader.number<std::uint32_t>();
  program.limits.n_out_rows_max = reader.number<std::uint32_t>();
  program.limits.n_positions_max = reader.number<std::uint32_t>();
  if (program.n_lanes == 0 || program.n_lanes > model::kLanesMax)
    reader.fail(std::to_string(program.n_lanes) + " steps in flight");
  if (program.n_slice_peers >= LUNA_SLICE_PEERS_MAX)
    reader.fail(std::to_string(program.n_slice_peers) + " other copies");
  for (const std::uint32_t limit :
       {program.limits.n_rows_max, program.limits.n_seqs_max, program.limits.n_out_rows_max})
    if (limit == 0 || limit > kStepItemsMax) reader.fail("a step of " + std::to_string(limit));
  return program;
}

template <typename Message>
Result<Message> finished(const WireReader& reader, Message message, const char* what) {
  if (const auto whole = reader.finish(); !whole) return whole.error().in(what);
  return message;
}

}  // namespace

Bytes encode_join(const Join& join) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(join.name);
  writer.text(join.version);
  writer.text(join.host);
  writer.number(join.process_id);
  writer.number(static_cast<std::uint32_t>(join.plugins.size()));
  for (const PluginIdentity& plugin : join.plugins) {
    writer.text(plugin.id);
    writer.text(plugin.version);
    writer.number(plugin.abi_minor_built);
  }
  writer.number(static_cast<std::uint32_t>(join.transports.size()));
  for (const TransportOffer& transport : join.transports) {
    writer.text(transport.name);
    writer.number(transport.reach);
  }
  writer.number(static_cast<std::uint32_t>(join.roles.size()));
  for (const std::string& role : join.roles)
    writer.text(role);
  writer.number(static_cast<std::uint32_t>(join.devices.size()));
  for (const DeviceOffer& device : join.devices)
    put_device(writer, device);
  return bytes;
}

Result<Join> parse_join(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Join join;
  join.name = reader.text(kNameBytesMax);
  join.version = reader.text(kNameBytesMax);
  join.host = reader.text(kPathBytesMax);
  join.process_id = reader.number<std::uint64_t>();
  for (std::uint32_t n = reader.count(kPluginsMax); n > 0 && !reader.failed(); --n) {
    PluginIdentity& plugin = join.plugins.emplace_back();
    plugin.id = reader.text(kNameBytesMax);
    plugin.version = reader.text(kNameBytesMax);
    plugin.abi_minor_built = reader.number<std::uint32_t>();
  }
  for (std::uint32_t n = reader.count(kPluginsMax); n > 0 && !reader.failed(); --n) {
    TransportOffer& transport = join.transports.emplace_back();
    transport.name = reader.text(kNameBytesMax);
    transport.reach = reader.number<std::uint32_t>();
  }
  for (std::uint32_t n = reader.count(kPluginsMax); n > 0 && !reader.failed(); --n)
    join.roles.push_back(reader.text(kNameBytesMax));
  for (std::uint32_t n = reader.count(kDevicesMax); n > 0 && !reader.failed(); --n)
    join.devices.push_back(take_device(reader));
  if (join.name.empty()) reader.fail("a worker without a name");
  if (join.devices.empty()) reader.fail("a worker without a device");
  return finished(reader, std::move(join), "join");
}

Bytes encode_farewell(Farewell farewell) {
  Bytes bytes;
  WireWriter(bytes).number(static_cast<std::uint8_t>(farewell));
  return bytes;
}

Result<Farewell> parse_farewell(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const auto value = reader.number<std::uint8_t>();
  if (value > static_cast<std::uint8_t>(Farewell::restart))
    reader.fail("a farewell of kind " + std::to_string(value));
  return finished(reader, static_cast<Farewell>(value), "dismiss");
}

Bytes encode_memory(const MemoryReport& report) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(report.resident);
  writer.number(report.fixed);
  writer.number(report.kv);
  writer.number(report.spare);
  writer.number(report.budget);
  return bytes;
}

Result<MemoryReport> parse_memory(std::span<const std::byte> payload) {
  WireReader reader(payload);
  MemoryReport report;
  report.resident = reader.number<std::uint64_t>();
  report.fixed = reader.number<std::uint64_t>();
  report.kv = reader.number<std::uint64_t>();
  report.spare = reader.number<std::uint64_t>();
  report.budget = reader.number<std::uint64_t>();
  return finished(reader, report, "memory");
}

Bytes encode_survey(const Survey& survey) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(survey.device_idx);
  writer.text(survey.order.source);
  writer.text(survey.order.identity);
  put_program(writer, survey.order.program);
  writer.flag(survey.order.is_timed);
  return bytes;
}

Result<Survey> parse_survey(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Survey survey;
  survey.device_idx = reader.number<std::uint32_t>();
  survey.order.source = reader.text(kPathBytesMax);
  survey.order.identity = reader.text(kNameBytesMax);
  survey.order.program = take_program(reader);
  survey.order.is_timed = reader.flag();
  return finished(reader, std::move(survey), "survey");
}

Bytes encode_plan(const Plan& plan) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(plan.device_idx);
  writer.text(plan.order.model);
  writer.text(plan.order.source);
  writer.text(plan.order.identity);
  writer.text(plan.order.transport);
  writer.text(plan.order.slice_transport);
  put_program(writer, plan.order.program);
  writer.number(plan.order.vocab_size);
  writer.number(plan.order.rank);
  writer.number(static_cast<std::uint32_t>(plan.order.layers.size()));
  for (const model::LayerRange& range : plan.order.layers) {
    writer.number(range.first);
    writer.number(range.count);
  }
  return bytes;
}

Result<Plan> parse_plan(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Plan plan;
  plan.device_idx = reader.number<std::uint32_t>();
  plan.order.model = reader.text(kNameBytesMax);
  plan.order.source = reader.text(kPathBytesMax);
  plan.order.identity = reader.text(kNameBytesMax);
  plan.order.transport = reader.text(kNameBytesMax);
  plan.order.slice_transport = reader.text(kNameBytesMax);
  plan.order.program = take_program(reader);
  plan.order.vocab_size = reader.number<std::uint32_t>();
  plan.order.rank = reader.number<std::uint32_t>();
  for (std::uint32_t n = reader.count(kRanksMax); n > 0 && !reader.failed(); --n) {
    model::LayerRange& range = plan.order.layers.emplace_back();
    range.first = reader.number<std::uint32_t>();
    range.count = reader.number<std::uint32_t>();
  }
  if (plan.order.rank >= plan.order.layers.size())
    reader.fail("rank " + std::to_string(plan.order.rank) + " of " +
                std::to_string(plan.order.layers.size()));
  return finished(reader, std::move(plan), "plan");
}

Bytes encode_bind(const Bind& bind) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(bind.n_kv_blocks);
  writer.text(bind.terms.group);
  writer.number(bind.terms.rank);
  writer.number(bind.terms.n_ranks);
  writer.number(bind.terms.message_bytes_max);
  writer.number(bind.terms.n_messages_max);
  writer.number(static_cast<std::uint32_t>(bind.terms.addresses.size()));
  for (const std::string& address : bind.terms.addresses)
    writer.text(address);
  return bytes;
}

Result<Bind> parse_bind(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Bind bind;
  bind.n_kv_blocks = reader.number<std::uint32_t>();
  bind.terms.group = reader.text(kPathBytesMax);
  bind.terms.rank = reader.number<std::uint32_t>();
  bind.terms.n_ranks = reader.number<std::uint32_t>();
  bind.terms.message_bytes_max = reader.number<std::uint64_t>();
  bind.terms.n_messages_max = reader.number<std::uint32_t>();
  for (std::uint32_t n = reader.count(kRanksMax); n > 0 && !reader.failed(); --n)
    bind.terms.addresses.push_back(reader.text(LUNA_ADDRESS_BYTES_MAX));
  const bool has_all =
      bind.terms.addresses.empty() || bind.terms.addresses.size() == bind.terms.n_ranks;
  if (bind.terms.rank >= bind.terms.n_ranks || !has_all)
    reader.fail("rank " + std::to_string(bind.terms.rank) + " of " +
                std::to_string(bind.terms.n_ranks) + " with " +
                std::to_string(bind.terms.addresses.size()) + " addresses");
  return finished(reader, std::move(bind), "bind");
}

Bytes encode_slice_terms(const model::SliceTerms& terms) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(terms.place);
  writer.flag(terms.is_first);
  writer.text(terms.group);
  writer.number(terms.message_bytes);
  writer.number(terms.n_waiters_max);
  writer.text(terms.own_address);
  writer.text(terms.other_address);
  return bytes;
}

Result<model::SliceTerms> parse_slice_terms(std::span<const std::byte> payload) {
  WireReader reader(payload);
  model::SliceTerms terms;
  terms.place = reader.number<std::uint32_t>();
  terms.is_first = reader.flag();
  terms.group = reader.text(kNameBytesMax);
  terms.message_bytes = reader.number<std::uint64_t>();
  terms.n_waiters_max = reader.number<std::uint32_t>();
  terms.own_address = reader.text(LUNA_ADDRESS_BYTES_MAX);
  terms.other_address = reader.text(LUNA_ADDRESS_BYTES_MAX);
  if (terms.group.empty()) reader.fail("two copies without a name");
  return finished(reader, std::move(terms), "slices");
}

Bytes encode_slice_place(std::uint32_t place) {
  Bytes bytes;
  WireWriter(bytes).number(place);
  return bytes;
}

Result<std::uint32_t> parse_slice_place(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const auto place = reader.number<std::uint32_t>();
  if (place >= LUNA_SLICE_PEERS_MAX) reader.fail("place " + std::to_string(place));
  return finished(reader, place, "slices");
}

Bytes encode_answer(const Answer& answer) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.result(answer.result);
  for (const std::uint64_t value : {answer.memory.weights,
                                    answer.memory.scratch,
                                    answer.memory.logits,
                                    answer.memory.candidates,
                                    answer.memory.messages,
                                    answer.memory.kv_block,
                                    answer.memory.kv})
    writer.number(value);
  writer.text(answer.address);
  writer.number(answer.layers.first);
  writer.number(answer.layers.count);
  writer.flag(answer.device.has_value());
  if (answer.device) {
    writer.result(*answer.device ? Result<void>() : Result<void>(answer.device->error()));
    if (*answer.device) put_survey(writer, **answer.device);
  }
  writer.number(answer.slice_message_bytes);
  writer.text(answer.slice_address);
  writer.flag(answer.kv.has_value());
  if (answer.kv) writer.array(&*answer.kv, 1);
  return bytes;
}

Result<Answer> parse_answer(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Answer answer;
  answer.result = reader.result();
  for (std::uint64_t* value : {&answer.memory.weights,
                               &answer.memory.scratch,
                               &answer.memory.logits,
                               &answer.memory.candidates,
                               &answer.memory.messages,
                               &answer.memory.kv_block,
                               &answer.memory.kv})
    *value = reader.number<std::uint64_t>();
  answer.address = reader.text(LUNA_ADDRESS_BYTES_MAX);
  answer.layers.first = reader.number<std::uint32_t>();
  answer.layers.count = reader.number<std::uint32_t>();
  if (reader.flag()) {
    const Result<void> surveyed = reader.result();
    if (surveyed)
      answer.device = take_survey(reader);
    else
      answer.device = surveyed.error();
  }
  // So that the end of the range is a number, too.
  if (answer.layers.first > kStepItemsMax || answer.layers.count > kStepItemsMax)
    reader.fail(std::to_string(answer.layers.count) + " layers");
  answer.slice_message_bytes = reader.number<std::uint64_t>();
  answer.slice_address = reader.text(LUNA_ADDRESS_BYTES_MAX);
  if (reader.flag()) reader.raw(std::as_writable_bytes(std::span(&answer.kv.emplace(), 1)));
  return finished(reader, std::move(answer), "answer");
}

}  // namespace luna::cluster
