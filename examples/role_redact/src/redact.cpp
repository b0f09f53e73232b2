// Replaces what matches a pattern in the text that the stage before made: addresses, numbers of
// cards, names of customers.
//
// How a stream is cut into items depends on load, so nothing may depend on it. The role therefore
// works on whole lines: it holds back the line that is not finished. A line longer than
// kLineBytesMax is taken in pieces of that size; a match across two pieces is not found.
#include <luna/role.hpp>

#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

class Redact final : public luna::Role {
 public:
  Redact(std::vector<std::regex> patterns, std::string replacement)
      : patterns_(std::move(patterns)), replacement_(std::move(replacement)) {}

  static luna::Result<std::unique_ptr<Redact>> create(luna::Host, const luna::Settings& settings) {
    std::vector<std::regex> patterns;
    for (const std::string& text : settings.list("patterns")) {
      try {
        patterns.emplace_back(text, std::regex::ECMAScript | std::regex::optimize);
      } catch (const std::regex_error& e) {
        return luna::Error{luna::Code::invalid_argument,
                           "patterns: '" + text + "' is no regular expression: " + e.what()};
      }
    }
    return std::make_unique<Redact>(std::move(patterns), settings.text("replacement"));
  }

  void on_item(const luna::Item& item, luna::ItemSink& out) override {
    if (item.kind == luna::ItemKind::text) {
      std::string& held = held_.at(item.request);
      held += item.text;
      emit_lines(item.request, held, out);
    } else if (item.kind == luna::ItemKind::end) {
      std::string& held = held_.at(item.request);
      if (!held.empty()) out.emit(item.request, luna::ItemKind::text, redacted(held));
      held.clear();
      out.emit(item.request, luna::ItemKind::end, item.text);
    }
  }
  void drop(std::uint64_t request) override { held_.erase(request); }

 private:
  static constexpr std::size_t kLineBytesMax = 1024;

  static bool continues_character(char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
  }

  void emit_lines(std::uint64_t request, std::string& held, luna::ItemSink& out) {
    std::string ready;
    for (;;) {
      std::size_t n = held.find('\n') + 1;  // 0: the line goes on
      if (n == 0 || n > kLineBytesMax) {
        if (held.size() <= kLineBytesMax) break;
        n = kLineBytesMax;
        while (continues_character(held[n]))
          --n;
      }
      ready += redacted(held.substr(0, n));
      held.erase(0, n);
    }
    if (!ready.empty()) out.emit(request, luna::ItemKind::text, ready);
  }

  std::string redacted(std::string text) const {
    for (const std::regex& pattern : patterns_) {
      std::string result;
      std::size_t done = 0;
      for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end;
           ++match) {
        // Patterns match bytes; what is replaced are whole characters.
        auto from = static_cast<std::size_t>(match->position());
        std::size_t to = from + static_cast<std::size_t>(match->length());
        while (from > 0 && from < text.size() && continues_character(text[from]))
          --from;
        while (to < text.size() && continues_character(text[to]))
          ++to;
        if (to == from || from < done) continue;  // it matches nothing, or what is gone
        result += text.substr(done, from - done) + replacement_;
        done = to;
      }
      text = result + text.substr(done);
    }
    return text;
  }

  std::vector<std::regex> patterns_;
  std::string replacement_;
  luna::RequestStates<std::string> held_;  // the line of each request that is not finished
};

static constexpr luna_param kParams[] = {
    luna::param(
        LUNA_TYPE_STRING_LIST,
        "patterns",
        "[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\\.[A-Za-z]{2,}",
        nullptr,
        nullptr,
        nullptr,
        "regular expressions (ECMAScript), each tried on every line; by default: mail addresses"),
    luna::param(LUNA_TYPE_STRING,
                "replacement",
                "[redacted]",
                nullptr,
                nullptr,
                nullptr,
                "what stands in the place of a match")};

LUNA_DEFINE_ROLE("org.luna.example.redact",
                 "redact",
                 "0.1.0",
                 "Replaces what matches a pattern in the answer, line by line.",
                 Redact,
                 kParams)
