#!/usr/bin/env bash
# Several ranks, at length: all 320 requests on 2 and 4 ranks over threads, shared memory and TCP, the FP8 form too, and
# 50 random points of each fault of a link. About an hour on two cores.
#   scripts/ranks.sh [BUILD_DIR]     (build/release)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
"$build/tests/engine/engine_rank_faults" --points 50
for model in tiny demo; do "$build/tests/engine/engine_ranks" --model "$model" --requests 320; done
"$build/tests/engine/engine_ranks" --model tiny-fp8 --requests 40
