// Random weights made on the device, in the packed layouts of pack.h, for measuring speed without a
// checkpoint.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {

/// splitmix64, as random_bits() of ops/random_source.h.
__device__ __forceinline__ uint64_t bits_of(uint64_t seed, uint64_t i) {
  uint64_t x = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

}  // namespace

/// A thread fills 16 bytes, whose bits follow from their place in the whole matrix.
extern "C" __global__ void __launch_bounds__(256) random_fill(const __grid_constant__ RandomFillParams p) {
  begin_kernel();
  for (int64_t piece = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; piece < p.pieces;
       piece += static_cast<int64_t>(gridDim.x) * 256) {
    const int64_t tile = piece / p.row_pieces;
    const int in_row = static_cast<int>(piece % p.row_pieces);
    const uint64_t group = static_cast<uint64_t>(p.group0 + in_row / p.group_pieces);
    const uint64_t place = static_cast<uint64_t>(tile + p.tile0) << 32 | group << 12 |
                           static_cast<uint64_t>(in_row % p.group_pieces);
    const uint64_t low = bits_of(p.seed, place), high = bits_of(~p.seed, place);
    uint32_t w[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                     static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (p.kind == 1) {
        w[i] = __float_as_uint((static_cast<float>(w[i] >> 8) * 0x1p-23f - 1.0f) * p.span);
      } else if (p.kind == 2) {
        const float a = (static_cast<float>(w[i] & 0xffff) * 0x1p-15f - 1.0f) * p.span,
                    b = (static_cast<float>(w[i] >> 16) * 0x1p-15f - 1.0f) * p.span;
        w[i] = static_cast<uint32_t>(to_bf16(b)) << 16 | to_bf16(a);
      } else if (p.kind >= 4 && in_row % p.group_pieces >= p.code_pieces) {
        w[i] = p.scales[i & 1];
      } else if (p.kind == 3 || p.kind == 5) {
#pragma unroll
        for (int b = 0; b < 4; ++b)
          if ((w[i] >> (8 * b) & 0x7f) == 0x7f) w[i] ^= 1u << (8 * b);  // no NaN
      }
    }
    reinterpret_cast<uint4*>(p.data)[piece] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

}  // namespace firesteel::cuda
