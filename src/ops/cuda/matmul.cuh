// y = W x for every weight format, one arithmetic for one row and for a prompt.
//
// W is the A operand (16 output channels × 16 columns), x the B operand (8 rows) of mma.m16n8k16. A slice of
// K is cut into units of kUnit columns; each unit is one chain of products from zero, units are added in
// ascending order. The kernels differ in who computes a unit, never in that order:
//
// matmul_few, at most 8·NT rows: the warps of a block take the units of its channels in turn, the sums meet
// in shared memory; or every block takes one unit and stores its sums for whoever adds them (unit_span).
//
// matmul_ring (matmul_ring.cuh: bf16, and smaller matrices in 4 bits), at most 8 rows: the same, but blocks
// share all tiles of a launch evenly and weights come by asynchronous copies.
//
// matmul_many, tiles of 64 rows: a warp owns 16 channels over all of K; rows are staged by asynchronous
// copies. Where there are enough tiles for every multiprocessor, matmul_wide (bf16, FP8: tiles of 128 rows,
// weights staged too) and matmul_exl3_rows (EXL3, and all experts in it) take its place.
//
// Formats differ in the Weights type: how a packed group (16 channels × 64 columns) is read and decoded.
#pragma once

#include "ops/cuda/matmul_exl3_rows.cuh"
#include "ops/cuda/matmul_few.cuh"
#include "ops/cuda/matmul_many.cuh"
#include "ops/cuda/matmul_wide.cuh"

// Two blocks a multiprocessor: at most 128 registers.
#define FS_KERNEL(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ MatmulParams p)
// One block a multiprocessor.
#define FS_KERNEL_WIDE(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 1) NAME(const __grid_constant__ MatmulParams p)
// Three blocks a multiprocessor.
#define FS_KERNEL_NARROW(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 3) NAME(const __grid_constant__ MatmulParams p)
