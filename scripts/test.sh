#!/usr/bin/env bash
# Installs what the tests need, builds everything, runs all tests and the fuzz targets, and reports what each
# "done" number of the project ran. Ends with ctest's summary.
#   scripts/test.sh [--fuzz-seconds N]     N seconds for each fuzz target (20)
set -euo pipefail
cd "$(dirname "$0")/.."
fuzz_seconds=20
[ "${1:-}" = --fuzz-seconds ] && fuzz_seconds=$2

started=$SECONDS
lap() { echo "== $1 ($((SECONDS - started)) s)"; }

lap "packages"
scripts/packages.sh build test
for dir in tests/oracle tests/e2e; do
  if [ -f $dir/package-lock.json ]; then (cd $dir && npm ci --silent --no-audit --no-fund); fi
done

lap "build"
cmake --preset release >/dev/null
cmake --build --preset release

lap "tests"
mkdir -p build/reports
status=0
ctest --test-dir build/release --output-on-failure -j 2 2>&1 | tee build/reports/ctest.txt || status=1

lap "fuzz targets, $fuzz_seconds s each"
scripts/fuzz.sh "$fuzz_seconds" || status=1

lap "what ran"
scripts/done_report.sh build/reports/ctest.txt
grep -E '^[0-9]+% tests passed|^Total Test time|^The following tests|^\s+[0-9]+ - ' build/reports/ctest.txt || true
exit "$status"
