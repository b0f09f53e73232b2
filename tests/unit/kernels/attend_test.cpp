#include "kernel_support.hpp"
