#include "core/app/percent_line.hpp"

#include <ostream>
#include <unistd.h>
#include <utility>

namespace luna::app {

PercentLine::PercentLine(std::ostream& err, std::string label)
    : err_(err), label_(std::move(label)), shows_(isatty(STDERR_FILENO) == 1) {}

PercentLine::~PercentLine() {
  if (percent_shown_ >= 0) err_ << '\n';
}

void PercentLine::show(double share) {
  const int percent = static_cast<int>(share * 100.0);
  if (!shows_ || percent == percent_shown_) return;
  percent_shown_ = percent;
  err_ << '\r' << label_ << ' ' << percent << " %" << std::flush;
}

}  // namespace luna::app
