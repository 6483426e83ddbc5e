#!/usr/bin/env bash
# Cross-builds the whole program for 64-bit Arm with Debian's packages and runs the tests of base, tensor, quant, ops,
# model and text under qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/packages.sh build test arm64
cmake --preset arm64 -DFIRESTEEL_CUDA=OFF >/dev/null
cmake --build --preset arm64 --target firesteel arm64_tests
file=build/arm64/src/app/firesteel
[ "$(od -An -tx2 -j18 -N2 $file | tr -d ' ')" = 00b7 ] || { echo "$file is not an aarch64 program" >&2; exit 1; }
ctest --test-dir build/arm64 --output-on-failure -j 2 -L arm64 2>&1 | tee build/reports/ctest-arm64.txt
exit "${PIPESTATUS[0]}"
