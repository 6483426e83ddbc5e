#!/usr/bin/env bash
# 1,000 requests from 32 clients against the bundled model, a quarter cancelled: no error, no leak, steady memory.
#   scripts/load_test.sh [--program FILE] [--model DIR] [--requests N] [--clients N]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/load_test.py "$@"
