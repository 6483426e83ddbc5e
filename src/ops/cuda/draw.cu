// Drawing tokens from rows of logits: decode/sampler.h on the device, with the same bits.
//
// Four launches. draw_best: the first token of each block of logits. draw_weigh: masses (or counts) by bin of
// distance from the maximum; the winner where all tokens may win. draw_cut: the bin in which the nucleus (or
// the candidates) ends; tokens before it are kept, those in it are listed. draw_finish, a block a row: how
// much of the list is kept, then the winner. Whatever is added up is an integer, and winners are compared in
// a total order, so that nothing depends on how a row is shared out.
#include "ops/cuda/draw.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kWarps = kDrawThreads / 32;
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits;  // draw_finish: four a thread
static_assert(kDigits == 4 * kDrawFinishThreads && kDrawBins <= 4 * kDrawThreads);

__device__ __forceinline__ int item_index(int i) {
  return static_cast<int>(blockIdx.x) * kDrawChunk + i * kDrawThreads + static_cast<int>(threadIdx.x);
}

/// This thread's logits, −∞ where there is none.
__device__ __forceinline__ void load_items(const DrawParams& p, const DrawSpec& spec,
                                           float (&v)[kDrawItems]) {
#pragma unroll
  for (int i = 0; i < kDrawItems; ++i)
    v[i] = item_index(i) < p.width ? usable_logit(p, spec, item_index(i)) : -INFINITY;
}

/// The row's first token on this rank.
template <int kThreads>
__device__ __forceinline__ uint64_t row_best(const DrawParams& p, int row, uint64_t* shared) {
  uint64_t best = 0;
  for (int b = threadIdx.x; b < p.blocks; b += kThreads) {
    const uint64_t key = p.best[static_cast<int64_t>(row) * p.blocks + b];
    best = key > best ? key : best;
  }
  return block_max<kThreads>(best, shared);
}
/// The maximum over all ranks, −∞ if no logit is usable.
__device__ __forceinline__ float row_top(const DrawParams& p, const DrawSpec& spec, uint64_t best) {
  return p.given ? spec.maximum + 0.0f : best == 0 ? -INFINITY : key_value(best);
}

/// ⌈top_p · total⌉ with top_p as the exact rational of its double.
__device__ __forceinline__ int64_t nucleus_need(double top_p, int64_t total) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(top_p));
  const int exponent = static_cast<int>(bits >> 52);
  uint64_t mantissa = bits & 0x000FFFFFFFFFFFFFull;
  if (exponent > 0) mantissa |= 0x0010000000000000ull;
  const int shift = 1075 - max(exponent, 1);
  const unsigned __int128 product = static_cast<unsigned __int128>(mantissa) * static_cast<uint64_t>(total);
  if (shift >= 128) return product != 0 ? 1 : 0;
  const unsigned __int128 one = 1;
  return static_cast<int64_t>((product + ((one << shift) - 1)) >> shift);
}

/// Appends to a list that several blocks fill; the order is of no account.
__device__ __forceinline__ void append(bool here, uint64_t entry, uint64_t* list, uint32_t* count) {
  const unsigned lanes = __ballot_sync(0xffffffffu, here);
  if (lanes == 0) return;
  const int lane = threadIdx.x & 31, leader = __ffs(static_cast<int>(lanes)) - 1;
  uint32_t at = 0;
  if (lane == leader) at = atomicAdd(count, static_cast<uint32_t>(__popc(lanes)));
  at = __shfl_sync(0xffffffffu, at, leader);
  if (here) list[at + __popc(lanes & ((1u << lane) - 1))] = entry;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDrawThreads) draw_best(const __grid_constant__ DrawParams p) {
  begin_kernel();
  __shared__ uint64_t shared[kWarps];
  const int64_t row = blockIdx.y;
  const DrawSpec spec = p.specs[row];
  if (blockIdx.x == 0) {  // for the kernels to come
    for (int i = threadIdx.x; i < kDrawBins; i += kDrawThreads) p.bins[row * kDrawBins + i] = 0;
    if (threadIdx.x < 2) p.counts[2 * row + threadIdx.x] = 0;
    if (threadIdx.x == 2) p.mass[row] = 0;
  }
  float v[kDrawItems];
  load_items(p, spec, v);
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kDrawItems; ++i) {
    const uint64_t key = v[i] > -INFINITY ? order_key(v[i], static_cast<uint32_t>(item_index(i))) : 0;
    best = key > best ? key : best;
  }
  best = block_max<kDrawThreads>(best, shared);
  if (threadIdx.x == 0) p.best[row * p.blocks + blockIdx.x] = best;
}

extern "C" __global__ void __launch_bounds__(kDrawThreads) draw_weigh(const __grid_constant__ DrawParams p) {
  begin_kernel();
  __shared__ uint64_t shared[kWarps];
  __shared__ uint32_t low[kDrawBins], high[kDrawBins];
  __shared__ float lows[kWarps];
  __shared__ DrawWinner winners[kWarps];
  const int64_t row = blockIdx.y;
  const DrawSpec spec = p.specs[row];
  if (spec.kind == DrawOf::kBest) return;
  float v[kDrawItems];
  load_items(p, spec, v);
  const float top = row_top(p, spec, row_best<kDrawThreads>(p, blockIdx.y, shared));
  if (!(top > -INFINITY)) return;
  const double best = scaled(top, spec.temperature);
  if (spec.kind == DrawOf::kWinner) {
    WinnerSearch<kDrawThreads> search(spec, p.first_id, best, lows);
    search.round<kDrawItems>([&](int i) { return v[i]; }, item_index);
    const DrawWinner winner = search.best(winners);
    if (threadIdx.x == 0) p.winners[row * p.blocks + blockIdx.x] = winner;
    return;
  }
  for (int i = threadIdx.x; i < kDrawBins; i += kDrawThreads) low[i] = high[i] = 0;
  __syncthreads();
  int64_t mass = 0;
#pragma unroll
  for (int i = 0; i < kDrawItems; ++i) {
    if (!(v[i] > -INFINITY)) continue;
    const int bin = bin_of(top, v[i]);
    if (spec.kind == DrawOf::kNucleus) {
      const int64_t m = mass_of(spec, v[i], top, best);
      if (m != 0) add_shared(&low[bin], &high[bin], static_cast<uint64_t>(m));
    } else {
      atomicAdd(&low[bin], 1u);
      if (spec.masses) mass += mass_of(spec, v[i], top, best);
    }
  }
  if (spec.masses) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) mass += __shfl_xor_sync(0xffffffffu, mass, mask);
    if ((threadIdx.x & 31) == 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(p.mass + row), static_cast<unsigned long long>(mass));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kDrawBins; i += kDrawThreads) {
    const uint64_t sum = static_cast<uint64_t>(high[i]) << 32 | low[i];
    if (sum != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(p.bins + row * kDrawBins + i),
                static_cast<unsigned long long>(sum));
  }
}

extern "C" __global__ void __launch_bounds__(kDrawThreads) draw_cut(const __grid_constant__ DrawParams p) {
  begin_kernel();
  __shared__ uint64_t shared[kWarps];
  __shared__ int64_t sums[kWarps];
  __shared__ CutPoint point;
  __shared__ float lows[kWarps];
  __shared__ DrawWinner winners[kWarps];
  const int64_t row = blockIdx.y;
  const DrawSpec spec = p.specs[row];
  if (spec.kind != DrawOf::kNucleus && spec.kind != DrawOf::kCandidates) return;
  float v[kDrawItems];
  load_items(p, spec, v);
  int64_t weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int bin = 4 * static_cast<int>(threadIdx.x) + i;
    weight[i] = bin < kDrawBins ? static_cast<int64_t>(p.bins[row * kDrawBins + bin]) : 0;
  }
  const float top = row_top(p, spec, row_best<kDrawThreads>(p, blockIdx.y, shared));
  if (!(top > -INFINITY)) return;
  const bool nucleus = spec.kind == DrawOf::kNucleus;

  const WeightScan scan = scan_weights<kDrawThreads>(weight, sums);
  const int64_t target = nucleus ? nucleus_need(spec.top_p, scan.total) : spec.count;
  if (threadIdx.x == 0) point = {kDrawBins, scan.total};
  __syncthreads();
  find_cut(weight, scan, target, &point);
  __syncthreads();
  const int cut = point.place;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.cuts[row] = {point.before, target, cut, 0};

  const double best = scaled(top, spec.temperature);
#pragma unroll
  for (int i = 0; i < kDrawItems; ++i) {
    const bool usable = v[i] > -INFINITY;
    const int bin = usable ? bin_of(top, v[i]) : kDrawBins;
    const auto index = static_cast<uint32_t>(item_index(i));
    const bool last = usable && bin == cut;
    uint64_t entry = index;
    if (last && nucleus) entry |= static_cast<uint64_t>(mass_of(spec, v[i], top, best)) << kDrawIndexBits;
    append(last, entry, p.listed + row * p.width, p.counts + 2 * row);
    if (!nucleus)
      append(usable && bin < cut, order_key(v[i], index), p.chosen + row * kMaxDrawn, p.counts + 2 * row + 1);
    if (bin >= cut) v[i] = -INFINITY;
  }
  if (!nucleus) return;
  WinnerSearch<kDrawThreads> search(spec, p.first_id, best, lows);
  search.round<kDrawItems>([&](int i) { return v[i]; }, item_index);
  const DrawWinner winner = search.best(winners);
  if (threadIdx.x == 0) p.winners[row * p.blocks + blockIdx.x] = winner;
}

namespace {

/// The part of a row's list that is kept. An entry's place is a number: how far its logit lies below the
/// greatest of the list, as integers of the same order, then its index. Kept are the places below the limit
/// that limit() returns, found digit by digit from the top.
class ListCut {
 public:
  struct Shared {
    uint32_t low[kDigits], high[kDigits], count[kDigits];
    int64_t sums[kDrawFinishThreads / 32];
    uint64_t ends[kDrawFinishThreads / 32];
    CutPoint point;
  };
  static constexpr int kAtOnce = 4;  // entries of a thread, so that their loads overlap

  __device__ ListCut(const DrawParams& p, const DrawSpec& spec, int64_t row, const DrawCut& cut)
      : p_(p),
        spec_(spec),
        list_(p.listed + row * p.width),
        size_(cut.bin < kDrawBins ? p.counts[2 * row] : 0),
        index_bits_(32 - __clz(p.width - 1 | 1)),
        cut_(cut) {}

  __device__ uint32_t size() const { return size_; }
  /// Entries first + threadIdx.x, + kDrawFinishThreads, …; −∞ where there is none.
  __device__ __forceinline__ void load(uint32_t first, uint64_t (&entry)[kAtOnce],
                                       float (&value)[kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + threadIdx.x + i * kDrawFinishThreads;
      entry[i] = at < size_ ? list_[at] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      value[i] = first + threadIdx.x + i * kDrawFinishThreads < size_
                     ? usable_logit(p_, spec_, index(entry[i]))
                     : -INFINITY;
  }
  __device__ static int index(uint64_t entry) {
    return static_cast<int>(entry & ((uint64_t{1} << kDrawIndexBits) - 1));
  }
  __device__ uint64_t place(uint64_t entry, float value) const {
    return static_cast<uint64_t>(greatest_ - ordered_bits(value)) << index_bits_ |
           static_cast<uint32_t>(index(entry));
  }
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
    for (uint32_t first = 0; first < size_; first += kAtOnce * kDrawFinishThreads) {
      uint64_t entry[kAtOnce];
      float value[kAtOnce];
      load(first, entry, value);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (value[i] > -INFINITY) f(entry[i], value[i]);
    }
  }

  __device__ uint64_t limit(Shared& s) {
    uint32_t greatest = 0, least = 0xffffffffu;
    each([&](uint64_t, float v) {
      greatest = max(greatest, ordered_bits(v));
      least = min(least, ordered_bits(v));
    });
    greatest_ = static_cast<uint32_t>(block_max<kDrawFinishThreads>(greatest, s.ends));
    least = ~static_cast<uint32_t>(block_max<kDrawFinishThreads>(~least, s.ends));
    int64_t before = cut_.before;
    uint64_t prefix = 0;
    for (int shift = 32 - __clz(static_cast<int>(greatest_ - least)) + index_bits_;;) {
      const int above = shift;
      shift = max(shift - kDigitBits, 0);
      for (int i = threadIdx.x; i < kDigits; i += kDrawFinishThreads) s.low[i] = s.high[i] = s.count[i] = 0;
      __syncthreads();
      each([&](uint64_t entry, float v) {
        const uint64_t at = place(entry, v);
        if (at >> above != prefix) return;
        const int digit = static_cast<int>(at >> shift & ((1u << (above - shift)) - 1));
        add_shared(&s.low[digit], &s.high[digit],
                   spec_.kind == DrawOf::kNucleus ? entry >> kDrawIndexBits : 1);
        atomicAdd(&s.count[digit], 1u);
      });
      __syncthreads();
      int64_t weight[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int digit = 4 * static_cast<int>(threadIdx.x) + i;
        weight[i] = static_cast<int64_t>(static_cast<uint64_t>(s.high[digit]) << 32 | s.low[digit]);
      }
      const WeightScan scan = scan_weights<kDrawFinishThreads>(weight, s.sums);
      find_cut(weight, scan, cut_.target - before, &s.point);
      __syncthreads();
      prefix = prefix << (above - shift) | static_cast<uint32_t>(s.point.place);
      before += s.point.before;
      if (shift == 0 || s.count[s.point.place] == 1) return (prefix + 1) << shift;
      __syncthreads();
    }
  }

 private:
  const DrawParams& p_;
  const DrawSpec& spec_;
  const uint64_t* const list_;
  const uint32_t size_;
  uint32_t greatest_ = 0;  // order bits of the list's greatest logit
  const int index_bits_;
  const DrawCut cut_;
};

/// Greatest first; `size` is a power of two.
__device__ void sort_keys(uint64_t* keys, int size) {
  for (int span = 2; span <= size; span <<= 1)
    for (int step = span >> 1; step > 0; step >>= 1) {
      __syncthreads();
      for (int i = threadIdx.x; i < size / 2; i += kDrawFinishThreads) {
        const int a = 2 * i - (i & (step - 1)), b = a + step;
        const uint64_t x = keys[a], y = keys[b];
        if ((x < y) == ((a & span) == 0)) {
          keys[a] = y;
          keys[b] = x;
        }
      }
    }
  __syncthreads();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDrawFinishThreads)
    draw_finish(const __grid_constant__ DrawParams p) {
  begin_kernel();
  constexpr int kFinishWarps = kDrawFinishThreads / 32;
  __shared__ uint64_t shared[kFinishWarps];
  __shared__ ListCut::Shared digits;
  __shared__ uint64_t keys[kMaxDrawn];
  __shared__ uint32_t filled;
  __shared__ float lows[kFinishWarps];
  __shared__ DrawWinner winners[kFinishWarps];
  const int64_t row = blockIdx.x;
  const DrawSpec spec = p.specs[row];
  DrawToken* const tokens = p.tokens + row * p.stride;
  const uint64_t own = row_best<kDrawFinishThreads>(p, blockIdx.x, shared);
  const float top = row_top(p, spec, own);
  const auto put = [&](int at, uint64_t key, int64_t mass) {
    const auto index = static_cast<int>(key_index(key));
    tokens[at] = {usable_logit(p, spec, index), p.first_id + index, mass};
  };
  const auto put_one = [&](uint64_t key) {
    p.headers[row] = {0, key != 0 ? 1 : 0, 0};
    if (key != 0) put(0, key, 0);
  };
  if (spec.kind == DrawOf::kBest || !(top > -INFINITY)) {
    if (threadIdx.x == 0) put_one(top > -INFINITY ? own : 0);
    return;
  }
  const double best = scaled(top, spec.temperature);

  DrawCut cut{0, 0, kDrawBins, 0};
  if (spec.kind != DrawOf::kWinner) cut = p.cuts[row];
  ListCut list(p, spec, row, cut);
  const uint64_t limit = list.size() > 0 ? list.limit(digits) : 0;

  if (spec.kind == DrawOf::kCandidates) {
    const uint32_t sure = p.counts[2 * row + 1];
    for (uint32_t i = threadIdx.x; i < kMaxDrawn; i += kDrawFinishThreads)
      keys[i] = i < sure ? p.chosen[row * kMaxDrawn + i] : 0;
    if (threadIdx.x == 0) filled = sure;
    __syncthreads();
    list.each([&](uint64_t entry, float v) {
      if (list.place(entry, v) < limit)
        keys[atomicAdd(&filled, 1u)] = order_key(v, static_cast<uint32_t>(ListCut::index(entry)));
    });
    __syncthreads();
    const int count = static_cast<int>(filled);
    int padded = 1;
    while (padded < count) padded <<= 1;
    sort_keys(keys, padded);
    for (int i = threadIdx.x; i < count; i += kDrawFinishThreads)
      put(i, keys[i], spec.masses ? mass_of(spec, key_value(keys[i]), top, best) : 0);
    if (threadIdx.x == 0) p.headers[row] = {static_cast<int64_t>(p.mass[row]), count, 0};
    return;
  }

  WinnerSearch<kDrawFinishThreads> search(spec, p.first_id, best, lows);
  for (int b = threadIdx.x; b < p.blocks; b += kDrawFinishThreads)
    search.offer(p.winners[row * p.blocks + b]);
  for (uint32_t first = 0; first < list.size(); first += ListCut::kAtOnce * kDrawFinishThreads) {
    uint64_t entry[ListCut::kAtOnce];
    float v[ListCut::kAtOnce];
    list.load(first, entry, v);
#pragma unroll
    for (int i = 0; i < ListCut::kAtOnce; ++i)
      if (list.place(entry[i], v[i]) >= limit) v[i] = -INFINITY;
    search.round<ListCut::kAtOnce>([&](int i) { return v[i]; },
                                   [&](int i) { return ListCut::index(entry[i]); });
  }
  const DrawWinner winner = search.best(winners);
  if (threadIdx.x == 0) put_one(winner.key);
}

}  // namespace firesteel::cuda
