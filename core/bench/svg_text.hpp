// What the pictures of this folder are written with.
#pragma once

#include <initializer_list>
#include <string>

namespace luna::bench::svg_text {

/// printf of at most four doubles.
std::string format(const char* pattern, std::initializer_list<double> values);

/// A text as it may stand between two tags.
std::string escaped(const std::string& text);

/// 1, 2 or 5 times a power of ten, so that about four of it make the whole.
double tick_step(double whole);

}  // namespace luna::bench::svg_text
