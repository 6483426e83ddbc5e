#!/usr/bin/env bash
# Compiles the GPU code for the home machine (sm_121) where nvcc is there; nothing of it runs. scripts/gpu.sh tests it.
#   scripts/cuda_compile.sh [ARCHS]     ("121"; "90;121" for both)
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
[ -n "$nvcc" ] || { echo "GPU code: not compiled (no nvcc)"; exit 0; }
started=$SECONDS
cmake --preset cuda "-DFIRESTEEL_CUDA_ARCHS=${1:-121}" -DFIRESTEEL_CUDA_PTX= >/dev/null
cmake --build --preset cuda --target fs_ops_cuda
echo "GPU code: compiled for sm_${1:-121} in $((SECONDS - started)) s"
