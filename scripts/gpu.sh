#!/usr/bin/env bash
# The GPU tests and kernel benches on a machine that has a GPU, nvcc, a C++ compiler, CMake and ninja, but no -dev
# packages.
#
#   scripts/gpu.sh pack          here: gathers the third-party headers and libraries that the GPU targets need in
#                                build/gpu-dev (15 MB), to be carried along with the tree
#   scripts/gpu.sh run [OUT]     there: builds (in build/gpu), tests, compute-sanitizer on a part of the tests if it is
#                                installed, benches. Logs and JSON go to OUT (build/gpu-out). Exit 0: every test passed.
# Settings of `run`: ARCHS (default: this GPU's), STEPS (default "test sanitize bench sass"), BENCH_ARGS, TEST_FILTER,
# REQUESTS of the 320 of the fixed set (100), TEST_SECONDS a program (200),
# SANITIZER_SECONDS a tool (60).
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-}
out=${2:-build/gpu-out}
dev=build/gpu-dev
build=build/gpu

do_pack() {
  local from=/usr/lib/x86_64-linux-gnu to=$dev/usr
  rm -rf "$dev"
  mkdir -p "$to/include" "$to/lib/x86_64-linux-gnu/cmake" "$to/share/cmake"
  cp -r /usr/include/{gtest,gmock,fmt,spdlog,nlohmann,CLI,rapidcheck,openssl} "$to/include/"
  cp /usr/include/rapidcheck.h "$to/include/"
  cp /usr/include/x86_64-linux-gnu/openssl/*.h "$to/include/openssl/"
  mkdir -p "$to/include/hwy"
  cp /usr/include/xxhash.h "$to/include/"
  cp /usr/include/hwy/*.h "$to/include/hwy/"
  cp -r /usr/include/hwy/ops "$to/include/hwy/"
  cp -a $from/lib{gtest,gtest_main,gmock,gmock_main}.a $from/lib{fmt,spdlog}.so* "$to/lib/x86_64-linux-gnu/"
  cp -a $from/librapidcheck.a $from/libcrypto.so* "$to/lib/x86_64-linux-gnu/"
  cp -r $from/cmake/{GTest,fmt,spdlog} "$to/lib/x86_64-linux-gnu/cmake/"
  cp -r /usr/share/cmake/{nlohmann_json,CLI11} "$to/share/cmake/"
  git rev-parse --short HEAD >"$dev/commit"
  du -sh "$dev"
}

targets="gpu_test ops_cuda_test cuda_pack_test ops_hyper_test ops_attention_test ops_indexer_test
  ops_kda_test ops_linear_test ops_moe_test ops_rows_test model_cuda_test engine_exactness engine_ranks firesteel_core"

do_build() {
  local archs=${ARCHS:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)}
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFIRESTEEL_CUDA=ON \
    "-DFIRESTEEL_FOLDERS=base;tensor;quant;gpu;comm;ops;ops/cuda;model;cache;decode;engine;core;support;nccl_standin;ops_cuda;model_cuda" \
    -DOPENSSL_INCLUDE_DIR="$PWD/$dev/usr/include" \
    -DOPENSSL_CRYPTO_LIBRARY="$PWD/$dev/usr/lib/x86_64-linux-gnu/libcrypto.so" \
    "-DFIRESTEEL_CUDA_ARCHS=$archs" -DFIRESTEEL_CUDA_PTX= "-DCMAKE_PREFIX_PATH=$PWD/$dev/usr" \
    -DCMAKE_CXX_FLAGS=-Wno-error >"$out/configure.log"
  # shellcheck disable=SC2086
  ninja -k 0 -C "$build" $targets >"$out/build.log" 2>&1 ||
    { grep -E 'error|FAILED' "$out/build.log" | head -n 30; return 1; }
}

do_test() {
  local failed=0 program name
  # Ranks of one process share its hardware queues: a rank that waits for another must not sit before it in one.
  export CUDA_DEVICE_MAX_CONNECTIONS=32
  for name in gpu/gpu_test ops_cuda/cuda_pack_test ops_cuda/ops_cuda_test model_cuda/model_cuda_test ops/ops_hyper_test ops/ops_attention_test \
    ops/ops_indexer_test ops/ops_kda_test ops/ops_linear_test ops/ops_moe_test ops/ops_rows_test; do
    program=$build/tests/$name
    name=$(basename "$name")
    [ -x "$program" ] || { echo "$name was not built"; failed=1; continue; }
    timeout "${TEST_SECONDS:-200}" "$program" --gtest_filter="${TEST_FILTER:-*}" >"$out/$name.log" 2>&1 ||
      { [ $? != 124 ] || echo "$name: out of time, not all of it ran"; failed=1; }
    echo "$name: $(grep -cE '^\[       OK' "$out/$name.log") passed, $(grep -E '^\[  FAILED  \].*\(' "$out/$name.log" | wc -l) failed," \
      "$(grep -cE '^\[  SKIPPED \].*\(' "$out/$name.log") skipped; $(grep -E 'ms total' "$out/$name.log" | tail -n 1)"
    grep -E '^\[  FAILED  \].*\(' "$out/$name.log" | head -n 25 || true
  done
  # The requests alone, in company, in any split, continued; then on two ranks that share the GPU.
  local model
  for model in tiny demo; do
    timeout 60 "$build/tests/engine/engine_exactness" --model $model --device cuda --requests "${REQUESTS:-100}" \
      >"$out/exactness-$model.log" 2>&1 || { echo "engine_exactness $model: failed"; failed=1; }
    cat "$out/exactness-$model.log"
  done
  # Two ranks share this process and its context; four are processes, whose kernels take turns on the GPU.
  local ranks requests
  for ranks in 2 4; do
    requests=${REQUESTS:-100}
    [ $ranks = 2 ] || requests=$(((requests + 39) / 40))
    timeout 90 "$build/tests/engine/engine_ranks" --model tiny --device cuda --ranks $ranks --requests $requests \
      >"$out/ranks-$ranks.log" 2>&1 || { echo "engine_ranks, $ranks ranks: failed"; failed=1; }
    grep -v 'ranks exchange through' "$out/ranks-$ranks.log"
  done
  return $failed
}

# Every kind of kernel once, the parts side by side: most of a sanitizer's time is the host's.
sanitized=('Cases/Attention*/0:Cases/Attention*/3' 'Cases/Attention*/4:Cases/Attention*/7' 'Shapes/KdaShapes*/0:Shapes/KdaShapes*/3'
  'KdaBatch.*:KdaPrompt.*' 'Formats/Experts*/0'
  'Formats/Experts*/1' 'Formats/Experts*/6:Formats/Experts*/13' 'Formats/Matmul.MatchesTheDefinition/?'
  'Formats/Matmul.MatchesTheDefinition/1?' 'Formats/Matmul.MatchesTheDefinition/2?' 'Matmul.*' 'Layers.*' 'PoolSelect.*'
  'CudaDraw.*')

do_sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 0; }
  local tool i pids clean tests failed=0
  for tool in memcheck racecheck; do
    pids=() clean=0
    for i in "${!sanitized[@]}"; do
      timeout "${SANITIZER_SECONDS:-60}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$build/tests/ops_cuda/ops_cuda_test" --gtest_filter="${sanitized[i]}" >"$out/$tool-$i.log" 2>&1 &
      pids+=($!)
    done
    for i in "${!sanitized[@]}"; do
      if wait "${pids[i]}"; then
        clean=$((clean + 1))
      else
        echo "$tool: exit $? for ${sanitized[i]}"
        grep -hE '(ERROR|RACECHECK) SUMMARY|FAILED' "$out/$tool-$i.log" | tail -n 3 || true
        failed=1
      fi
    done
    tests=$(cat "$out/$tool"-*.log | grep -cE '^\[       OK') || true
    echo "$tool: $clean of ${#sanitized[@]} parts without a finding, $tests tests"
  done
  return $failed
}

do_bench() {
  local core=$build/src/app/firesteel_core dense
  # shellcheck disable=SC2086
  timeout "${BENCH_SECONDS:-150}" "$core" bench kernels --json "$out/kernels.json" ${BENCH_ARGS:-} 2>&1 |
    tee "$out/kernels.txt"
  for dense in ${DENSE:-q4 bf16}; do
    timeout 60 "$core" bench decode --synthetic glm-5.3-flash --rank-of 2 --device cuda --dense $dense --prompt 8192 \
      --tokens 64 --streams 1,2,4,8 --json "$out/decode-$dense.json"
  done
  timeout 60 "$core" bench prefill --synthetic glm-5.3-flash --rank-of 2 --device cuda --lengths 8192 \
    --json "$out/prefill.json"
}

do_sass() {
  command -v cuobjdump >/dev/null || return 0
  local stem
  for stem in matmul_exl3_mcg_4 matmul_exl3_mul1_4 matmul_bf16; do
    local arch
    for arch in 90 121; do
      nvcc -std=c++17 -O3 --expt-relaxed-constexpr -Isrc -cubin -arch=sm_$arch -o "$out/$stem.$arch.cubin" \
        src/ops/cuda/$stem.cu && cuobjdump --dump-sass "$out/$stem.$arch.cubin"
      rm -f "$out/$stem.$arch.cubin"
    done
  done | gzip >"$out/sass.gz"
}

case $mode in
  pack) do_pack ;;
  run)
    mkdir -p "$out"
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader
    SECONDS=0
    do_build || exit 1
    echo "built in $SECONDS s"
    failed=0
    for step in ${STEPS:-test sanitize bench sass}; do
      "do_$step" || failed=1
      echo "$step: at $SECONDS s"
    done
    exit $failed
    ;;
  *) sed -n '2,13p' "$0"; exit 2 ;;
esac
