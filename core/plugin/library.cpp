#include "core/plugin/library.hpp"

#define BOOST_DLL_USE_STD_FS
#include "core/plugin/elf_note.hpp"
#include "core/plugin/startup_guard.hpp"

#include <boost/dll/shared_library.hpp>

#include <exception>
#include <map>
#include <optional>
#include <system_error>

namespace luna::plugin {
namespace {

using QueryFunction = const luna_plugin*(std::uint32_t, std::uint32_t);
constexpr const char* kEntrySymbol = "luna_plugin_query";
// Numbers of docs/plugin-rules.md: the reasons of refusals.
constexpr std::string_view kRuleVersion = "V2";
constexpr std::string_view kRuleDescriptor = "V3";
constexpr std::string_view kRuleTable = "V6";

/// Handles of everything that was loaded. Never destroyed: unloading code whose threads, statics
/// or exit handlers may still run is how hosts crash at exit. [start-up]
std::map<std::string, boost::dll::shared_library>& resident_libraries() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): outlives exit handlers
  static auto* const libraries = new std::map<std::string, boost::dll::shared_library>();
  return *libraries;
}

/// The dynamic linker's own words, without the prefix that Boost puts before them.
std::string linker_reason(const std::exception& e) {
  std::string text = e.what();
  constexpr std::string_view kPrefix =
      "boost::dll::shared_library::load() failed (dlerror system "
      "message: ";
  if (text.starts_with(kPrefix)) {
    text.erase(0, kPrefix.size());
    if (const std::size_t end = text.rfind("): "); end != std::string::npos) text.resize(end);
  }
  return text;
}

Result<boost::dll::shared_library*> open_resident(const std::filesystem::path& file,
                                                  const StartupGuard::Options& guard) {
  auto& libraries = resident_libraries();
  if (const auto found = libraries.find(file.string()); found != libraries.end())
    return &found->second;
  std::optional<std::string> reason;
  boost::dll::shared_library library;
  StartupGuard::run(guard, [&] {
    try {
      library.load(file, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    } catch (const std::system_error& e) {
      reason = linker_reason(e);
    }
  });
  if (reason) return Error{Code::io, "cannot be loaded: " + *reason, "B8"};
  return &libraries.emplace(file.string(), std::move(library)).first->second;
}

Result<const luna_plugin*> query(QueryFunction* function, const StartupGuard::Options& guard) {
  const luna_plugin* descriptor = nullptr;
  std::optional<std::string> thrown;
  StartupGuard::run(guard, [&] {
    try {
      descriptor = function(LUNA_ABI_MAJOR, LUNA_ABI_MINOR);
    } catch (const std::exception& e) {
      thrown = e.what();
    } catch (...) {
      thrown = "an exception that is not a std::exception";
    }
  });
  if (thrown) return Error{Code::internal, "its query function threw: " + *thrown, "E1"};
  if (descriptor == nullptr)
    return Error{
        Code::unsupported, "its query function refuses this program's plugin ABI", kRuleVersion};
  return descriptor;
}

Result<void> check_equal(const char* what, const char* from_query, const char* from_note) {
  if (from_query == nullptr)
    return Error{Code::corrupt, std::string("has no ") + what, kRuleDescriptor};
  if (std::string_view(from_query) != from_note)
    return Error{
        Code::corrupt,
        std::string("its ") + what + " is '" + from_query + "', its note says '" + from_note + "'",
        kRuleDescriptor};
  return {};
}

Result<void> check_descriptor(const luna_plugin* plugin, const luna_note& note) {
  if (!LUNA_HAS(plugin, luna_plugin, fini))
    return Error{Code::corrupt,
                 "its descriptor has " + std::to_string(plugin->struct_size) + " bytes, at least " +
                     std::to_string(LUNA_SIZE_THROUGH(luna_plugin, fini)) + " are needed",
                 kRuleDescriptor};
  LUNA_TRY(check_equal("id", plugin->id, note.id));
  LUNA_TRY(check_equal("name", plugin->name, note.name));
  if (plugin->abi_major != note.abi_major || plugin->abi_minor_needed != note.abi_minor_needed)
    return Error{
        Code::corrupt, "its descriptor and its note state different ABI versions", kRuleDescriptor};
  if (plugin->version == nullptr || plugin->summary == nullptr || plugin->table == nullptr)
    return Error{Code::corrupt,
                 "its descriptor lacks a version, a summary or a table function",
                 kRuleDescriptor};
  return {};
}

/// A table is a luna_if and then function pointers: none of them may be missing.
bool has_every_function(const luna_if* head, std::size_t size) {
  if (head->create == nullptr || head->destroy == nullptr || head->ext == nullptr) return false;
  const auto* bytes = reinterpret_cast<const unsigned char*>(head);
  for (std::size_t at = sizeof(luna_if); at + sizeof(void*) <= size; at += sizeof(void*)) {
    std::uintptr_t function = 0;
    std::memcpy(&function, bytes + at, sizeof(function));
    if (function == 0) return false;
  }
  return true;
}

}  // namespace

std::size_t table_size(std::string_view kind) {
  if (kind == LUNA_KIND_SCHEDULER) return LUNA_SIZE_THROUGH(luna_scheduler_if, plan);
  if (kind == LUNA_KIND_ROLE) return LUNA_SIZE_THROUGH(luna_role_if, drop);
  if (kind == LUNA_KIND_QUANT) return LUNA_SIZE_THROUGH(luna_quant_if, row_f32);
  if (kind == LUNA_KIND_TRANSPORT) return LUNA_SIZE_THROUGH(luna_transport_if, drop_peer);
  if (kind == LUNA_KIND_BACKEND) return LUNA_SIZE_THROUGH(luna_backend_if, submit);
  return 0;
}

Result<Library> Library::load(const std::filesystem::path& file,
                              const luna_note& note,
                              const LoadOptions& options) {
  StartupGuard::Options guard{file.string(), Phase::load, options.candidates, options.limit};
  LUNA_TRY(boost::dll::shared_library * library, open_resident(file, guard));
  if (!library->has(kEntrySymbol))
    return Error{
        Code::not_found, std::string("the entry symbol ") + kEntrySymbol + " is missing", "B2"};
  guard.phase = Phase::query;
  LUNA_TRY(const luna_plugin* descriptor, query(&library->get<QueryFunction>(kEntrySymbol), guard));
  LUNA_TRY(check_descriptor(descriptor, note));
  Library loaded(file, descriptor);
  for (const std::string_view kind : kinds_of(note))
    if (const std::size_t size = table_size(kind); size != 0)
      LUNA_TRY(loaded.table(std::string(kind), size));
  return loaded;
}

Result<const luna_if*> Library::table(const std::string& kind, std::size_t size_min) const {
  const auto* head = static_cast<const luna_if*>(descriptor_->table(kind.c_str()));
  if (head == nullptr) return Error{Code::not_found, "offers no table of kind " + kind, kRuleTable};
  if (head->struct_size < size_min)
    return Error{Code::corrupt,
                 "its table of kind " + kind + " has " + std::to_string(head->struct_size) +
                     " bytes, at least " + std::to_string(size_min) + " are needed",
                 kRuleTable};
  if (!has_every_function(head, size_min))
    return Error{Code::corrupt, "its table of kind " + kind + " lacks a function", kRuleTable};
  if (head->n_params != 0 && head->params == nullptr)
    return Error{Code::corrupt,
                 "its table of kind " + kind + " declares parameters but has none",
                 kRuleTable};
  return head;
}

}  // namespace luna::plugin
