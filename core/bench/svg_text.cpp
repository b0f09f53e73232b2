#include "core/bench/svg_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace luna::bench::svg_text {
namespace {
constexpr int kTicks = 4;
}

std::string format(const char* pattern, std::initializer_list<double> values) {
  std::array<double, 4> v{};
  std::copy_n(values.begin(), std::min(values.size(), v.size()), v.begin());
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, v[0], v[1], v[2], v[3]);
  return text.data();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

double tick_step(double whole) {
  const double raw = whole / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

}  // namespace luna::bench::svg_text
