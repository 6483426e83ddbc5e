#!/usr/bin/env bash
# 30 minutes of mixed requests against the bundled model on two ranks: no error, no leak, the same text for the same
# seeded request, steady memory.
#   scripts/soak.sh [--program FILE] [--model DIR] [--ranks N] [--minutes M] [--requests N] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/soak.py "$@"
