#!/usr/bin/env bash
# The suite under AddressSanitizer and UndefinedBehaviorSanitizer, then engine, http and api under ThreadSanitizer. Tests
# on whole models run their short forms (BRIEF in CMakeLists.txt), of the exactness programs the first request; end-to-end
# tests and oracles, which are bound by time or run other programs, do not run.
# Slow (about two hours on two cores, most of it compiling); its summary belongs in docs/testing.md.
#   scripts/sanitize.sh [asan|tsan]
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/packages.sh build test || exit 1
mkdir -p build/reports
# A size that no machine has must come back as an error of ours, not of the sanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1
tsan_tests='^(base|cache|engine|http|api)_'
status=0

build() {
  cmake --preset "$1" >/dev/null && cmake --build --preset "$1" "${@:2}" || exit 1
}
asan() {
  build asan
  ctest --test-dir build/asan --output-on-failure -j 2 --timeout 3600 -LE slow -E '^e2e_|_oracle|rank_faults' 2>&1 |
    tee build/reports/asan.txt || status=1
  for model in tiny demo; do
    build/asan/tests/engine/engine_exactness --model $model --requests 1 || status=1
    build/asan/tests/engine/engine_ranks --model $model --requests 1 || status=1
  done
}
tsan() {
  cmake --preset tsan >/dev/null || exit 1
  local programs
  programs=$(ctest --test-dir build/tsan -N -LE slow -R "$tsan_tests" | sed -n 's/^ *Test *#[0-9]*: //p')
  # shellcheck disable=SC2086  # one word a program
  build tsan --target $programs
  ctest --test-dir build/tsan --output-on-failure -j 2 --timeout 3600 -LE slow -R "$tsan_tests" 2>&1 |
    tee build/reports/tsan.txt || status=1
}

case "${1:-all}" in
  asan) asan ;;
  tsan) tsan ;;
  all) asan; tsan ;;
  *) echo "usage: scripts/sanitize.sh [asan|tsan]" >&2; exit 2 ;;
esac
echo
grep -HE 'tests passed|tests failed' build/reports/[at]san.txt
exit $status
