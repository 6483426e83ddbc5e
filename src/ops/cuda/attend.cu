// Attention over selected latents: scores, softmax and mix of 32 heads, in a thread block that walks a row's
// tokens. Four warps gather and score, a slice of 128 latents each; a score is the sum of the four slices, in
// order. Eight warps take four heads each through the softmax and mix 64 latents. While they have one block
// of tokens, the next is scored and two more are under way.
//
// FP8 latents stay codes in shared memory: fragments are decoded to fp16 on the way to the tensor cores. A
// token's scale 2^e goes into its score, and into its weight as 2^(s + e - M), where M is a bound of s + e:
// so weights fit fp16 whatever the scales. The sum of weights is that of 2^(s - M).
//
// Few rows: a thread block a chunk, and attend_merge; many rows: a thread block walks all chunks of its row.
// Both do the same sums.
#include "ops/cuda/attend_mix.cuh"
#include "ops/cuda/attend_score.cuh"

namespace firesteel::cuda {

namespace {

/// kWhole: a block a row, grid (rows of this pass, ⌈heads / 32⌉), õ to p.out. Else a block a chunk, grid
/// (rows of this pass, ⌈heads / 32⌉, chunks), its part to p.part_o and p.part_ml.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void attend_tokens(const AttentionParams& p) {
  begin_kernel();
  extern __shared__ __align__(16) uint8_t raw[];
  AttendShared<kFp8>& sh = *reinterpret_cast<AttendShared<kFp8>*>(raw);
  Work work;
  work.row = p.first_row + blockIdx.x;
  work.head0 = blockIdx.y * kHeads;
  work.heads = min(kHeads, p.heads - work.head0);
  const TokenList list(p, work.row);
  work.begin = kWhole ? 0 : blockIdx.z * kChunk;
  work.end = kWhole ? list.total : min(list.total, work.begin + kChunk);
  if (work.begin >= work.end) return;
  if (threadIdx.x >= 32 * kMixWarps)
    score_tokens<kFp8>(p, list, work, sh);
  else
    mix_tokens<kFp8, kWhole>(p, work, sh);
}

}  // namespace

#define FS_ATTEND(name, fp8, whole)                            \
  extern "C" __global__ void __launch_bounds__(kAllThreads, 1) \
      name(const __grid_constant__ AttentionParams p) {        \
    attend_tokens<fp8, whole>(p);                              \
  }
FS_ATTEND(attend_chunk, false, false)
FS_ATTEND(attend_chunk_fp8, true, false)
FS_ATTEND(attend_row, false, true)
FS_ATTEND(attend_row_fp8, true, true)
#undef FS_ATTEND

/// The chunks of a row in ascending order, as attend_row merges them. grid: (heads, rows of this pass); a
/// thread takes four latents.
extern "C" __global__ void __launch_bounds__(128) attend_merge(const __grid_constant__ AttentionParams p) {
  begin_kernel();
  const int head = blockIdx.x, row = p.first_row + blockIdx.y, at = 4 * threadIdx.x;
  const int chunks = (TokenList(p, row).total + kChunk - 1) / kChunk;
  const int64_t part = static_cast<int64_t>(blockIdx.y) * p.chunks * p.heads + head;
  float most = -INFINITY, sum = 0.0f;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    const int64_t i = part + static_cast<int64_t>(c) * p.heads;
    const float2 ml = *reinterpret_cast<const float2*>(p.part_ml + 2 * i);
    const float4 o = *reinterpret_cast<const float4*>(p.part_o + i * kLatent + at);
    const float both = fmaxf(most, ml.x), a = exp2_fast(most - both), b = exp2_fast(ml.x - both);
    sum = fmaf(b, ml.y, sum * a);
    most = both;
    v.x = fmaf(b, o.x, v.x * a);
    v.y = fmaf(b, o.y, v.y * a);
    v.z = fmaf(b, o.z, v.z * a);
    v.w = fmaf(b, o.w, v.w * a);
  }
  *reinterpret_cast<uint2*>(p.out + (static_cast<int64_t>(row) * p.heads + head) * kLatent + at) =
      make_uint2(pack_bf16(v.x / sum, v.y / sum), pack_bf16(v.z / sum, v.w / sum));
}

}  // namespace firesteel::cuda
