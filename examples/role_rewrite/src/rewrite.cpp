// Lets the stage's model write the answer of the stage before anew, by an instruction: translate
// it, shorten it, put it into plain words.
#include <luna/role.hpp>

#include <memory>
#include <string>
#include <utility>

class Rewrite final : public luna::Role {
 public:
  Rewrite(std::string instruction, std::int64_t max_tokens)
      : instruction_(std::move(instruction)), max_tokens_(max_tokens) {}

  static luna::Result<std::unique_ptr<Rewrite>> create(luna::Host, const luna::Settings& settings) {
    return std::make_unique<Rewrite>(settings.text("instruction"), settings.integer("max_tokens"));
  }

  void on_item(const luna::Item& item, luna::ItemSink& out) override {
    switch (item.kind) {
      case luna::ItemKind::text:  // a part of the answer of the stage before
        answers_.at(item.request) += item.text;
        break;
      case luna::ItemKind::end:  // all of it is there
        ask(item, out);
        break;
      case luna::ItemKind::model_text:
        out.emit(item.request, luna::ItemKind::text, item.text);
        break;
      case luna::ItemKind::model_end:
        if (item.text.starts_with("failed: "))
          out.emit(item.request, luna::ItemKind::error, item.text.substr(8));
        else
          out.emit(item.request, luna::ItemKind::end, item.text);
        break;
      default:
        break;
    }
  }
  void drop(std::uint64_t request) override { answers_.erase(request); }

 private:
  void ask(const luna::Item& item, luna::ItemSink& out) {
    const std::string answer = std::move(answers_.at(item.request));
    answers_.erase(item.request);
    if (answer.empty()) {  // nothing to write anew
      out.emit(item.request, luna::ItemKind::end, item.text);
      return;
    }
    // A prompt of the role's own, so it has to say how much may be generated.
    out.emit(item.request,
             luna::ItemKind::model_request,
             R"({"messages":[{"role":"user","content":")" + quoted(instruction_ + "\n\n" + answer) +
                 R"("}],"max_tokens":)" + std::to_string(max_tokens_) + "}");
  }

  // As JSON wants it between quotes.
  static std::string quoted(const std::string& text) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') out += '\\';
      if (byte < 0x20)
        out += {'\\', 'u', '0', '0', kHex[byte >> 4U], kHex[byte & 15U]};
      else
        out += c;
    }
    return out;
  }

  std::string instruction_;
  std::int64_t max_tokens_;
  luna::RequestStates<std::string> answers_;  // of the stage before, as far as they are there
};

static constexpr luna_param kParams[] = {
    luna::param(LUNA_TYPE_STRING,
                "instruction",
                "Rewrite this in one short sentence:",
                nullptr,
                nullptr,
                nullptr,
                "what the model is told to do with the answer"),
    luna::param(LUNA_TYPE_INT,
                "max_tokens",
                "256",
                "1",
                "1000000",
                nullptr,
                "tokens that the new answer may have")};

LUNA_DEFINE_ROLE("org.luna.example.rewrite",
                 "rewrite",
                 "0.1.0",
                 "Lets a model write the answer anew, by an instruction.",
                 Rewrite,
                 kParams)
