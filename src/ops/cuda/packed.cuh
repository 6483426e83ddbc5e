// Single elements of packed matrices, for kernels whose time is not in the weights.
#pragma once

#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

/// Element (row, column) of a packed bf16 matrix (pack.h).
__device__ __forceinline__ Bits16 packed_bf16(const uint8_t* data, int groups, int row, int column) {
  const int r = row & 15, in = column & 31;
  const int tile = (column & 63) >> 5 << 1 | ((in >> 2) & 1), lane = (r & 7) * 4 + (in >> 3);
  const int reg = (r >> 3) | ((in >> 1) & 1) << 1;
  const int64_t at = (static_cast<int64_t>(row >> 4) * groups + (column >> 6)) * 2048 + tile * 512 +
                     lane * 16 + reg * 4 + (in & 1) * 2;
  return *reinterpret_cast<const Bits16*>(data + at);
}

/// The same of a packed FP8 matrix with its block scales.
__device__ __forceinline__ float packed_fp8(const uint8_t* data, const float* scale, int columns, int row,
                                            int column) {
  const int r = row & 15, in = column & 31, half = (column & 63) >> 5, step = (in >> 2) & 1;
  const int lane = (r & 7) * 4 + (in >> 3), reg = (r >> 3) | ((in >> 1) & 1) << 1;
  const int groups = (columns + kGroupK - 1) / kGroupK;
  const int64_t at = (static_cast<int64_t>(row >> 4) * groups + (column >> 6)) * 1024 + half * 512 +
                     lane * 16 + step * 8 + reg * 2 + (in & 1);
  const uint32_t code = data[at];
  // e4m3 moved into bf16's fields is the value times 2^-120.
  const float value = __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
  return value * scale[row / 128 * ((columns + 127) / 128) + column / 128];
}

/// Row-major fp32 or packed bf16, as MatrixSpec names it.
__device__ __forceinline__ float plain_weight(const uint8_t* data, bool f32, int columns, int row,
                                              int column) {
  if (f32) return reinterpret_cast<const float*>(data)[static_cast<int64_t>(row) * columns + column];
  return from_bf16(packed_bf16(data, (columns + kGroupK - 1) / kGroupK, row, column));
}

}  // namespace firesteel::cuda
