// y = W x with fp32 weights (row-major): one warp an output element and slice. For formats and sizes where
// speed does not matter; every lane sums its columns in order, the lanes by a fixed tree.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

extern "C" __global__ void __launch_bounds__(256) matvec_f32(const __grid_constant__ MatvecF32Params p) {
  begin_kernel();
  const int channel = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  const int slice = blockIdx.z;
  if (channel >= p.n) return;
  int first = blockIdx.y, count = 1;
  const float* w = p.w;
  if (p.items != nullptr) {
    if (blockIdx.y >= *p.item_count) return;
    const ExpertItem item = p.items[blockIdx.y];
    first = item.first;
    count = item.count;
    w = reinterpret_cast<const float*>(p.table[item.expert * p.table_stride + p.part].data);
  }
  const int begin = p.slices ? p.slice_begin[slice] : 0, end = p.slices ? p.slice_end[slice] : p.k;
  for (int r = first; r < first + count; ++r) {
    const int row = p.pair_row != nullptr ? p.pair_row[r] : r;
    const Bits16* x = p.x + row * p.ldx;
    float sum = 0.0f;
    for (int c = begin + lane; c < end; c += 32)
      sum = fmaf(w[static_cast<int64_t>(channel) * p.k + c], from_bf16(x[c]), sum);
    sum = warp_sum(sum);
    if (lane == 0) {
      const int64_t at = slice * p.slice_stride + r * p.ldy + p.column + channel;
      if (p.out_f32) {
        static_cast<float*>(p.y)[at] = sum;
      } else {
        static_cast<Bits16*>(p.y)[at] = to_bf16(sum);
      }
    }
  }
}

}  // namespace firesteel::cuda
