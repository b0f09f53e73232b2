#include "core/check/report.hpp"

#include "core/check/rules.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <cstdio>
#include <ostream>

namespace luna::check {
namespace {

namespace json = boost::json;

std::string_view advice_of(const Finding& finding) {
  const Rule* const rule = find_rule(finding.rule);
  return rule != nullptr ? rule->advice : std::string_view("see docs/plugin-rules.md");
}

std::string_view title_of(const Finding& finding) {
  const Rule* const rule = find_rule(finding.rule);
  return rule != nullptr ? rule->title : std::string_view();
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", seconds);
  return text;
}

/// Text for an XML attribute or element; control characters have no place there.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

std::size_t count(const CheckResult& result, Verdict verdict) {
  return static_cast<std::size_t>(std::ranges::count(result.cases, verdict, &CaseResult::verdict));
}

json::object case_json(const CaseResult& result) {
  json::array findings;
  for (const Finding& finding : result.findings)
    findings.push_back(json::object{{"rule", finding.rule},
                                    {"title", title_of(finding)},
                                    {"message", finding.message},
                                    {"advice", advice_of(finding)}});
  json::object figures;
  for (const auto& [name, value] : result.figures)
    figures[name] = value;
  json::object row = {{"name", result.checked.name},
                      {"verdict", verdict_name(result.verdict)},
                      {"seconds", result.seconds},
                      {"seed", result.seed},
                      {"findings", std::move(findings)},
                      {"figures", std::move(figures)}};
  if (!result.skipped.empty()) row["skipped"] = result.skipped;
  return row;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed:
      return "passed";
    case Verdict::broken:
      return "broken";
    case Verdict::skipped:
      return "skipped";
  }
  return "broken";
}

void print_case(const CaseResult& result,
                const CheckOptions& options,
                std::string_view program,
                std::ostream& out) {
  char line[96];
  std::snprintf(line,
                sizeof(line),
                "%-8s %-32.*s %6.2f s",
                std::string(verdict_name(result.verdict)).c_str(),
                static_cast<int>(result.checked.name.size()),
                result.checked.name.data(),
                result.seconds);
  out << line;
  for (const auto& [name, value] : result.figures)
    out << "  " << name << " " << value;
  if (!result.skipped.empty()) out << "  " << result.skipped;
  out << "\n";
  for (const Finding& finding : result.findings)
    out << "    rule " << finding.rule << ": " << title_of(finding) << "\n"
        << "      found  " << finding.message << "\n"
        << "      do     " << advice_of(finding) << "\n";
  if (!result.findings.empty())
    out << "      again  " << program << " " << options.input.file.string() << " --reproduce "
        << result.checked.name << "@" << result.seed << "\n";
  out.flush();
}

void print_summary(const CheckResult& result, std::ostream& out) {
  const std::string who = result.id.empty() ? result.file : result.name + " (" + result.id + ")";
  out << who << ": " << verdict_name(result.verdict()) << "; " << count(result, Verdict::passed)
      << " cases passed, " << count(result, Verdict::broken) << " broken, "
      << count(result, Verdict::skipped) << " skipped; seed " << result.seed << "\n";
  if (result.verdict() == Verdict::skipped)
    out << "not every case could be tried: the lines above say why\n";
}

std::string to_json(const CheckResult& result) {
  json::array cases;
  for (const CaseResult& one : result.cases)
    cases.push_back(case_json(one));
  const json::object object = {{"file", result.file},
                               {"id", result.id},
                               {"name", result.name},
                               {"kinds", result.kinds},
                               {"seed", result.seed},
                               {"verdict", verdict_name(result.verdict())},
                               {"cases", std::move(cases)}};
  return json::serialize(object) + "\n";
}

std::string to_junit(const CheckResult& result) {
  double seconds = 0.0;
  for (const CaseResult& one : result.cases)
    seconds += one.seconds;
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"" +
                    escaped(result.id.empty() ? result.file : result.id) + "\" tests=\"" +
                    std::to_string(result.cases.size()) + "\" failures=\"" +
                    std::to_string(count(result, Verdict::broken)) + "\" skipped=\"" +
                    std::to_string(count(result, Verdict::skipped)) + "\" time=\"" +
                    seconds_text(seconds) + "\">\n";
  for (const CaseResult& one : result.cases) {
    xml += "  <testcase classname=\"luna.check\" name=\"" + escaped(one.checked.name) +
           "\" time=\"" + seconds_text(one.seconds) + "\">\n";
    for (const Finding& finding : one.findings)
      xml += "    <failure type=\"" + escaped(finding.rule) + "\" message=\"" +
             escaped(finding.message) + "\">" + escaped(title_of(finding)) + "\n" +
             escaped(advice_of(finding)) + "</failure>\n";
    if (one.findings.empty() && !one.skipped.empty())
      xml += "    <skipped message=\"" + escaped(one.skipped) + "\"/>\n";
    xml += "  </testcase>\n";
  }
  return xml + "</testsuite>\n";
}

}  // namespace luna::check
