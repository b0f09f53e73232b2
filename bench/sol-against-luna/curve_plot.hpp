// Curves in a picture.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace luna::sol_against_luna {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x and y, by ascending x
};

struct Picture {
  std::string title;
  std::string x_name, y_name;
  std::vector<Curve> curves;  ///< at most four
  /// Lines across, with what they are called.
  std::vector<std::pair<double, std::string>> levels;
  std::optional<double> y_max;  ///< what lies above is cut off; none: all is shown
};

/// An SVG; both axes begin at 0 and are linear.
std::string draw(const Picture& picture);

}  // namespace luna::sol_against_luna
