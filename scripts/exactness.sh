#!/usr/bin/env bash
# All 320 requests of the exactness test on `tiny` and on the bundled model, each alone, beside 7 others, in one pass, in
# random splits, token by token, and continued from its own reply. About 20 minutes a model on two cores.
#   scripts/exactness.sh [BUILD_DIR]     (build/release)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
for model in tiny demo; do
  "$build/tests/engine/engine_exactness" --model "$model" --requests 320
done
