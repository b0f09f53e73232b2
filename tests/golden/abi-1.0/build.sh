#!/bin/sh
# Builds the plugins of ABI 1.0 that are kept as test data: the examples, each from the installed sdk
# alone, as an author builds them, without symbols that nobody needs. They are built once, from the tree
# that has the tag abi-1.0, and are to be loaded by every later 1.x host: never build them anew for a
# host that does not take them.
#   cmake --install BUILD --component sdk --prefix PREFIX
#   tests/golden/abi-1.0/build.sh PREFIX
# It needs what the program needs: GCC 12, CMake 3.25, binutils. The manifest says what a machine must
# have to load them.
set -eu
prefix=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$here/plugins"
mkdir "$here/plugins"
{
  echo "# Plugins of ABI 1.0: sha256, bytes, highest versions of glibc and libstdc++ needed, file."
  echo "# $(g++ --version | head -n 1)"
} >"$here/manifest.txt"
for example in "$here"/../../../examples/*/; do
  name=$(basename "$example")
  cmake -S "$example" -B "$work/$name" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$example=$name/ -ffile-prefix-map=$prefix=" >/dev/null
  cmake --build "$work/$name" --target "$name" >/dev/null
  plugin=$here/plugins/$name.so
  strip --strip-unneeded --remove-section=.comment -o "$plugin" "$work/$name/$name.so"
  highest() { objdump -T "$plugin" | grep -o "$1_[0-9.]*" | sort -uV | tail -n 1; }
  echo "$(sha256sum "$plugin" | cut -d' ' -f1) $(stat -c %s "$plugin") $(highest GLIBC) $(highest GLIBCXX) plugins/$name.so" \
    >>"$here/manifest.txt"
done
cat "$here/manifest.txt"
