#include "core/base/random_seed.hpp"

#include <sys/random.h>

namespace luna {

Result<std::uint64_t> random_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof(seed), 0) != static_cast<ssize_t>(sizeof(seed))) {
    return Error{Code::io, "the system gave no random number for a seed"};
  }
  return seed;
}

}  // namespace luna
