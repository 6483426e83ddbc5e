// The parameter structs of the kernels, shared by host and device code: plain C++ with fixed layouts.
//
// A kernel takes exactly one of these by value (gpu::Kernel<P>). Pointers are device memory. 16-bit elements
// are kept as uint16_t here: bf16 for activations, fp16 for EXL3 vectors.
#pragma once

#include <cstdint>

namespace firesteel::cuda {

using Bits16 = uint16_t;

// K is summed in units of this many columns, each an unbroken chain of tensor-core products from zero; the
// units of a slice are added in ascending order. This, not the launch shape, defines the bits of a product.
inline constexpr int kUnit = 512;
inline constexpr int kFp8Unit = 128;  // FP8: one scale block
inline constexpr int kTileN = 16;     // output channels of a tile
inline constexpr int kGroupK = 64;    // columns of a packed group
inline constexpr int kBlockN = 128;  // output channels of a thread block with a Hadamard, or of a prompt tile
inline constexpr int kRowsPerTile = 64;  // rows of a prompt tile
inline constexpr int kWideRows = 128,
                     kWideStages = 3;  // of matmul_wide.cuh: rows of a tile, stages of 64 columns
// EXL3 prompts: rows of a tile of matmul_exl3_rows.cuh; its two stages of 128 columns and its sums.
inline constexpr int kExl3Rows = 64;
inline constexpr int kExl3ItemRows = 72;  // of an expert, that a block of it may take
inline constexpr unsigned kExl3RowsShared = 2 * kExl3Rows * 256 + 2 * kExl3Rows * (kBlockN + 4) * 4;
// Up to eight rows (matmul_ring.cuh): warps of a block, pieces of weights that each has room for, shared
// memory of a block and of it for sums, where one tile's take no more.
inline constexpr int kRingWarps = 8, kRingStages = 5;
inline constexpr unsigned kRingMostShared = 99 << 10, kRingSums = 9 << 10;
inline constexpr int kMaxJoined = 8;
inline constexpr int kMaxFewPairs = 1024;  // routed pairs of few rows
// Narrowed weights (quant/narrow.h) are decoded times 2^-kNarrowShift, and sums multiplied by 2^kNarrowShift:
// the bit fields of codes, read as bf16, are code · 2^-133 or code · 2^-129 (q4) and code · 2^-120 (FP8), and
// scales that bring them back to the size of weights must be bf16 numbers too.
inline constexpr int kNarrowShift = 32;
inline constexpr int kQ4LowShift = 133 - kNarrowShift, kQ4HighShift = 129 - kNarrowShift;
inline constexpr int kFp8ScaleShift = 120 - kNarrowShift;
inline constexpr int kQ4GroupBytes = 512 + 64, kFp8RowsGroupBytes = 1024 + 32;
inline constexpr int kMaxRowList = 256;

/// One matrix as kernels see it.
struct MatrixRef {
  const uint8_t* data;  // packed tiles (pack.h)
  const float* scale;   // FP8: [⌈n/128⌉, ⌈k/128⌉]
  const Bits16* suh;    // EXL3: [k]
  const Bits16* svh;    // EXL3: [n]
  int32_t n;
  int32_t k;
  int32_t column;       // first output column in y
  int32_t block_begin;  // first column block of this matrix in the grid
  int32_t kind;         // bits + 16·codebook for EXL3
  int32_t pad;
};

/// Input and output of one of several matrices that are launched together but do not share them.
struct PartIo {
  const Bits16* x;
  Bits16* y;
  int64_t ldx, ldy;
};

/// Rows of one expert handled together.
struct ExpertItem {
  int32_t expert, first, count, pad;
};

/// Down products of experts, added where they are computed: the block of an expert and row waits until those
/// of the row's experts of lower id have added theirs, slice by slice. Blocks start in the order of the
/// experts, so what one waits for has started before it.
struct OrderedSum {
  const int32_t*
      source;           // [pairs] row · top_k + place of each pair; nullptr: products are stored as they are
  const float* weight;  // [rows, top_k]
  float* acc;           // [slices, rows, n] sums so far
  int32_t* done;        // [slices, n / 128, rows] experts of a row that are in acc; zero before
  const float* shared;  // [slices, rows, n] the shared expert's, added last; or nullptr
  float* part;          // [rows, n] the slices' sum
  int32_t rows, top_k;
};

struct MatmulParams {
  const Bits16* x;
  void* y;
  int64_t ldx, ldy;      // elements
  int64_t slice_stride;  // elements of y between slices
  int32_t rows;
  int32_t out_f32;
  int32_t joined;
  int32_t slices;
  int32_t slice_begin[4], slice_end[4];
  int32_t rows_inner;    // 1: blockIdx.x = row tile, blockIdx.y = column block
  int32_t kind;          // this launch handles matrices of this kind only
  int32_t split;         // few rows: parts that the channels of a block are divided into (1, 2, 4, 8)
  int32_t unit_span;     // > 0: blockIdx.z = slice · unit_span + unit; every unit's sums are stored apart
  int32_t fold;          // few rows: a block takes all slices, a warp a unit, and adds the slices too
  int32_t raw;           // EXL3: sums are stored before the output Hadamard and scale
  int32_t block_offset;  // first column block of this launch (a pass over part of the columns)
  int32_t column_shift;  // subtracted from output columns
  // 1: a block multiplies gate and up of an expert (parts 0 and 1; part 2 is down) and stores the rotated
  // input of its down product (matmul_exl3_rows.cuh)
  int32_t pair;
  float limit;  // pair: of the activation
  // experts (items != nullptr): matrix = table[expert·table_stride + part]
  const ExpertItem* items;
  const int32_t* item_count;
  const MatrixRef* table;
  const int32_t* pair_row;  // pair_div · row of x of each pair; nullptr: the pair's index
  int32_t pair_div;
  int32_t table_stride;
  int32_t x_part_stride;  // rows of x between parts (gate and up rotated apart), 0: shared
  int32_t tiles;          // ring: of all parts, whose block_begin counts tiles
  int32_t round_tiles;    // ring: tiles of a block whose sums meet at once
  int32_t ring_stages;    // ring: chunks of a warp that shared memory has room for
  int32_t apart;          // 1: x and y of every matrix are its own, in io (no slices, bf16 outputs)
  // Prompts: a block takes slices 2·blockIdx.z and the next, which begins where it ends, and adds them; the
  // sums of the first lie here meanwhile, kWideRows · kBlockN a block. nullptr: each slice is a block's.
  float* stash;
  OrderedSum ordered;  // blockIdx.z then counts groups of gridDim.x column blocks
  MatrixRef parts[kMaxJoined];
  PartIo io[kMaxJoined];
};

struct ProbeParams {  // the bench's measure of the tensor cores
  float* out;         // [blocks · 256]
  int32_t rounds;     // of eight products a warp
};

struct MatvecF32Params {  // fp32 weights: one warp an output
  const float* w;
  const Bits16* x;
  void* y;
  int64_t ldx, ldy, slice_stride;
  int32_t n, k, rows, out_f32, column, slices;
  int32_t slice_begin[4], slice_end[4];
  const ExpertItem* items;
  const int32_t* item_count;
  const MatrixRef* table;
  const int32_t* pair_row;
  int32_t table_stride, part;
};

struct RotateParams {  // EXL3 input: y = fp16(H(x ∘ suh)), in the order of the tensor-core slots
  const Bits16* x;     // bf16
  Bits16* y;
  int64_t ldx, ldy;
  int32_t k, rows;
  const Bits16* suh;
  // per pair: suh from table[expert·stride + part]; row from pair_row
  const int32_t* pair_row;
  const int32_t* pair_expert;
  const MatrixRef* table;
  int32_t table_stride, part;
};

struct ExpertActParams {  // SiLU(min(g, limit)) · clamp(u), then the down input of each pair
  const Bits16* gate_up;  // bf16 [pairs, 2·width], or
  const float* sums;      // EXL3 unit sums [units, pairs, 2·width]: added and finished here
  Bits16* out;            // [pairs, width], bf16 or rotated fp16
  int64_t unit_stride;
  int32_t pairs, width, units, down_exl3;
  int32_t ld;  // row length of out: width padded to whole groups
  float limit;
  const int32_t* pair_expert;
  const MatrixRef* table;  // expert e: gate, up, down at e·stride
  int32_t table_stride;
};

/// Up to 8 pairs of one expert and where its matrices lie: all that a block of few rows must read first.
struct alignas(16) FewItem {
  const uint8_t* gate;
  const uint8_t* up;
  const uint8_t* down;
  const Bits16* svh_gate;
  const Bits16* svh_up;
  const Bits16* suh_down;
  const Bits16* svh_down;
  int32_t count, pad;
  int32_t pair[8], row[8];  // beyond count: the first again; a pair is row · top_k + its place
};
inline constexpr int kReadyPitch = 8;  // of counters that blocks wait at

struct ExpertFewParams {
  const FewItem* items;    // or, at one row, its experts as they come:
  const int32_t* idx;      // from before, or
  const int32_t* picks;    // published by the router (RouterParams); or nullptr
  const MatrixRef* table;  // expert e: gate, up, down at 3·e
  const Bits16* x;         // rotated: [rows, k] or, by pair, [2][pairs, k]
  float* sums;             // [units, pairs, 2·width]
  Bits16* act;             // [pairs, width], rotated for the down product
  float* slices;           // [slices, pairs, hidden]
  int64_t unit_stride, slice_stride;
  int32_t* counters;      // [items, gate blocks]
  int32_t* ready;         // [items · kReadyPitch]: blocks of activations that are there
  int32_t* row_counters;  // [rows, down blocks]
  const float* weight;    // [rows, top_k]
  float* part;            // [rows, hidden]
  // The shared expert's down product, in shared_items of 8 rows before the other items, bf16 or 4 bits; or
  // 0 and its slices as computed before.
  const uint8_t* shared_down;
  const Bits16* shared_act;  // [rows, width]
  float* shared;             // [slices, rows, hidden]; nullptr: no shared expert
  int64_t shared_stride;
  int32_t shared_items, shared_q4;
  int32_t rows, k, width, hidden, pairs, top_k, by_pair;
  int32_t units, units_a_block;
  int32_t slice_begin[4], slice_end[4];
  float limit;
};

struct FinishParams {  // EXL3 unit sums of few rows to outputs: sum, Hadamard, svh
  const float* sums;   // [slices · unit_span, rows, ld]
  void* y;
  int64_t unit_stride, ld, ldy, slice_stride;
  int32_t rows, slices, unit_span, out_f32, joined, blocks;
  int32_t column0;              // of y that column 0 of sums belongs to
  MatrixRef parts[kMaxJoined];  // block_begin counts blocks of 128
};

struct PadParams {  // rows copied to a stride of whole groups, zeros behind
  const Bits16* x;
  Bits16* y;
  int64_t ldx, ldy;
  int32_t k, rows;
};

struct CombineParams {  // slices (and experts) to one partial sum
  const float* slices;  // [slices, rows, n], or experts: [slices, pairs, n]
  const float* shared;  // experts: [slices, rows, n] or nullptr
  float* part;          // [rows, n]
  int64_t slice_stride, shared_stride;
  int32_t rows, n, local_slices, top_k;
  int32_t column0;  // first column of this pass: slices hold n columns, part and shared rows have `full_n`
  int32_t full_n;
  const int32_t* pair_of;  // experts: [rows, top_k] index of the pair of (row, j)
  const float* weight;     // [rows, top_k]
};

struct GroupParams {     // (row, expert) pairs sorted by expert
  const int32_t* idx;    // [rows, top_k]
  int32_t* pair_source;  // [pairs] row · top_k + place
  int32_t* pair_of;      // [rows, top_k]
  int32_t* pair_row;     // [pairs], with the next, or neither
  int32_t* pair_expert;  // [pairs]
  ExpertItem* items;
  int32_t* item_count;
  int32_t rows, top_k, experts, rows_per_item;
};

struct BatchView {             // the bound batch, in device memory
  const int32_t* tokens;       // [rows]
  const int32_t* row_segment;  // [rows]
  const int32_t* segments;     // [segments][5]: first_row, rows, start, slot, page_begin
  const int32_t* page_table;
  int32_t rows, segments_count;
};

struct EmbedParams {
  BatchView batch;
  const uint8_t* table;           // packed bf16, or fp32 rows
  Bits16* out;                    // streams [rows, 4, h], or MTP: [rows, 2h]
  int32_t hidden, format, vocab;  // format: 0 bf16, 1 fp32, 2 FP8
  const float* scale;             // FP8: per 128×128 block
  // MTP input: out = [RMS(e; enorm), RMS(h; hnorm)]
  const Bits16* h;
  const float* enorm;
  const float* hnorm;
  float eps;
};

struct RmsParams {
  const float* w;
  const Bits16* x;
  Bits16* y;
  int64_t ldx;
  int32_t n, rows;
  float eps;
};

struct HeadInputParams {
  const Bits16* streams;
  const float* norm;
  Bits16* h;
  int32_t hidden, count;
  float eps;
  int32_t rows[kMaxRowList];
};

struct GatherParams {
  const Bits16* x;
  Bits16* out;
  int32_t n, count;
  int32_t rows[kMaxRowList];
};

struct AddParams {
  Bits16* x;
  const float* y;
  int64_t count;
};

struct ConvertParams {  // test and transfer helpers
  const void* src;
  void* dst;
  int64_t count;
  int32_t to_f32;
};

/// Random weights in the packed layout (ops/random_source.h): `pieces` of 16 bytes.
struct RandomFillParams {
  uint8_t* data;
  int64_t pieces;
  uint64_t seed;
  int32_t kind;           // 0 bits, 1 fp32, 2 bf16, 3 e4m3, 4 q4, 5 e4m3 with row scales
  int32_t row_pieces;     // of one row (fp32) or one tile row
  int32_t group_pieces;   // of one group of 64 columns
  int32_t tile0, group0;  // where this part begins in the whole matrix
  float span;             // values are uniform in ±span
  int32_t code_pieces;    // of a group, before its scales
  uint32_t scales[2];     // what a group's scales consist of
};

struct GluParams {
  const Bits16* gate_up;
  Bits16* out;
  int32_t rows, width;
  float limit;
};

struct AppendParams {
  BatchView batch;
  const Bits16* c;
  uint8_t* plane;
  int64_t page_stride;
  int32_t width, row_bytes, fp8;
};

struct PoolAppendParams {
  BatchView batch;
  const Bits16* ki;
  const Bits16* ga;
  const float* norm_weight;
  const float* norm_bias;
  const float* ape;
  uint8_t* pools;
  int64_t page_stride;
  uint8_t* tail;
  int64_t tail_stride;
  int32_t dim, kpool, row_bytes, fp8;
};

struct PoolScoreParams {
  BatchView batch;
  const Bits16* q;   // [rows, heads·dim]
  const Bits16* hw;  // [rows, heads]
  const uint8_t* pools;
  int64_t page_stride;
  float* scores;  // [row - first_row, max_pools]
  int32_t first_row, row_count, heads, dim, kpool, row_bytes, fp8;
  int32_t max_pools;  // row length of scores
  int32_t rows_each;  // rows scored by one block
};

inline constexpr unsigned kAttendShared = 92672;  // dynamic shared memory of the attend kernels

inline constexpr int kPickStretch = 8192;  // pools chosen from by one block
inline constexpr int kPickAgain = 16384;   // most candidates that the second choice takes
inline constexpr int kKeyDim = 128;        // of the keys that pool_score takes

struct PoolPickParams {
  BatchView batch;
  const float* scores;
  int32_t* pools;  // [rows, out_stride]
  int32_t* count;
  // The best of each stretch of a row that has several: [row - first_row, stretches, top_pools].
  uint32_t* candidate_keys;
  int32_t* candidates;
  int32_t first_row, row_count, max_pools, out_stride, top_pools, kpool, stretches;
};

struct AbsorbParams {   // q̃[row, head, latent] = W_Kᵀ q, per head; or o[row, head, v] = W_V õ
  const uint8_t* kv_b;  // packed bf16 [heads·(qk+v), latent]
  const Bits16* x;
  Bits16* y;
  int32_t rows, heads, qk_dim, v_dim, latent;
};

struct PlainAttentionParams {  // any shape, all of it in one kernel
  BatchView batch;
  const Bits16* q;      // [rows, heads·qk_dim]
  const uint8_t* kv_b;  // packed bf16 or fp32
  const uint8_t* latents;
  int64_t page_stride;
  const int32_t* pools;
  const int32_t* count;
  Bits16* out;  // [rows, heads·v_dim]
  int32_t sel_stride, kpool, heads, qk_dim, v_dim, latent, kv_f32, row_bytes, fp8;
  float scale;
};

struct AttentionParams {
  BatchView batch;
  const Bits16* q;  // absorbed [rows, heads, latent]
  const uint8_t* latents;
  int64_t page_stride;
  const int32_t* pools;
  const int32_t* count;
  int32_t sel_stride, kpool, row_bytes;
  float* part_o;   // [rows, chunks, heads, latent]
  float* part_ml;  // [rows, chunks, heads, 2]
  Bits16* out;     // merged õ [rows, heads, latent] bf16
  int32_t heads, latent, chunks, first_row, row_count;
  float scale;
};

}  // namespace firesteel::cuda
