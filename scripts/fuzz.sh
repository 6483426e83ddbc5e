#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for SECONDS, two at a time. A finding stops it with its input.
#   scripts/fuzz.sh [SECONDS] [TARGET …]
#   scripts/fuzz.sh inputs=N [TARGET …]     N inputs each, in a build without sanitizers that is several times as fast
#   scripts/fuzz.sh random=N [TARGET …]     N inputs of random bytes, without coverage: faster again
set -euo pipefail
cd "$(dirname "$0")/.."
until=${1:-60}
shift || true
preset=fuzz limit=-max_total_time=$until lengths=65536
if [[ $until == inputs=* ]]; then
  # Short inputs, and no weighing of them by rarity, which costs more than most inputs do.
  preset=fuzzfast limit="-runs=${until#inputs=} -entropic=0" lengths=256
fi
if [[ $until == random=* ]]; then preset=fuzzrandom limit=${until#random=} lengths=64; fi

cmake --preset $preset -DFIRESTEEL_TESTS=ON >/dev/null
targets=("$@")
# shellcheck disable=SC2086  # no targets: all
cmake --build --preset $preset --target ${targets[*]:-fuzzers}
if [ ${#targets[@]} = 0 ]; then
  for t in build/$preset/tests/fuzz/*_fuzz; do targets+=("$(basename "$t")"); done
fi
mkdir -p build/reports
run_one() {
  local t=$1 dir=build/$preset/corpus/$1
  mkdir -p "$dir"
  local seeds=tests/fuzz/seeds/$t
  [ -d "$seeds" ] || seeds=""
  if [ "$preset" = fuzzrandom ]; then
    set -- "$limit" "$RANDOM$RANDOM" "$lengths" build/reports/"$t"-input
  else
    # shellcheck disable=SC2086  # no seeds: no argument; a limit of two words
    set -- $limit -timeout=10 -rss_limit_mb=2048 -max_len="$lengths" -print_final_stats=1 \
      -artifact_prefix=build/reports/"$t"- "$dir" $seeds
  fi
  if ! build/"$preset"/tests/fuzz/"$t" "$@" >build/reports/"$t".txt 2>&1; then
    echo "FAILED: $t"; tail -n 40 build/reports/"$t".txt
    for input in build/reports/"$t"-*; do [ -f "$input" ] && echo "$input in base64:" && head -c 4096 "$input" | base64; done
    return 1
  fi
  echo "fuzz $t: $(sed -n 's/^stat::number_of_executed_units: *//p' build/reports/"$t".txt) inputs, no finding"
}
export -f run_one
export preset limit lengths
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run_one {}' | tee build/reports/fuzz.txt
! grep -q '^FAILED' build/reports/fuzz.txt
