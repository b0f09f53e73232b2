#!/bin/sh
# Builds the plugin and runs its tests. LUNA_PREFIX: where Luna is installed.
set -eu
cd "$(dirname "$0")"
cmake -S . -B build -DCMAKE_PREFIX_PATH="${LUNA_PREFIX:-/usr/local}"
cmake --build build
ctest --test-dir build --output-on-failure
