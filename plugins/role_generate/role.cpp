// Answers a request with the stage's model, on the client's own prompt.
#include <luna/role.hpp>

#include <memory>
#include <string_view>

namespace luna::generate {
namespace {

/// Keeps nothing of a request, so there is nothing to forget.
class GenerateRole final : public Role {
 public:
  static Result<std::unique_ptr<GenerateRole>> create(Host /*host*/, const Settings& /*settings*/) {
    return std::make_unique<GenerateRole>();
  }

  void on_item(const Item& item, ItemSink& out) override {
    switch (item.kind) {
      case ItemKind::request:
        out.emit(item.request, ItemKind::model_request, "{}");
        break;
      case ItemKind::model_text:
        out.emit(item.request, ItemKind::text, item.text);
        break;
      case ItemKind::model_end:
        end(item, out);
        break;
      default:  // what an earlier stage wrote is no part of the answer
        break;
    }
  }
  void drop(std::uint64_t /*request*/) override {}

 private:
  static void end(const Item& item, ItemSink& out) {
    constexpr std::string_view kFailed = "failed: ";
    if (item.text.starts_with(kFailed)) {
      out.emit(item.request, ItemKind::error, item.text.substr(kFailed.size()));
    } else {
      out.emit(item.request, ItemKind::end, item.text);
    }
  }
};

}  // namespace
}  // namespace luna::generate

LUNA_DEFINE_ROLE("org.luna.role.generate",
                 "generate",
                 "0.1.0",
                 "Answers a request with the stage's model.",
                 luna::generate::GenerateRole,
                 std::span<const luna_param>{})
