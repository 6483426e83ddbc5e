// What the kernels of hyper-connections share: the weights that a site leaves for its end, sums by halves.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"

namespace firesteel::cuda {

/// s := 1/s, with one reciprocal: the four are far from the ends of fp32's range.
__device__ __forceinline__ void invert(float (&s)[4]) {
  const float ab = s[0] * s[1], cd = s[2] * s[3];
  const float r = __fdividef(1.0f, ab * cd);
  const float of_ab = r * cd, of_cd = r * ab;
  const float a = of_ab * s[1], b = of_ab * s[0], c = of_cd * s[3], d = of_cd * s[2];
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/// One warp, lane c < 24 with z of channel c: post and the doubly normalised comb of a row.
__device__ __forceinline__ void store_post_and_comb(const HyperOut& p, int row, float z) {
  const int lane = threadIdx.x & 31;
  if (lane >= 4 && lane < 8) p.post[row * 4 + lane - 4] = 2.0f * sigmoid(z);
  // Every lane holds the whole matrix M[i][j]: no lane waits for another in the 20 rounds.
  float m[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = __shfl_sync(0xffffffffu, z, 8 + 4 * i + j);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float top = fmaxf(fmaxf(m[i][0], m[i][1]), fmaxf(m[i][2], m[i][3]));
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = expf(m[i][j] - top);
  }
  const auto scale_rows = [&](float eps) {
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = ((m[i][0] + m[i][1]) + (m[i][2] + m[i][3])) + eps;
    invert(s);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) m[i][j] *= s[i];
  };
  const auto scale_columns = [&](float eps) {
    float s[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j] = ((m[0][j] + m[1][j]) + (m[2][j] + m[3][j])) + eps;
    invert(s);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i][j] *= s[j];
  };
  scale_rows(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] += p.hc_eps;
  scale_columns(p.hc_eps);
#pragma unroll 1
  for (int i = 1; i < p.iters; ++i) {
    scale_rows(p.hc_eps);
    scale_columns(p.hc_eps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (lane == 4 * i + j) p.comb[row * 16 + lane] = m[i][j];
}

/// Sum of kCount values by halves.
template <int kCount>
__device__ __forceinline__ float tree_sum(const float* v, int stride) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    return tree_sum<kCount / 2>(v, stride) + tree_sum<kCount / 2>(v + kCount / 2 * stride, stride);
  }
}

}  // namespace firesteel::cuda
