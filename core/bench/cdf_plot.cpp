#include "core/bench/cdf_plot.hpp"

#include "core/bench/svg_text.hpp"

#include <algorithm>
#include <optional>
#include <span>

namespace luna::bench {
namespace {

using svg_text::escaped;
using svg_text::format;
using svg_text::tick_step;

// Pixels.
constexpr double kPanelWidth = 420, kPanelHeight = 270;
constexpr double kLeft = 52, kRight = 18, kTop = 34, kBottom = 40;
constexpr double kTitleHeight = 34;
constexpr double kPlotWidth = kPanelWidth - kLeft - kRight;
constexpr double kPlotHeight = kPanelHeight - kTop - kBottom;
// A curve of more points than pixels shows no more.
constexpr std::size_t kPointsMax = 400;

/// One panel's picture; x in milliseconds from 0 to `x_max_`, y from 0 to 1.
class Panel {
 public:
  Panel(const Latency& latency, std::optional<double> limit, double left, double top)
      : latency_(latency), limit_(limit), left_(left + kLeft), top_(top + kTop) {
    if (!latency.values.empty()) x_max_ = std::max(latency.values.back(), x_max_);
    if (limit && *limit < 2 * x_max_) x_max_ = std::max(x_max_, *limit);
    x_max_ *= 1.02;
  }

  std::string draw() const {
    std::string svg = axes();
    if (latency_.values.empty())
      return svg + format("<text x='%.1f' y='%.1f' class='m'>no values</text>\n",
                          {left_ + kPlotWidth / 2, top_ + kPlotHeight / 2});
    svg += curve();
    svg += mark(percentile(latency_.values, 0.5), 0.5, "P50");
    svg += mark(percentile(latency_.values, 0.99), 0.99, "P99");
    if (limit_ && *limit_ <= x_max_) {
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='l'/>\n",
                    {x(*limit_), y(0), x(*limit_), y(1)});
      svg += format("<text x='%.1f' y='%.1f' class='t'>limit</text>\n", {x(*limit_) + 3, y(0.06)});
    }
    return svg;
  }

 private:
  double x(double ms) const { return left_ + ms / x_max_ * kPlotWidth; }
  double y(double ratio) const { return top_ + (1 - ratio) * kPlotHeight; }

  std::string axes() const {
    std::string svg = format("<text x='%.1f' y='%.1f' class='h'>", {left_, top_ - 12});
    svg += std::string(latency_.name) + "</text>\n";
    svg += format("<text x='%.1f' y='%.1f' class='t'>", {left_ + 48, top_ - 12});
    svg += std::string(latency_.what) + ", ms</text>\n";
    for (const double ratio : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='g'/>\n",
                    {left_, y(ratio), left_ + kPlotWidth, y(ratio)});
      svg += format("<text x='%.1f' y='%.1f' class='e'>%.2f</text>\n",
                    {left_ - 6, y(ratio) + 4, ratio});
    }
    const double step = tick_step(x_max_);
    for (double at = 0; at <= x_max_; at += step) {
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='g'/>\n",
                    {x(at), y(0), x(at), y(1)});
      svg += format("<text x='%.1f' y='%.1f' class='m'>%g</text>\n", {x(at), y(0) + 16, at});
    }
    return svg;
  }

  /// A step up at each value, thinned to what can be seen.
  std::string curve() const {
    const std::span<const double> values = latency_.values;
    const std::size_t n = values.size();
    const std::size_t n_points = std::min(n, kPointsMax);
    std::string points = format("M%.1f %.1f", {x(0), y(0)});
    for (std::size_t i = 1; i <= n_points; ++i) {
      const std::size_t rank = i * n / n_points;  // 1..n
      const double ratio = static_cast<double>(rank) / static_cast<double>(n);
      points += format("H%.1fV%.1f", {x(values[rank - 1]), y(ratio)});
    }
    points += format("H%.1f", {x(x_max_)});
    return "<path d='" + points + "' class='c'/>\n";
  }

  std::string mark(double ms, double ratio, const char* name) const {
    const bool is_right = x(ms) > left_ + 0.7 * kPlotWidth;
    std::string svg =
        format("<circle cx='%.1f' cy='%.1f' r='3.5' class='p'/>\n", {x(ms), y(ratio)});
    svg += format("<text x='%.1f' y='%.1f' class='",
                  {x(ms) + (is_right ? -7 : 7), y(ratio) + (is_right ? 26 : 15)});
    svg += is_right ? "e'>" : "t'>";
    return svg + name + format(" %.4g</text>\n", {ms});
  }

  const Latency& latency_;
  const std::optional<double> limit_;
  const double left_;
  const double top_;
  double x_max_ = 1e-3;
};

constexpr const char* kStyle =
    "<style>text{font:11px sans-serif;fill:#333}.h{font:bold 13px sans-serif}.e{text-anchor:end}"
    ".m{text-anchor:middle}.g{stroke:#ddd}.c{fill:none;stroke:#1f5fbf;stroke-width:1.6}"
    ".p{fill:#1f5fbf}.l{stroke:#c0392b;stroke-dasharray:4 3}</style>\n";

}  // namespace

std::string plot_cdfs(const Report& report, const LatencyLimits& limits, const std::string& title) {
  const double width = 2 * kPanelWidth, height = kTitleHeight + 2 * kPanelHeight;
  std::string svg = format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f "
      "%.0f'>\n",
      {width, height, width, height});
  svg += kStyle;
  svg += "<rect width='100%' height='100%' fill='white'/>\n";
  svg += format("<text x='%.1f' y='22' class='h'>", {kLeft});
  svg += escaped(title) + "</text>\n";
  const double second_row = kTitleHeight + kPanelHeight;
  svg += Panel(report.ttft, limits.ttft_ms, 0, kTitleHeight).draw();
  svg += Panel(report.itl, limits.itl_ms, kPanelWidth, kTitleHeight).draw();
  svg += Panel(report.tpot, limits.tpot_ms, 0, second_row).draw();
  svg += Panel(report.e2e, limits.e2e_ms, kPanelWidth, second_row).draw();
  return svg + "</svg>\n";
}

}  // namespace luna::bench
