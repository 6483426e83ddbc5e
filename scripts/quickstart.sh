#!/usr/bin/env bash
# Installs what is missing, builds, serves the bundled model, shows one question answered, and keeps serving.
#   scripts/quickstart.sh [--once]     --once: stop the server after the answer
set -euo pipefail
cd "$(dirname "$0")/.."
once=${1:-}

scripts/packages.sh build
# Where an NVIDIA GPU is, its code is built too, if nvcc 13 is there (on DGX OS it is).
gpu=-DFIRESTEEL_CUDA=OFF
if arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) && [ -n "$arch" ]; then
  gpu="-DFIRESTEEL_CUDA=AUTO -DFIRESTEEL_CUDA_ARCHS=$arch -DFIRESTEEL_CUDA_PTX="
fi
# shellcheck disable=SC2086
cmake --preset release -DFIRESTEEL_TESTS=OFF -DFIRESTEEL_BENCH=OFF $gpu >/dev/null
echo "Building (the first time takes some minutes) …"
cmake --build --preset release --target firesteel

log=$(mktemp)
build/release/src/app/firesteel serve --model models/demo --port 0 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
url=""
for _ in $(seq 300); do
  url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$log" | head -n 1)
  [ -n "$url" ] && curl -sf "$url/ready" >/dev/null && break
  kill -0 $server 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
cat "$log"

question='What is the capital of France?'
echo
echo "\$ curl $url/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}'"
curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"temperature\": 0}"
echo
[ "$once" = --once ] && exit 0
echo
echo "Serving the demonstration model at $url/v1 (any OpenAI client works). Ctrl-C stops."
wait $server
