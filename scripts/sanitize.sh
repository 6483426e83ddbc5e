#!/usr/bin/env bash
# The suite under AddressSanitizer and UndefinedBehaviorSanitizer, then engine and http under ThreadSanitizer.
# Slow (about an hour on two cores); its summary belongs in docs/testing.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/packages.sh build test
mkdir -p build/reports
status=0
cmake --preset asan >/dev/null && cmake --build --preset asan
ctest --test-dir build/asan --output-on-failure -j 2 --timeout 3600 2>&1 | tee build/reports/asan.txt || status=1
cmake --preset tsan >/dev/null && cmake --build --preset tsan
ctest --test-dir build/tsan --output-on-failure -j 2 --timeout 3600 -R '^(base|cache|engine|http|api)_' 2>&1 |
  tee build/reports/tsan.txt || status=1
echo
grep -HE 'tests passed|tests failed' build/reports/asan.txt build/reports/tsan.txt
exit $status
