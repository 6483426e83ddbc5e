#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for SECONDS, two at a time. A finding stops it with its input.
#   scripts/fuzz.sh [SECONDS] [TARGET …]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true

cmake --preset fuzz -DFIRESTEEL_TESTS=ON >/dev/null
cmake --build --preset fuzz --target fuzzers
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for t in build/fuzz/tests/fuzz/*_fuzz; do targets+=("$(basename "$t")"); done
fi
mkdir -p build/reports
run_one() {
  local t=$1 dir=build/fuzz/corpus/$1
  mkdir -p "$dir"
  local seeds=tests/fuzz/seeds/$t
  [ -d "$seeds" ] || seeds=""
  # shellcheck disable=SC2086  # no seeds: no argument
  if ! build/fuzz/tests/fuzz/"$t" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
      -artifact_prefix=build/reports/"$t"- "$dir" $seeds >build/reports/"$t".txt 2>&1; then
    echo "FAILED: $t"; tail -n 40 build/reports/"$t".txt
    for input in build/reports/"$t"-*; do [ -f "$input" ] && echo "$input in base64:" && head -c 4096 "$input" | base64; done
    return 1
  fi
  echo "fuzz $t: $(sed -n 's/^stat::number_of_executed_units: *//p' build/reports/"$t".txt) inputs in $seconds s, no finding"
}
export -f run_one
export seconds
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run_one {}' | tee build/reports/fuzz.txt
! grep -q '^FAILED' build/reports/fuzz.txt
