// A built plugin, loaded for a test as a host would load it, without the checks that a host makes.
#pragma once

#include <luna/plugin.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <dlfcn.h>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace luna::test {

/// Settings of an instance: what differs from the defaults that the plugin declares. A list and a
/// map are vectors; of a map: key, value, key, value ...
using SettingValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;
using SettingValues = std::map<std::string, SettingValue>;

/// A host that keeps log lines and counts random numbers.
class FakeHost {
 public:
  FakeHost() {
    host_ = {sizeof(luna_host),
             LUNA_ABI_MINOR,
             "luna",
             "test",
             log,
             now_ns,
             rand_u64,
             parallel_for,
             service};
  }
  [[nodiscard]] const luna_host* raw() const { return &host_; }

 private:
  static void log(const luna_host*, std::int32_t, luna_str) {}
  static std::uint64_t now_ns(const luna_host*) { return 0; }
  static std::uint64_t rand_u64(const luna_host*, std::uint64_t stream) { return stream; }
  static luna_status parallel_for(const luna_host*,
                                  std::uint32_t n,
                                  void (*fn)(void*, std::uint32_t),
                                  void* arg) {
    for (std::uint32_t i = 0; i < n; ++i)
      fn(arg, i);
    return LUNA_OK;
  }
  static const void* service(const luna_host*, const char*) { return nullptr; }

  luna_host host_{};
};

/// The settings of one instance as rows of the contract, defaults filled in.
class SettingRows {
 public:
  SettingRows(const luna_if& head, const SettingValues& values) {
    // A plugin of an older minor version has shorter rows.
    const auto* at = reinterpret_cast<const unsigned char*>(head.params);
    for (std::uint32_t i = 0; i < head.n_params; ++i) {
      const auto& param = *reinterpret_cast<const luna_param*>(at);
      at += param.struct_size;
      luna_kv row{};
      row.key = to_abi(param.key);
      row.type = param.type;
      const auto found = values.find(param.key);
      if (found != values.end()) {
        fill(row, found->second);
      } else {
        EXPECT_NE(param.dflt, nullptr) << "required setting " << param.key << " is missing";
        fill_default(row, param.dflt != nullptr ? param.dflt : "");
      }
      rows_.push_back(row);
    }
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](const auto& value) {
      return std::any_of(rows_.begin(), rows_.end(), [&](const luna_kv& row) {
        return view(row.key) == value.first;
      });
    })) << "a setting that the plugin does not declare";
  }
  [[nodiscard]] const luna_kv* data() const { return rows_.data(); }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(rows_.size()); }

 private:
  luna_str keep(std::string text) { return to_abi(texts_.emplace_back(std::move(text))); }

  void fill(luna_kv& row, const SettingValue& value) {
    if (const auto* flag = std::get_if<bool>(&value)) row.i = *flag ? 1 : 0;
    if (const auto* number = std::get_if<std::int64_t>(&value)) row.i = *number;
    if (const auto* number = std::get_if<double>(&value)) row.f = *number;
    if (const auto* text = std::get_if<std::string>(&value)) row.s = keep(*text);
    if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
      std::string joined;
      for (const std::string& element : *list)
        joined.append(element).push_back('\0');
      row.s = keep(std::move(joined));
    }
  }

  void fill_default(luna_kv& row, std::string_view text) {
    switch (row.type) {
      case LUNA_TYPE_BOOL:
        row.i = text == "true" ? 1 : 0;
        break;
      case LUNA_TYPE_INT:
        std::from_chars(text.data(), text.data() + text.size(), row.i);
        break;
      case LUNA_TYPE_FLOAT:
        std::from_chars(text.data(), text.data() + text.size(), row.f);
        break;
      case LUNA_TYPE_STRING:
        row.s = keep(std::string(text));
        break;
      default:  // lists and maps default to empty
        break;
    }
  }

  std::vector<luna_kv> rows_;
  std::list<std::string> texts_;
};

/// The table of a kind from plugins/<file>.so of the build; the library stays loaded.
template <typename Table>
const Table* load_table(const std::string& file, const char* kind) {
  const std::string path = std::string(LUNA_PLUGIN_DIR) + "/" + file + ".so";
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  EXPECT_NE(library, nullptr) << ::dlerror();
  if (library == nullptr) return nullptr;
  const auto query = reinterpret_cast<const luna_plugin* (*)(std::uint32_t, std::uint32_t)>(
      ::dlsym(library, "luna_plugin_query"));
  EXPECT_NE(query, nullptr);
  if (query == nullptr) return nullptr;
  const luna_plugin* const plugin = query(LUNA_ABI_MAJOR, LUNA_ABI_MINOR);
  return plugin == nullptr ? nullptr : static_cast<const Table*>(plugin->table(kind));
}

/// Makes an instance; the error is the plugin's own text.
template <typename Table>
Result<void*> make_instance(const Table& table, const FakeHost& host, const SettingValues& values) {
  const SettingRows rows(table.head, values);
  void* self = nullptr;
  luna_err err = make_err();
  LUNA_TRY(to_result(
      table.head.create(host.raw(), rows.data(), rows.size(), &self, &err), err, "create"));
  return self;
}

}  // namespace luna::test
