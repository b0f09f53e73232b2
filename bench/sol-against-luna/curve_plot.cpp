#include "curve_plot.hpp"

#include "core/bench/svg_text.hpp"

#include <algorithm>
#include <array>

namespace luna::sol_against_luna {
namespace {

using bench::svg_text::escaped;
using bench::svg_text::format;
using bench::svg_text::tick_step;

// Pixels.
constexpr double kWidth = 640, kHeight = 400;
constexpr double kLeft = 70, kRight = 130, kTop = 44, kBottom = 50;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr double kLegendLine = 20;

constexpr std::array<const char*, 4> kColours = {"#c0392b", "#1f5fbf", "#27864a", "#8e5ea2"};
constexpr const char* kStyle =
    "<style>text{font:11px sans-serif;fill:#333}.h{font:bold 13px sans-serif}.e{text-anchor:end}"
    ".m{text-anchor:middle}.g{stroke:#ddd}.l{stroke:#888;stroke-dasharray:4 3}</style>\n";

class Drawing {
 public:
  explicit Drawing(const Picture& picture) : picture_(picture) {
    for (const Curve& curve : picture.curves)
      for (const auto& [x, y] : curve.points) {
        x_max_ = std::max(x_max_, x);
        y_max_ = std::max(y_max_, y);
      }
    for (const auto& [level, name] : picture.levels)
      y_max_ = std::max(y_max_, level);
    if (picture.y_max) y_max_ = *picture.y_max;
    x_max_ = (x_max_ > 0 ? x_max_ : 1) * 1.05;
    y_max_ = (y_max_ > 0 ? y_max_ : 1) * 1.05;
  }

  std::string draw() const {
    std::string svg = format(
        "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f "
        "%.0f'>\n",
        {kWidth, kHeight, kWidth, kHeight});
    svg += kStyle;
    svg += "<rect width='100%' height='100%' fill='white'/>\n";
    svg += format(
        "<clipPath id='plot'><rect x='%.1f' y='%.1f' width='%.1f' height='%.1f'/></clipPath>\n",
        {kLeft, kTop, kPlotWidth, kPlotHeight});
    svg +=
        format("<text x='%.1f' y='22' class='h'>", {kLeft}) + escaped(picture_.title) + "</text>\n";
    svg += axes();
    for (std::size_t i = 0; i < picture_.curves.size(); ++i)
      svg += curve(picture_.curves[i], kColours[i % kColours.size()], static_cast<double>(i));
    return svg + "</svg>\n";
  }

 private:
  double x(double value) const { return kLeft + value / x_max_ * kPlotWidth; }
  double y(double value) const { return kTop + (1 - value / y_max_) * kPlotHeight; }

  std::string axes() const {
    std::string svg;
    for (double at = 0, step = tick_step(x_max_); at <= x_max_; at += step) {
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='g'/>\n",
                    {x(at), y(0), x(at), kTop});
      svg += format("<text x='%.1f' y='%.1f' class='m'>%g</text>\n", {x(at), y(0) + 16, at});
    }
    for (double at = 0, step = tick_step(y_max_); at <= y_max_; at += step) {
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='g'/>\n",
                    {kLeft, y(at), kLeft + kPlotWidth, y(at)});
      svg += format("<text x='%.1f' y='%.1f' class='e'>%g</text>\n", {kLeft - 6, y(at) + 4, at});
    }
    for (const auto& [level, name] : picture_.levels) {
      if (level > y_max_) continue;
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='l'/>\n",
                    {kLeft, y(level), kLeft + kPlotWidth, y(level)});
      svg += format("<text x='%.1f' y='%.1f'>", {kLeft + kPlotWidth + 6, y(level) + 4}) +
             escaped(name) + "</text>\n";
    }
    svg += format("<text x='%.1f' y='%.1f' class='m'>", {kLeft + kPlotWidth / 2, kHeight - 12}) +
           escaped(picture_.x_name) + "</text>\n";
    return svg + format("<text x='%.1f' y='%.1f'>", {8, kTop - 8}) + escaped(picture_.y_name) +
           "</text>\n";
  }

  std::string curve(const Curve& curve, const std::string& colour, double idx) const {
    std::string line, dots;
    for (const auto& [at_x, at_y] : curve.points) {
      line += format(line.empty() ? "M%.1f %.1f" : "L%.1f %.1f", {x(at_x), y(at_y)});
      dots += format("<circle cx='%.1f' cy='%.1f' r='3' ", {x(at_x), y(at_y)}) + "fill='" + colour +
              "'/>\n";
    }
    const double legend_y = kTop + 14 + kLegendLine * idx;
    std::string svg = "<g clip-path='url(#plot)'><path d='" + line + "' fill='none' stroke='" +
                      colour + "' stroke-width='1.6'/>\n" + dots + "</g>\n";
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' ",
                  {kLeft + 12, legend_y - 4, kLeft + 36, legend_y - 4}) +
           "stroke='" + colour + "' stroke-width='2'/>\n";
    return svg + format("<text x='%.1f' y='%.1f'>", {kLeft + 42, legend_y}) + escaped(curve.name) +
           "</text>\n";
  }

  const Picture& picture_;
  double x_max_ = 0, y_max_ = 0;
};

}  // namespace

std::string draw(const Picture& picture) {
  return Drawing(picture).draw();
}

}  // namespace luna::sol_against_luna
