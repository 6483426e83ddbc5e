// KDA prompts: the recurrence over what kda_prepare left. The state of a slot is stored [head, value column,
// key], so that a column is contiguous.
#include "ops/cuda/kda.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = kWarps * kWarpColumns;  // of a block
constexpr int kTokens = kKdaAhead / 2;           // staged together, twice
constexpr int kTokenFloats = kKdaValue + kColumns;
constexpr int kPartFloats = 32 / kGroups * kWarpColumns + 8;  // of a token's outputs; banks: 8 apart
static_assert(kKdaValue == 4 * kThreads, "a token's keys are one copy a thread");

struct Staged {
  float token[2 * kTokens][kTokenFloats];
  float part[kWarps][kTokens][kPartFloats];
};

/// Predicated, for a branch would end the stretch of code in which instructions are moved.
__device__ __forceinline__ void copy_async16_if(bool wanted, uint32_t shared, const void* global) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(wanted))
      : "memory");
}
__device__ __forceinline__ void store2_if(bool wanted, float* to, float x, float y) {
  asm volatile("{.reg .pred p;\n setp.ne.b32 p, %3, 0;\n @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to),
               "f"(x), "f"(y), "r"(static_cast<int>(wanted))
               : "memory");
}

}  // namespace

/// grid: (heads · ⌈dim/32⌉, segments). Also advances the convolution history (kda_prepare has read it) where
/// a segment ends.
///
/// One warp a scheduler: what hides the latency of an exchange is the warp's own work that does not depend on
/// it, so a group of tokens is straight code: the output of the token before, a·S, and the next token's keys
/// are taken while the sums over b·S travel. The lanes' parts of a group's outputs are added together.
extern "C" __global__ void __launch_bounds__(kThreads, 3) kda_recur(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) Staged staged;
  begin_kernel<false>();
  int thread;  // not read again and again
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread & 31, warp = thread >> 5;
  const int splits = (p.dim + kColumns - 1) / kColumns;
  const int head = blockIdx.x / splits, split = blockIdx.x % splits;
  const Segment s = segment_at(p.batch, blockIdx.y);
  // The segment's rows that are in the piece.
  const int begin = max(s.first_row, p.first), end = min(s.first_row + s.rows, p.first + p.rows);
  const int rows = end - begin;
  if (rows <= 0) return;
  const int quad = lane / kGroups, in_warp = lane % kGroups * kPair;
  const int column = split * kColumns + warp * kWarpColumns + in_warp;

  // Copies run up to kKdaAhead records past the segment's: other rows, or the room that the host leaves.
  const float* record = p.records + (static_cast<int64_t>(head) * p.rows + begin - p.first) * kKdaRecord;
  const float* keys_from = record + 4 * thread;
  const float* values_from = record + thread / 8 * kKdaRecord + kKdaValue + split * kColumns + thread % 8 * 4;
  const auto shared_address = [](const float* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
  };
  const uint32_t keys_to = shared_address(&staged.token[0][4 * thread]);
  const uint32_t values_to = shared_address(&staged.token[thread / 8 % kTokens][kKdaValue + thread % 8 * 4]);
  const auto stage_in = [&](int place) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      copy_async16_if(true, keys_to + (place + i) * kTokenFloats * 4, keys_from + i * kKdaRecord);
    }
    copy_async16_if(thread < 8 * kTokens, values_to + place * kTokenFloats * 4, values_from);
    copy_async_commit();
    keys_from += kTokens * kKdaRecord, values_from += kTokens * kKdaRecord;
  };
  stage_in(0);
  stage_in(kTokens);

  float* state = state_of(p, s.slot, head);
  const auto each_state = [&](auto&& use) {  // (value, address) of what is in the state
#pragma unroll
    for (int c = 0; c < kPair; ++c)
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int key = 4 * quad + 32 * i;
        if (column + c < p.dim) use(c, i, key, state + static_cast<int64_t>(column + c) * p.dim + key);
      }
  };
  Keys w[kPair] = {};
  each_state([&](int c, int i, int key, const float* at) {
    float4& v = w[c].v[i];
    if (p.dim == kDim) {
      v = *reinterpret_cast<const float4*>(at);
    } else {
      if (key < p.dim) v.x = at[0];
      if (key + 1 < p.dim) v.y = at[1];
      if (key + 2 < p.dim) v.z = at[2];
      if (key + 3 < p.dim) v.w = at[3];
    }
  });

  // Outputs: a lane adds the parts of two columns of token `mine` of a group.
  const int mine = lane / kGroups;
  const float* parts = staged.part[warp][mine] + in_warp;
  const int64_t o_row = static_cast<int64_t>(p.heads) * kDim;
  float* o = p.o + (static_cast<int64_t>(begin - p.first) + mine - 1) * o_row + head * kDim + column;
  const auto put_outputs = [&](int first, int count) {  // tokens from `first` on
    __syncwarp();
    float2 v[32 / kGroups];
#pragma unroll
    for (int l = 0; l < 32 / kGroups; ++l) {
      v[l] = *reinterpret_cast<const float2*>(parts + l * kWarpColumns);
    }
#pragma unroll
    for (int n = 4; n > 0; n /= 2)
#pragma unroll
      for (int l = 0; l < n; ++l) v[l].x += v[l + n].x, v[l].y += v[l + n].y;
    store2_if(mine < count && first + mine >= 0, o, v[0].x, v[0].y);
    o += kTokens * o_row;
    __syncwarp();
  };

  copy_async_wait<1>();
  __syncthreads();
  const float* keys = &staged.token[0][4 * quad];
  const float* values = &staged.token[0][kKdaValue + warp * kWarpColumns + in_warp];
  float* part = staged.part[warp][0] + quad * kWarpColumns + in_warp;
  Keys a = load_keys(keys + kKdaDecay), k = load_keys(keys + kKdaKey), b = load_keys(keys + kKdaProduct);
  Keys q = k;  // of the token before; there is none
  const auto take_output = [&](int place) {
    *reinterpret_cast<float2*>(part + place * kPartFloats) = make_float2(dot(q, w[0]), dot(q, w[1]));
  };
  // A token: its place, that of the next, and its number in the group. `between`: before the next is read.
  const auto step = [&](int at, int next, int number, auto&& between) {
    float seen[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) seen[c] = dot(b, w[c]);
    const float2 beta_v = *reinterpret_cast<const float2*>(values + at * kTokenFloats);
    sum_lanes(seen);
    take_output(number);
    q = load_keys(keys + at * kTokenFloats + kKdaQuery);
    between();
    const Keys next_a = load_keys(keys + next * kTokenFloats + kKdaDecay);
    const Keys next_k = load_keys(keys + next * kTokenFloats + kKdaKey);
    b = load_keys(keys + next * kTokenFloats + kKdaProduct);
    update(w, a, k, seen, beta_v);
    a = next_a, k = next_k;
  };

  int first = 0, place = 0;  // of a group: its first token, its place
#pragma unroll 1
  for (; first + kTokens <= rows; first += kTokens) {
    const int other = kTokens - place;
#pragma unroll
    for (int i = 0; i < kTokens - 1; ++i) step(place + i, place + i + 1, i, [] {});
    step(place + kTokens - 1, other, kTokens - 1, [&] {
      copy_async_wait<0>();
      __syncthreads();  // the next group is there, and this one is free
      stage_in(place);
      put_outputs(first - 1, kTokens);
    });
    place = other;
  }
  int number = 0;
#pragma unroll 1
  for (; first + number < rows; ++number) step(place + number, place + number + 1, number, [] {});
  take_output(number);
  put_outputs(first - 1, number + 1);
  copy_async_wait<0>();
  end_kernel();
  each_state([&](int c, int i, int key, float* at) {
    const float4 v = w[c].v[i];
    if (p.dim == kDim) {
      *reinterpret_cast<float4*>(at) = v;
    } else {
      if (key < p.dim) at[0] = v.x;
      if (key + 1 < p.dim) at[1] = v.y;
      if (key + 2 < p.dim) at[2] = v.z;
      if (key + 3 < p.dim) at[3] = v.w;
    }
  });

  if (split == 0 && end == s.first_row + s.rows) {
    const int past = p.taps - 1, channels = 3 * p.heads * p.dim;
    Bits16* h = history(p, s.slot);
    for (int i = thread; i < 3 * p.dim; i += kThreads) {
      const int channel = (i / p.dim * p.heads + head) * p.dim + i % p.dim;
      // Ascending: entry m takes an entry above it, which is still the old one.
      for (int m = 0; m < past; ++m) {
        const int at = s.rows - past + m;
        h[static_cast<int64_t>(m) * channels + channel] =
            at < 0 ? h[static_cast<int64_t>(at + past) * channels + channel]
                   : p.qkv[static_cast<int64_t>(s.first_row + at) * channels + channel];
      }
    }
  }
}

}  // namespace firesteel::cuda
