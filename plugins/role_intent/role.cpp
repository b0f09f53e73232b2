// Finds out what a request is about, and sets limits and sampling of the later stages by it.
#include "intent_settings.hpp"
#include "request_text.hpp"

#include <luna/role.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace luna::intent {
namespace {

class IntentRole final : public Role {
 public:
  explicit IntentRole(IntentSettings settings) : settings_(std::move(settings)) {}

  static Result<std::unique_ptr<IntentRole>> create(Host /*host*/, const Settings& settings) {
    LUNA_TRY(IntentSettings read, IntentSettings::read(settings));
    return std::make_unique<IntentRole>(std::move(read));
  }

  void on_item(const Item& item, ItemSink& out) override {
    switch (item.kind) {
      case ItemKind::request:
        return classify(item, out);
      case ItemKind::model_text:
        answers_.at(item.request) += item.text;
        return;
      case ItemKind::model_end:
        decide(item.request, label_named(answers_.at(item.request)), out);
        answers_.erase(item.request);
        return;
      default:  // what an earlier stage wrote says nothing here
        return;
    }
  }
  void drop(std::uint64_t request) override { answers_.erase(request); }

  [[nodiscard]] std::string_view choices() const override {
    if (settings_.method == IntentSettings::Method::regex) return {};
    return settings_.choices;
  }

 private:
  void classify(const Item& item, ItemSink& out) {
    const std::string text = text_of_request(item.text, settings_.text_bytes_max);
    if (settings_.method == IntentSettings::Method::regex) {
      decide(item.request, label_matching(text), out);
    } else if (text.empty()) {
      decide(item.request, settings_.default_idx, out);
    } else {
      const std::string prompt = fill_prompt(settings_.prompt, text, settings_.labels_text);
      out.emit(item.request, ItemKind::model_request, model_request(prompt, settings_.labels_json));
    }
  }

  /// A pattern whose match gives up counts as not matching: the default label is meant for that.
  [[nodiscard]] std::size_t label_matching(std::string_view text) const {
    for (const std::size_t idx : settings_.order) {
      const auto matched = settings_.labels[idx].pattern->matches(text);
      if (matched && *matched) return idx;
    }
    return settings_.default_idx;
  }

  [[nodiscard]] std::size_t label_named(std::string_view name) const {
    for (std::size_t idx = 0; idx < settings_.labels.size(); ++idx)
      if (settings_.labels[idx].name == name) return idx;
    return settings_.default_idx;
  }

  void decide(std::uint64_t request, std::size_t idx, ItemSink& out) const {
    out.emit(request, ItemKind::update, settings_.labels[idx].update_json);
    out.emit(request, ItemKind::end, "stop");
  }

  const IntentSettings settings_;
  RequestStates<std::string> answers_;  // what the model has said so far
};

}  // namespace
}  // namespace luna::intent

LUNA_DEFINE_ROLE("org.luna.role.intent",
                 "intent",
                 "0.1.0",
                 "Classifies a request and sets limits and sampling of the later stages.",
                 luna::intent::IntentRole,
                 luna::intent::kParams)
