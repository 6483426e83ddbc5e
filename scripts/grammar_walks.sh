#!/usr/bin/env bash
# The long runs of the grammar engine's oracles: random schemas judged by ajv, masks against xgrammar, patterns against RegExp.
#   scripts/grammar_walks.sh [BUILD_FOLDER] [SCHEMAS] [SEED]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release} schemas=${2:-2000} seed=${3:-$(date +%s)}
probe=$build/tests/grammar/grammar_probe
out=$build/tests/grammar/oracle
[ -x "$probe" ] || { echo "no $probe: cmake --build $build --target grammar_probe" >&2; exit 2; }
[ -d tests/oracle/node_modules ] || npm ci --prefix tests/oracle >/dev/null
echo "seed $seed"
status=0
node tests/oracle/grammar_walks.mjs "$probe" "$out" "$schemas" 1 "$seed" || status=1
node tests/oracle/grammar_xgrammar.mjs "$probe" "$out" $((schemas / 4)) "$seed" || status=1
node tests/oracle/grammar_regex.mjs "$probe" "$out" "$schemas" "$seed" || status=1
exit $status
