// A plugin inside of a plugin: for decorators, which stand in front of another plugin of their kind
// and hand over what they do not do themselves. Header-only; link ${CMAKE_DL_LIBS}.
#pragma once

#include <luna/plugin.hpp>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace luna {

/// An instance of another plugin, made by the same host. Owns the instance; its library stays
/// loaded.
class InnerPlugin {
 public:
  /// Settings of the inner plugin by key, as text; what is not there has its default.
  using Texts = std::span<const std::pair<std::string, std::string>>;

  InnerPlugin() = default;
  InnerPlugin(InnerPlugin&& other) noexcept
      : head_(std::exchange(other.head_, nullptr)), self_(std::exchange(other.self_, nullptr)) {}
  InnerPlugin& operator=(InnerPlugin&& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(self_, other.self_);
    return *this;
  }
  InnerPlugin(const InnerPlugin&) = delete;
  InnerPlugin& operator=(const InnerPlugin&) = delete;
  ~InnerPlugin() {
    if (self_ != nullptr) head_->destroy(self_);
  }

  /// Loads the plugin and makes an instance. [main]
  ///
  /// kind      "transport", "backend" ...
  /// table     LUNA_KIND_* and the bytes that its table must have (LUNA_SIZE_THROUGH)
  /// name      a file, if there is a '/' in it; else a plugin that is installed with the program
  /// Errors    not_found: no such file; unsupported: of another version or kind; its own refusal
  static Result<InnerPlugin> open(const Host& host,
                                  std::string_view kind,
                                  std::pair<const char*, std::size_t> table,
                                  const std::string& name,
                                  Texts settings) {
    const std::string file = file_of(kind, name);
    const auto fail = [&](Code code, const std::string& why) {
      return Error{code, "inner = \"" + name + "\": " + file + ": " + why};
    };
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return fail(Code::not_found, ::dlerror());
    using Query = const luna_plugin*(std::uint32_t, std::uint32_t);
    auto* const query = reinterpret_cast<Query*>(::dlsym(library, "luna_plugin_query"));
    if (query == nullptr) return fail(Code::unsupported, "it is no plugin");
    const luna_plugin* const plugin = query(LUNA_ABI_MAJOR, host.raw()->abi_minor);
    if (!LUNA_HAS(plugin, luna_plugin, fini) || plugin->abi_major != LUNA_ABI_MAJOR ||
        plugin->abi_minor_needed > host.raw()->abi_minor)
      return fail(Code::unsupported, "it does not serve a host of this version");
    // init and fini belong to who loads a library for good.
    if (plugin->init != nullptr) return fail(Code::unsupported, "it has to be started by the host");
    const auto* const head = static_cast<const luna_if*>(plugin->table(table.first));
    if (head == nullptr || head->struct_size < table.second)
      return fail(Code::unsupported, std::string("it has no table of kind ") + table.first);
    Rows rows;
    LUNA_TRY(rows.fill(*head, settings));
    InnerPlugin made;
    luna_err err = make_err();
    const luna_status status = head->create(host.raw(),
                                            rows.rows.data(),
                                            static_cast<std::uint32_t>(rows.rows.size()),
                                            &made.self_,
                                            &err);
    if (status < 0 || made.self_ == nullptr)
      return fail(
          status >= LUNA_INTERNAL && status < 0 ? static_cast<Code>(status) : Code::internal,
          std::string(text_of(err)));
    made.head_ = head;
    return made;
  }

  [[nodiscard]] const luna_if* head() const { return head_; }
  [[nodiscard]] void* self() const { return self_; }

 private:
  /// Typed settings, as create() takes them.
  struct Rows {
    std::vector<luna_kv> rows;
    std::deque<std::string> texts;  // what the rows point to

    Result<void> fill(const luna_if& head, Texts given) {
      const auto* at = reinterpret_cast<const unsigned char*>(head.params);
      for (std::uint32_t i = 0; i < head.n_params; ++i) {
        const auto& param = *reinterpret_cast<const luna_param*>(at);
        at += param.struct_size;
        const auto own =
            std::ranges::find_if(given, [&](const auto& text) { return text.first == param.key; });
        if (own == given.end() && param.dflt == nullptr)
          return Error{Code::invalid_argument,
                       std::string("the inner plugin's setting '") + param.key +
                           "' has no default: give it in inner_settings"};
        add(param, own != given.end() ? own->second : param.dflt);
      }
      return {};
    }

    void add(const luna_param& param, const std::string& text) {
      luna_kv row{};
      row.key = to_abi(param.key);
      row.type = param.type;
      if (param.type == LUNA_TYPE_BOOL) row.i = text == "true" ? 1 : 0;
      if (param.type == LUNA_TYPE_INT) row.i = std::strtoll(text.c_str(), nullptr, 10);
      if (param.type == LUNA_TYPE_FLOAT) row.f = std::strtod(text.c_str(), nullptr);
      if (param.type >= LUNA_TYPE_STRING) {
        std::string& kept = texts.emplace_back(text);
        if (param.type != LUNA_TYPE_STRING && !kept.empty()) {
          for (char& c : kept)  // "key=value|key=value", "a|b": each part ends with a zero
            if (c == '|' || (c == '=' && param.type == LUNA_TYPE_STRING_MAP)) c = '\0';
          kept += '\0';
        }
        row.s = to_abi(kept);
      }
      rows.push_back(row);
    }
  };

  /// Plugins that are installed with the program lie beside its bin.
  static std::string file_of(std::string_view kind, const std::string& name) {
    if (name.find('/') != std::string::npos) return name;
    char program[PATH_MAX];
    const ssize_t n = ::readlink("/proc/self/exe", program, sizeof(program));
    std::string folder(program, n > 0 ? static_cast<std::size_t>(n) : 0);
    folder.resize(std::min(folder.size(), folder.rfind('/')));
    return folder + "/../lib/luna/plugins/" + std::string(kind) + "_" + name + ".so";
  }

  const luna_if* head_ = nullptr;
  void* self_ = nullptr;
};

}  // namespace luna
