#!/usr/bin/env bash
# Prints, for each number under "Done when" of first light, what ran and what was skipped, from the lines
# "[done N] …" that tests and scripts print.   scripts/done_report.sh CTEST_LOG …
set -euo pipefail
cd "$(dirname "$0")/.."
lines=$(cat "$@" build/reports/fuzz.txt 2>/dev/null | grep -aoE '\[done [0-9]+\] .*' | sort -u || true)
names=(
  "" "golden models: logits, layers, choices, MTP, EXL3 matrices"
  "320 requests: alone, in company, any split, resumed"
  "demo model: golden replies, and over HTTP"
  "tokenizer and templates against their oracles"
  "the openai client"
  "load: 1,000 requests from 32 clients"
  "sanitizers and fuzz targets"
  "measured speeds"
)
elsewhere=(
  "" "" "" "" "" ""
  "not run here: scripts/load_test.sh (figures in docs/testing.md)"
  "sanitizers not run here: scripts/sanitize.sh (figures in docs/testing.md)"
  "not run here: bench programs (figures in docs/performance.md)"
)
for n in 1 2 3 4 5 6 7 8; do
  echo "Done $n: ${names[n]}"
  found=$(printf '%s\n' "$lines" | sed -n "s/^\[done $n\] /  /p")
  [ -n "$found" ] && printf '%s\n' "$found"
  if [ -n "${elsewhere[n]}" ]; then echo "  ${elsewhere[n]}"
  elif [ -z "$found" ]; then echo "  NOTHING RAN"; fi
done
