// Rules over the answer's text as it streams: trimming, a limit on characters, closing what was
// left open, patterns.
#include "fence_closer.hpp"
#include "json_repair.hpp"
#include "pattern_check.hpp"
#include "text_filters.hpp"

#include <luna/role.hpp>

#include <memory>
#include <string>
#include <vector>

namespace luna::postprocess {
namespace {

constexpr luna_param kParams[] = {
    param(LUNA_TYPE_BOOL,
          "trim",
          "false",
          nullptr,
          nullptr,
          nullptr,
          "Drops whitespace at the beginning and the end of the answer."),
    param(LUNA_TYPE_BOOL,
          "close_fences",
          "true",
          nullptr,
          nullptr,
          nullptr,
          "Closes a Markdown code fence that the answer leaves open."),
    param(LUNA_TYPE_INT,
          "max_chars",
          "0",
          "0",
          "1000000000",
          nullptr,
          "Cuts the answer after so many characters; 0: no limit."),
    param(LUNA_TYPE_BOOL,
          "json_repair",
          "false",
          nullptr,
          nullptr,
          nullptr,
          "Where the answer begins as JSON: drops a trailing comma, closes what is open."),
    param(
        LUNA_TYPE_STRING,
        "must_match",
        "",
        nullptr,
        nullptr,
        nullptr,
        "Pattern (PCRE2) that the whole answer must match; the answer is then held until its end."),
    param(LUNA_TYPE_STRING,
          "must_not_match",
          "",
          nullptr,
          nullptr,
          nullptr,
          "Pattern (PCRE2) that may match nowhere in the answer, which is held until its end."),
    param(LUNA_TYPE_STRING,
          "on_mismatch",
          "error",
          nullptr,
          nullptr,
          "error|replace",
          "What becomes of an answer that breaks a pattern rule."),
    param(LUNA_TYPE_STRING,
          "replacement",
          "",
          nullptr,
          nullptr,
          nullptr,
          "The answer given instead, with on_mismatch = \"replace\"."),
};

struct Rules {
  bool trims = false;
  bool closes_fences = false;
  std::uint64_t n_chars_max = 0;  // 0: no limit, as in the settings
  bool repairs_json = false;
  PatternRules patterns;
};

/// The filters of one choice, in the order of their rules.
class FilterChain {
 public:
  explicit FilterChain(const Rules& rules) {
    if (rules.trims) {
      add<LeadingTrim>();
      add<TrailingTrim>();
    }
    if (rules.n_chars_max > 0) {
      add<CharLimit>(rules.n_chars_max);
      if (rules.trims) add<TrailingTrim>();  // the cut may lie behind a blank
    }
    if (rules.repairs_json) add<JsonRepair>();
    if (rules.closes_fences) add<FenceCloser>();
  }

  std::string push(std::string_view piece) { return run(0, std::string(piece)); }

  std::string finish() {
    std::string out;
    for (std::size_t i = 0; i < filters_.size(); ++i) {
      std::string rest;
      filters_[i]->finish(rest);
      out += run(i + 1, std::move(rest));
    }
    return out;
  }

  [[nodiscard]] bool is_full() const {
    for (const auto& filter : filters_)
      if (filter->is_full()) return true;
    return false;
  }

 private:
  template <typename Filter, typename... Args>
  void add(Args&&... args) {
    filters_.push_back(std::make_unique<Filter>(std::forward<Args>(args)...));
  }
  std::string run(std::size_t first, std::string text) {
    for (std::size_t i = first; i < filters_.size() && !text.empty(); ++i) {
      std::string out;
      filters_[i]->push(text, out);
      text = std::move(out);
    }
    return text;
  }
  std::vector<std::unique_ptr<TextFilter>> filters_;
};

class PostprocessRole final : public Role {
 public:
  explicit PostprocessRole(Rules rules) : rules_(std::move(rules)) {}

  static Result<std::unique_ptr<PostprocessRole>> create(Host /*host*/, const Settings& settings) {
    Rules rules;
    rules.trims = settings.flag("trim");
    rules.closes_fences = settings.flag("close_fences");
    rules.n_chars_max = static_cast<std::uint64_t>(settings.integer("max_chars"));
    rules.repairs_json = settings.flag("json_repair");
    if (const std::string pattern = settings.text("must_match"); !pattern.empty()) {
      LUNA_TRY(rules.patterns.must_match,
               compile("must_match", pattern, Pattern::Extent::whole_text));
    }
    if (const std::string pattern = settings.text("must_not_match"); !pattern.empty()) {
      LUNA_TRY(rules.patterns.must_not_match,
               compile("must_not_match", pattern, Pattern::Extent::anywhere));
    }
    if (settings.text("on_mismatch") == "replace") {
      rules.patterns.replacement = settings.text("replacement");
    }
    return std::make_unique<PostprocessRole>(std::move(rules));
  }

  void on_item(const Item& item, ItemSink& out) override {
    if (item.kind == ItemKind::request) {
      states_.at(item.request).chain = std::make_unique<FilterChain>(rules_);
    } else if (item.kind == ItemKind::text || item.kind == ItemKind::end) {
      State& state = states_.at(item.request);
      if (state.chain == nullptr) return;  // ended by a full rule
      if (item.kind == ItemKind::text) {
        send(item.request, state, state.chain->push(item.text), out);
        if (state.chain->is_full()) finish(item.request, state, "length", out);
      } else {
        finish(item.request, state, item.text, out);
      }
    }
  }
  void drop(std::uint64_t request) override { states_.erase(request); }

 private:
  struct State {
    std::unique_ptr<FilterChain> chain;  // none: the choice has ended
    std::string held;                    // the whole answer, while a pattern rule waits for it
  };

  static Result<Pattern> compile(const char* key, const std::string& text, Pattern::Extent extent) {
    auto compiled = Pattern::compile(text, extent);
    if (!compiled) return compiled.error().in(key);
    return compiled;
  }

  void send(std::uint64_t request, State& state, std::string_view text, ItemSink& out) const {
    if (text.empty()) return;
    if (rules_.patterns.are_empty()) {
      out.emit(request, ItemKind::text, text);
    } else {
      state.held += text;
    }
  }

  void finish(std::uint64_t request, State& state, std::string_view reason, ItemSink& out) const {
    send(request, state, state.chain->finish(), out);
    state.chain = nullptr;
    if (!rules_.patterns.are_empty()) {
      if (const auto verdict = rules_.patterns.check(state.held); !verdict) {
        if (!rules_.patterns.replacement) {
          out.emit(request, ItemKind::error, verdict.error().message());
          return;
        }
        state.held = *rules_.patterns.replacement;
      }
      if (!state.held.empty()) out.emit(request, ItemKind::text, state.held);
      state.held = {};
    }
    out.emit(request, ItemKind::end, reason);
  }

  const Rules rules_;
  RequestStates<State> states_;
};

}  // namespace
}  // namespace luna::postprocess

LUNA_DEFINE_ROLE("org.luna.role.postprocess",
                 "postprocess",
                 "0.1.0",
                 "Rules over the answer's text: trimming, limits, closing what was left open.",
                 luna::postprocess::PostprocessRole,
                 luna::postprocess::kParams)
