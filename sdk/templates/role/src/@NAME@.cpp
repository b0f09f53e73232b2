// Answers a request with the stage's model and leaves out what the setting names.
#include <luna/role.hpp>

#include <memory>
#include <string>

class @CLASS@ final : public luna::Role {
 public:
  explicit @CLASS@(std::string left_out) : left_out_(std::move(left_out)) {}

  static luna::Result<std::unique_ptr<@CLASS@>> create(luna::Host, const luna::Settings& settings) {
    return std::make_unique<@CLASS@>(settings.text("left_out"));
  }

  void on_item(const luna::Item& item, luna::ItemSink& out) override {
    switch (item.kind) {
      case luna::ItemKind::request:  // {}: on the client's own prompt
        out.emit(item.request, luna::ItemKind::model_request, "{}");
        break;
      case luna::ItemKind::model_text:
        emit_text(item, out);
        break;
      case luna::ItemKind::model_end:
        if (item.text.starts_with("failed: "))
          out.emit(item.request, luna::ItemKind::error, item.text.substr(8));
        else
          out.emit(item.request, luna::ItemKind::end, item.text);
        break;
      default:  // what an earlier stage wrote is no part of the answer
        break;
    }
  }
  // Nothing is kept of a request, so there is nothing to forget.
  void drop(std::uint64_t) override {}

 private:
  // Character by character: the result is the same however the stream is cut into items.
  void emit_text(const luna::Item& item, luna::ItemSink& out) {
    std::string text;
    for (const char c : item.text)
      if (left_out_.find(c) == std::string::npos) text += c;
    if (!text.empty()) out.emit(item.request, luna::ItemKind::text, text);
  }
  std::string left_out_;
};

static constexpr luna_param kParams[] = {
    luna::param(LUNA_TYPE_STRING, "left_out", "", nullptr, nullptr, nullptr,
                "characters that the answer shall not have")};

LUNA_DEFINE_ROLE("@ID@", "@NAME@", "0.1.0", "Answers with the stage's model, without some characters.",
                 @CLASS@, kParams)
