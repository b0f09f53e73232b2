// AMX: linear layers of many rows by tiles, everything else by the AVX-512 kernels.
//
// No machine with AMX has run this yet. Its arithmetic is proven on SoftwareTiles (model.cpp),
// which runs the same code; what is not is the eight instructions of HardwareTiles, and its speed.
#include "kernels/cpu/amx/tiles.hpp"
#include "kernels/cpu/avx512/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <type_traits>
#include <unistd.h>

LUNA_ISA_BEGIN(LUNA_ISA_AMX)
namespace luna::kernels::amx {
namespace {
using namespace avx512;  // the lanes; not its table
// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/codes.inl"
#include "kernels/cpu/shared/linear.inl"
#include "kernels/cpu/amx/linear_tiles.inl"
// clang-format on

void linear(const LinearArgs& args) {
  if (is_for_tiles(args)) {
    linear_by_tiles<HardwareTiles>(args);
  } else {
    avx512::kSet.linear(args);
  }
}
}  // namespace

KernelSet make_set() {
  KernelSet set = avx512::kSet;
  set.isa = Isa::amx;
  set.name = "amx";
  set.linear = linear;
  return set;
}

}  // namespace luna::kernels::amx
LUNA_ISA_END

namespace luna::kernels::amx {

bool is_permitted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace luna::kernels::amx
