// A role plugin that works, with one fault, chosen by the name that it is linked with. Compiled
// once.
#include "zoo_descriptor.hpp"

#include <luna/role.hpp>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// The fault of the plugin that this is linked into.
extern "C" const char luna_zoo_fault[];

namespace {

using luna::Item;
using luna::ItemKind;
using luna::ItemSink;

bool is(std::string_view fault) {
  return fault == luna_zoo_fault;
}

/// Passes the model's text on.
class Echo final : public luna::Role {
 public:
  static luna::Result<std::unique_ptr<Echo>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<Echo>();
  }

  void on_item(const Item& item, ItemSink& out) override {
    switch (item.kind) {
      case ItemKind::request:
        seen_.insert(item.request);
        if (is("remembers_dropped")) kept_[item.request].resize(1000);
        out.emit(item.request, ItemKind::model_request, is("asks_no_json") ? "please" : "{}");
        if (is("asks_twice")) out.emit(item.request, ItemKind::model_request, "{}");
        break;
      case ItemKind::model_text:
        text(item, out);
        break;
      case ItemKind::model_end:
        if (is("never_ends")) break;
        if (is("waits_for_the_request") && !seen_.contains(item.request)) break;
        if (is("updates_late")) {
          out.emit(item.request, ItemKind::text, "-");
          out.emit(item.request, ItemKind::update, "{}");
        }
        out.emit(item.request, ItemKind::end, "stop");
        if (is("ends_twice")) out.emit(item.request, ItemKind::end, "stop");
        if (is("speaks_for_another")) out.emit(item.request + 1000, ItemKind::text, "x");
        break;
      default:
        break;
    }
  }
  void drop(std::uint64_t request) override {
    if (!is("remembers_dropped")) kept_.erase(request);
    seen_.erase(request);
    has_dropped_ = true;
  }

 private:
  void text(const Item& item, ItemSink& out) const {
    std::string text(item.text);
    if (is("drops_show_elsewhere") && has_dropped_) text += "~";
    if (is("cuts_large_items") && text.size() > 65536) text.resize(text.rfind('.', 65536) + 1);
    if (is("counts_items")) text += "|";
    if (is("halves_characters")) text.push_back('\xC3');
    if (is("unknown_item")) out.emit(item.request, static_cast<ItemKind>(77), "");
    out.emit(item.request, ItemKind::text, text);
  }
  std::map<std::uint64_t, std::vector<char>> kept_;
  std::set<std::uint64_t> seen_;
  bool has_dropped_ = false;
};

constexpr luna_role_if kTable = luna::role_table<Echo>();

const void* table(const char* kind) {
  return std::string_view(kind) == LUNA_KIND_ROLE ? &kTable : nullptr;
}

}  // namespace

/// What luna_plugin_query answers.
extern "C" const luna_plugin* luna_zoo_query(std::uint32_t host_major, std::uint32_t /*minor*/) {
  static constexpr luna_plugin kPlugin = zoo_plugin("A role with one fault.", table);
  return host_major == LUNA_ABI_MAJOR ? &kPlugin : nullptr;
}
