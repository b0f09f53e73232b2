// The C++ side of plugin.h: exception fence, typed settings, host handle, and the macro that makes
// a shared library a plugin. Header-only; links nothing from the host.
#pragma once

#include <luna/plugin.h>
#include <luna/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace luna {

inline std::string_view view(luna_str s) {
  return {s.p, static_cast<std::size_t>(s.n)};
}
inline luna_str to_abi(std::string_view s) {
  return {s.data(), s.size()};
}

/// Fills the caller's error record; text beyond its size is cut.
inline luna_status report(luna_err* err, luna_status code, std::string_view message) noexcept {
  if (err != nullptr && LUNA_HAS(err, luna_err, text)) {
    err->code = code;
    const std::size_t n =
        message.size() < sizeof(err->text) - 1 ? message.size() : sizeof(err->text) - 1;
    std::memcpy(err->text, message.data(), n);
    err->text[n] = '\0';
  }
  return code;
}

inline luna_status report(luna_err* err, const Error& error) noexcept {
  return report(err, static_cast<luna_status>(error.code()), error.message());
}

/// An error record ready to be passed to the other side.
inline luna_err make_err() {
  luna_err err{};
  err.struct_size = sizeof(err);
  return err;
}

/// What the other side wrote into an error record; it may have left out the final zero.
inline std::string_view text_of(const luna_err& err) {
  return {err.text, strnlen(err.text, sizeof(err.text))};
}

/// Answers in a record of the caller, which may be of an older or a newer minor version: as much of
/// it as both know is written, and its struct_size says how much that is.
template <typename T>
void fill_record(T* to, const T& from) noexcept {
  const std::size_t n = std::min<std::size_t>(to->struct_size, sizeof(T));
  std::memcpy(to, &from, n);
  to->struct_size = static_cast<std::uint32_t>(n);
}

/// A copy of a record of the other side; what that does not have is zero.
template <typename T>
T copy_record(const T& from) noexcept {
  T copy{};
  const std::size_t n = std::min<std::size_t>(from.struct_size, sizeof(T));
  std::memcpy(&copy, &from, n);
  copy.struct_size = static_cast<std::uint32_t>(n);
  return copy;
}

/// What the other side answered, as a Result. `what` names the call that was made.
inline Result<void> to_result(luna_status status, const luna_err& err, std::string_view what) {
  if (status >= 0) return {};
  std::string message(what);
  message += ": ";
  message += err.text[0] != '\0' ? text_of(err) : "no reason given";
  const bool known = status >= LUNA_INTERNAL;
  return Error{known ? static_cast<Code>(status) : Code::internal, std::move(message)};
}

/// Runs `body`, which returns luna_status or Result<void>; nothing it throws crosses the border.
template <typename Body>
luna_status fenced(luna_err* err, Body&& body) noexcept {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Body>, luna_status>) {
      return std::forward<Body>(body)();
    } else {
      Result<void> result = std::forward<Body>(body)();
      return result ? LUNA_OK : report(err, result.error());
    }
  } catch (const std::bad_alloc&) {
    return report(err, LUNA_EXHAUSTED, "out of memory");
  } catch (const std::exception& e) {
    return report(err, LUNA_INTERNAL, e.what());
  } catch (...) {
    return report(err, LUNA_INTERNAL, "an exception that is not a std::exception");
  }
}

/// The typed settings of an instance. The host has checked them against the declared parameters
/// and filled in the defaults, so a missing key is a bug of the plugin.
class Settings {
 public:
  Settings(const luna_kv* rows, std::uint32_t n_rows) : rows_(rows, n_rows) {}

  [[nodiscard]] bool flag(std::string_view key) const { return at(key).i != 0; }
  [[nodiscard]] std::int64_t integer(std::string_view key) const { return at(key).i; }
  [[nodiscard]] double number(std::string_view key) const { return at(key).f; }
  [[nodiscard]] std::string text(std::string_view key) const {
    return std::string(view(at(key).s));
  }

  /// Elements of a string list; of a map: key, value, key, value ...
  [[nodiscard]] std::vector<std::string> list(std::string_view key) const {
    std::vector<std::string> elements;
    std::string_view rest = view(at(key).s);
    while (!rest.empty()) {
      const std::size_t end = rest.find('\0');
      elements.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    return elements;
  }

 private:
  [[nodiscard]] const luna_kv& at(std::string_view key) const {
    for (const luna_kv& row : rows_)
      if (view(row.key) == key) return row;
    static constexpr luna_kv kAbsent{};
    return kAbsent;
  }
  std::span<const luna_kv> rows_;
};

/// The host as a plugin sees it. Copyable; outlives every instance.
class Host {
 public:
  explicit Host(const luna_host* host) : host_(host) {}
  void log(std::int32_t level, std::string_view text) const {
    host_->log(host_, level, to_abi(text));
  }
  [[nodiscard]] std::uint64_t now_ns() const { return host_->now_ns(host_); }
  [[nodiscard]] std::uint64_t random(std::uint64_t stream) const {
    return host_->rand_u64(host_, stream);
  }
  [[nodiscard]] const luna_host* raw() const { return host_; }

 private:
  const luna_host* host_;
};

/// Declares one setting. Absent bounds, choices or defaults are nullptr.
// NOLINTNEXTLINE(readability-function-size): the fields of luna_param, one each
constexpr luna_param param(std::uint32_t type,
                           const char* key,
                           const char* dflt,
                           const char* min,
                           const char* max,
                           const char* choices,
                           const char* help) {
  return {sizeof(luna_param), type, key, dflt, min, max, choices, help};
}

/// luna_if::create and destroy for a class with
/// `static Result<std::unique_ptr<T>> create(Host, const Settings&)`.
template <typename T>
luna_status create_instance(const luna_host* host,
                            const luna_kv* settings,
                            std::uint32_t n_settings,
                            void** self,
                            luna_err* err) noexcept {
  return fenced(err, [&]() -> Result<void> {
    LUNA_TRY(auto made, T::create(Host(host), Settings(settings, n_settings)));
    *self = made.release();
    return {};
  });
}

template <typename T>
void destroy_instance(void* self) noexcept {
  delete static_cast<T*>(self);
}

inline const void* no_extension(void* /*self*/, const char* /*id*/) noexcept {
  return nullptr;
}

/// The head of a kind's table for class T without extensions.
template <typename T, typename Table>
constexpr luna_if make_head(std::span<const luna_param> params = {}) {
  return {sizeof(Table),
          0,
          static_cast<std::uint32_t>(params.size()),
          0,
          params.data(),
          create_instance<T>,
          destroy_instance<T>,
          no_extension};
}

/// The host's minor version that a plugin cannot do without, whatever it is built with: what came
/// later is used behind LUNA_HAS. luna_add_plugin(... MIN_ABI_MINOR n) sets it.
#ifndef LUNA_ABI_MINOR_NEEDED
#define LUNA_ABI_MINOR_NEEDED 0u
#endif

/// The ELF note as it lies in the file: header, owner padded to 8 bytes, payload.
struct NoteRecord {
  std::uint32_t name_size = 5;
  std::uint32_t desc_size = sizeof(luna_note);
  std::uint32_t type = LUNA_NOTE_TYPE;
  char name[8] = {'L', 'u', 'n', 'a', '\0', '\0', '\0', '\0'};
  luna_note note{};
};

template <std::size_t N, std::size_t M>
constexpr void copy_literal(char (&to)[N], const char (&from)[M]) {
  static_assert(M <= N, "the text does not fit its field of the note");
  for (std::size_t i = 0; i < M; ++i)
    to[i] = from[i];
}

template <std::size_t A, std::size_t B, std::size_t C>
constexpr NoteRecord make_note(const char (&id)[A], const char (&name)[B], const char (&kinds)[C]) {
  NoteRecord record;
  record.note.struct_size = sizeof(luna_note);
  record.note.abi_major = LUNA_ABI_MAJOR;
  record.note.abi_minor_built = LUNA_ABI_MINOR;
  record.note.abi_minor_needed = LUNA_ABI_MINOR_NEEDED;
  copy_literal(record.note.id, id);
  copy_literal(record.note.name, name);
  copy_literal(record.note.kinds, kinds);
  return record;
}

}  // namespace luna

/// Makes the shared library a plugin of one kind. At namespace scope, once a plugin:
///   LUNA_DEFINE_PLUGIN("org.luna.scheduler.static", "static", "0.1.0", "First come, first
///   served.",
///                      LUNA_KIND_SCHEDULER, kTable)
/// TABLE is a constant of static storage whose first member is a luna_if.
#define LUNA_DEFINE_PLUGIN(ID, NAME, VERSION, SUMMARY, KIND, TABLE)                             \
  __attribute__((section(".note.luna"),                                                         \
                 used,                                                                          \
                 aligned(4))) static constexpr ::luna::NoteRecord luna_note_record =            \
      ::luna::make_note(ID, NAME, KIND);                                                        \
  extern "C" LUNA_EXPORT const luna_plugin* luna_plugin_query(std::uint32_t host_major,         \
                                                              std::uint32_t /*host_minor*/) {   \
    static constexpr luna_plugin kPlugin = {                                                    \
        sizeof(luna_plugin),                                                                    \
        LUNA_ABI_MAJOR,                                                                         \
        LUNA_ABI_MINOR,                                                                         \
        LUNA_ABI_MINOR_NEEDED,                                                                  \
        ID,                                                                                     \
        NAME,                                                                                   \
        VERSION,                                                                                \
        "Luna",                                                                                 \
        "Apache-2.0",                                                                           \
        SUMMARY,                                                                                \
        LUNA_PLUGIN_DETERMINISTIC,                                                              \
        [](const char* kind) -> const void* {                                                   \
          return std::string_view(kind) == KIND ? static_cast<const void*>(&(TABLE)) : nullptr; \
        },                                                                                      \
        nullptr,                                                                                \
        nullptr};                                                                               \
    return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;                                   \
  }
