// The table of operations: everything a forward pass does, on every backend.
//
// `model` is written once over this interface; ops/cpu is the readable fp32 definition, ops/cuda the kernels.
// Pointers are the backend's memory: only the backend dereferences them (on the CPU they are ordinary
// memory). All memory is taken at start from planned arenas; an op never allocates. One thread issues ops.
//
// Exactness (DESIGN section 4): tiles, K-splits and the order of every sum depend on the unsliced K alone,
// never on the number of rows, the local N, the batch or the number of ranks; a row's result is the same bits
// in any batch. Vectors are 16 virtual lanes wide on the CPU.
//
// Shapes: T = rows of the batch (all sequences together), H = hidden size, S = 4 streams. Activations that a
// backend may narrow (bf16 on CUDA, fp32 on the CPU) are `Act`; what must stay wide is `float`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "quant/codebook.h"

namespace firesteel {

class Communicator;

/// An element of the backend's activation type; its size is Ops::act_size().
struct Act;

/// Where an op is queued: the main line, or a side line that may overlap exchanges (a side stream in a graph
/// on CUDA; the CPU runs ops in the order issued).
enum class Stage : uint8_t { kMain, kSide };

// ----------------------------------------------------------------------------------------------------------
// weights

enum class MatrixFormat : uint8_t {
  kF32,       // [n, k] fp32
  kBf16,      // [n, k] bf16
  kFp8Block,  // [n, k] e4m3 with fp32 scales per 128×128 block (value = code × scale)
  kExl3,      // trellis int16 [k/16, n/16, 16·bits], suh fp16 [k], svh fp16 [n]
  // Never in a checkpoint, only what a backend may keep (quant/narrow.h):
  kFp8Rows,  // e4m3 codes with a bf16 scale per row and 128 columns
  kQ4,       // 4-bit codes with a bf16 scale and offset per row and 64 columns
};

/// How a backend keeps a matrix. The loaded Matrix::spec names the format that it has become, with kStored.
enum class MatrixKeep : uint8_t {
  kStored,   // in the checkpoint's form
  kDecoded,  // kExl3: the matrix itself (kv_b, an embedding), fp32 on the CPU, bf16 on CUDA
  kFp8,  // kBf16 and kF32: narrowed while loading, lossy; the CPU keeps the narrowed weights as bf16, which
         // they are
  kQ4,   // the same; k must be a multiple of 64
};

/// What a matrix is, known from checkpoint headers before anything is loaded. y[n] = W x, x has k elements.
/// n and k are this rank's part. A row-parallel matrix is summed in slices of K (DESIGN section 4): slice i
/// of the local slices covers columns [slice_end[i-1], slice_end[i]); other matrices have one slice. A rank's
/// part may be empty (n or k is 0, `data` null): a row-parallel part without columns gives +0, one without
/// outputs nothing.
struct MatrixSpec {
  MatrixFormat format = MatrixFormat::kBf16;
  Codebook codebook = Codebook::k3Inst;  // kExl3
  uint8_t bits = 0;                      // kExl3: 1..8
  int32_t n = 0, k = 0;
  int32_t slices = 1;
  int32_t slice_end[4] = {0, 0, 0, 0};
  MatrixKeep keep = MatrixKeep::kStored;
};

/// Boundary i (0..4) of the four K-slices of an unsliced K: min(k, 128·⌊i·B/4⌋) with B = ⌈k/128⌉ blocks.
int32_t slice_boundary(int32_t unsliced_k, int32_t i);

enum class MatrixPart : uint8_t { kWeight, kScale, kSuh, kSvh };

/// Gives a backend the bytes of one matrix while loading, already cut to this rank's part.
class MatrixSource {
 public:
  virtual ~MatrixSource() = default;
  /// Copies rows [first, first+count) of a part to `dst`, packed, in the checkpoint's element type. Row of
  /// kWeight: one output channel (kF32, kBf16, kFp8Block) or one 16-row k-tile, n/16 tiles of 32·bits bytes
  /// (kExl3). Row of kScale: one row of 128×128 blocks, fp32. Row of kSuh, kSvh: one fp16 element.
  virtual Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) = 0;
};

/// Random weights: which, and where in the whole matrix this rank's part begins (multiples of 128, or of the
/// matrix).
struct RandomWeights {
  uint64_t seed = 0;
  int32_t first_row = 0, first_column = 0;
  int32_t full_k = 0;
};

/// A loaded matrix: the spec and the backend's private layout. Plain value, memory owned by the backend.
struct Matrix {
  MatrixSpec spec;
  void* data = nullptr;
};

/// One hyper-connection site with the norm of its sublayer (spec/model.md 2.2).
struct HyperSite {
  Matrix fn;                     // [24, 4H]
  const float* base = nullptr;   // [24]
  const float* scale = nullptr;  // [3]
  const float* norm = nullptr;   // [H], input_layernorm or post_attention_layernorm
  float rms_eps = 1e-5f;         // both the mHC input norm and the layer norm
  float hc_eps = 1e-6f;
  int32_t sinkhorn_iters = 20;
};

struct KdaWeights {
  int32_t heads = 0, dim = 0, taps = 4;  // heads of this rank
  const float* conv = nullptr;     // [3·heads·dim, taps], rows q then k then v; tap taps-1 = current token
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [heads·dim]
  const float* o_norm = nullptr;   // [dim]
  float lower_bound = -5.0f;       // NaN: g = -exp(A_log)·softplus(a)
  float rms_eps = 1e-5f;
};

inline constexpr int32_t kMaxTopPools = 1 << 16;
struct IndexerWeights {
  int32_t heads = 0, dim = 0, kpool = 4;
  int32_t top_pools = 512;               // index_topk / kpool; at most kMaxTopPools
  const float* k_norm_weight = nullptr;  // [dim] LayerNorm, ε 1e-6
  const float* k_norm_bias = nullptr;    // [dim]
  const float* ape = nullptr;            // [kpool, dim]
};

struct AttentionWeights {
  int32_t heads = 0;                          // of this rank
  int32_t qk_dim = 0, v_dim = 0, latent = 0;  // 256, 256, 512
  Matrix kv_b;                                // [heads·(qk_dim+v_dim), latent]; decoded at load when EXL3
};

struct RouterWeights {
  Matrix weight;                // [experts, H], products in fp32
  const float* bias = nullptr;  // [experts]
  int32_t experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool norm_topk = true;
  float factor = 2.5f;
};

struct ExpertWeights {
  int32_t experts = 0, top_k = 0, width = 0;   // width of this rank
  float limit = 10.0f;                         // swiglu_limit
  const Matrix* gate = nullptr;                // [experts] matrices [width, H]
  const Matrix* up = nullptr;                  // [experts]
  const Matrix* down = nullptr;                // [experts] matrices [H, width], sliced
  Matrix shared_gate, shared_up, shared_down;  // spec.n == 0: no shared expert
  bool shared_suh = false;  // EXL3: all gate and up matrices of the routed experts have one suh
};

// ------------------------------------------------------------------------------------------------------------
// batch

inline constexpr int32_t kPageTokens = 256;

/// Consecutive rows of one sequence in a batch.
struct Segment {
  int32_t first_row = 0, rows = 0;
  int32_t start = 0;       // position of the first row in its sequence
  int32_t slot = 0;        // recurrent-state slot
  int32_t page_begin = 0;  // its page table: Batch::page_table[page_begin + position / kPageTokens]
};

/// One forward's rows, sorted by segment. Host memory, valid until the forward returns; Ops::bind copies what
/// the device needs. Pages up to the last position of every segment are present.
struct Batch {
  int32_t rows = 0;
  std::span<const int32_t> tokens;  // [rows]
  std::span<const Segment> segments;
  std::span<const int32_t> page_table;  // page numbers of all segments
};

/// How rows of the latent and pooled-key planes are kept: as wide as activations (fp32 on the CPU, bf16 on
/// CUDA), or as e4m3 codes with one power-of-two scale a row (quant/kv_row.h), the same rows on every
/// backend. Ops read what is kept: with kFp8 they give the bits that kWide gives on the rows' decoded values.
/// The tail slot is never narrowed.
enum class KvFormat : uint8_t { kWide, kFp8 };

/// A per-page plane: element (page, i) at base + page·page_stride + i·row_bytes.
struct Plane {
  std::byte* base = nullptr;
  size_t page_stride = 0;
};
/// A per-slot plane: slot s at base + s·slot_stride.
struct SlotPlane {
  std::byte* base = nullptr;
  size_t slot_stride = 0;
};

/// Which pools each row attends to; the tokens of the incomplete pool (the row's own among them; none where
/// the row completes a pool) are always attended to as well. Written by pool_select, read by sparse_attention
/// (of this layer and of the `shared` layer after it).
struct Selection {
  int32_t* pools = nullptr;  // [T, max_pools], ascending
  int32_t* count = nullptr;  // [T]
  int32_t max_pools = 0;
};

// --------------------------------------------------------------------------------------------------------------
// ops

/// What one call of linear does.
struct LinearJob {
  std::span<const Matrix> ws;
  const Act* x = nullptr;
  Act* y = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // --- what the backend is
  virtual std::string_view name() const = 0;    // "cpu", "cuda"
  virtual std::string_view device() const = 0;  // what computes, for people: "CPU", "NVIDIA GB10"
  virtual size_t act_size() const = 0;          // bytes of an Act
  virtual size_t latent_row_bytes(int32_t latent) const = 0;  // one token of a latent plane
  virtual size_t pool_row_bytes(int32_t dim) const = 0;       // one pool of a pooled-key plane
  /// Bytes of one slot: KDA = conv history [taps-1, 3·heads·dim] then state [heads, dim, dim]; tail = kpool ×
  /// (ki, ga).
  virtual size_t kda_slot_bytes(const KdaWeights& w) const = 0;
  virtual size_t tail_slot_bytes(const IndexerWeights& w) const = 0;
  virtual size_t matrix_bytes(const MatrixSpec& spec) const = 0;
  /// Scratch that ops need for batches of up to `rows` rows; given to the backend once by set_scratch.
  virtual size_t scratch_bytes(int32_t rows) const = 0;
  /// Memory that exchanges of [rows, n] among `ranks` ranks keep between begin and end; given once by
  /// set_exchange.
  virtual size_t exchange_bytes(int ranks, int32_t rows, int32_t n) const = 0;
  /// Bytes that a plan may use, where the backend has memory of its own; 0: the machine's memory counts.
  virtual uint64_t own_memory() const = 0;

  // --- memory, at start only
  virtual Result<std::byte*> allocate(size_t bytes,
                                      std::string_view what) = 0;  // 256-byte aligned, freed with Ops
  virtual void set_scratch(std::byte* scratch, size_t bytes) = 0;
  virtual void set_exchange(std::byte* buffer, size_t bytes) = 0;
  /// The ranks whose parts exchanges add up; not owned, may change between forwards (null: every rank is
  /// lost, and a forward fails). Never called where this is the only rank. Every rank of the group calls it:
  /// a backend may settle with the others over `comm` before it returns. What fails then shows in finish().
  virtual void connect(Communicator* comm) = 0;
  /// Threads that may call load_matrix at once.
  virtual int load_threads() const = 0;
  /// Loads a matrix into `dst` (matrix_bytes(spec) bytes of this backend).
  virtual Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) = 0;
  /// The same with random weights of a plausible size (ops/random_source.h), made where the backend is
  /// fastest.
  virtual Result<Matrix> random_matrix(const MatrixSpec& spec, const RandomWeights& weights,
                                       std::byte* dst) = 0;

  // --- transfers; ordered after everything issued before, complete on return
  virtual void upload(void* dst, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* src, size_t bytes) = 0;
  virtual void zero(void* dst, size_t bytes) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  /// `count` activations as fp32 on the host, and back (tests, --layers, forced choices).
  virtual void download_act(float* host, const Act* src, size_t count) = 0;
  virtual void upload_act(Act* dst, const float* host, size_t count) = 0;

  // --- a forward: bind the batch, begin, issue ops, finish
  virtual void bind(const Batch& batch) = 0;
  /// Whether the caller shall issue the ops of the forward. False: the backend has recorded them earlier for
  /// a batch of this shape and the same `key` and replays them with the data of now; then go on with
  /// finish(). The key names everything that the ops depend on beside the bound batch and device memory
  /// (which pass, which rows give logits).
  virtual bool begin(uint64_t key) = 0;
  virtual Status finish() = 0;  // waits; reports device faults

  /// streams[T,S,H] = S copies of the embedding row of each token.
  virtual void embed(Stage, const Matrix& table, Act* streams) = 0;

  /// spec 2.2 steps 1-8 and the layer norm: x[T,H] = RMS(Σ_j pre_j·X_j; norm); post[T,S]; comb[T,S,S] (row i,
  /// column j).
  virtual void hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) = 0;
  /// streams[k] = post[k]·y + Σ_j comb[j,k]·streams[j], in place. y [T,H].
  virtual void hyper_post(Stage, const float* y, const float* post, const float* comb, int32_t hidden,
                          Act* streams) = 0;
  /// hyper_post, then hyper_pre of the next site: post and comb are the ended site's and become the next
  /// one's. The same bits as the two.
  virtual void hyper_next(Stage, const HyperSite& w, const float* y, Act* streams, Act* x, float* post,
                          float* comb);

  /// y[t, i] = Σ_k w[i,k]·x[t,k] for matrices that share x, their outputs side by side: y has row length Σ n.
  virtual void linear(Stage, std::span<const Matrix> ws, const Act* x, Act* y) = 0;
  /// linear of every job, in any order: none may read what another writes. The same bits; backends that wait
  /// for launches run them together.
  virtual void linears(Stage, std::span<const LinearJob> jobs);
  virtual void linear_f32(Stage, const Matrix& w, const Act* x, int32_t rows, float* y) = 0;
  /// Row-parallel: the local K-slices, each summed alone, then (s0+s1)+(s2+s3), s0+s1 or s0: part [T, n].
  virtual void linear_sliced(Stage, const Matrix& w, const Act* x, float* part) = 0;

  /// y[t] = RMS(x[t]; w) over n; x has row stride ldx elements, y is packed.
  virtual void rms_norm(Stage, const float* w, float eps, int32_t n, const Act* x, int32_t ldx, Act* y) = 0;

  /// Short convolution, gates, the serial recurrence and the gated output norm (spec 2.3). qkv[T,
  /// 3·heads·dim] before the convolution, f[T, heads·dim] and g[T, heads·dim] from f_b and g_b, b[T, heads]
  /// before the sigmoid. Reads and advances each segment's slot. out[T, heads·dim].
  virtual void kda(Stage, const KdaWeights& w, const Act* qkv, const Act* f, const Act* b, const Act* g,
                   SlotPlane state, Act* out) = 0;

  /// Stores c[T, latent] of each row at its position.
  virtual void latent_append(Stage, const Act* c, int32_t latent, Plane plane) = 0;
  /// LayerNorm of the raw index keys ki[T, dim], gate ga[T, dim]; keeps the incomplete pool in the tail slot
  /// and writes each pool that completes (spec 2.5). A segment that starts inside a pool reads the rows
  /// before it from the tail.
  virtual void pool_append(Stage, const IndexerWeights& w, const Act* ki, const Act* ga, Plane pools,
                           SlotPlane tail) = 0;
  /// Scores and exact top-k (ties: lower pool); q[T, heads·dim], hw[T, heads] = weights_proj x (unscaled).
  virtual void pool_select(Stage, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                           Selection out) = 0;
  /// Attention over the selected pools' tokens and the tail; absorbed form; q[T, heads·qk_dim] → out[T,
  /// heads·v_dim].
  virtual void sparse_attention(Stage, const AttentionWeights& w, const Act* q, Plane latents,
                                const Selection& sel, int32_t kpool, Act* out) = 0;

  /// out[t, i] = SiLU(min(g, limit)) · clamp(u, ±limit) with gate_up[T, 2·width], gate first.
  virtual void glu(Stage, const Act* gate_up, int32_t width, float limit, Act* out) = 0;
  /// spec 2.8 steps 1-5; ids ascending per row: idx[T, top_k], weight[T, top_k].
  virtual void router(Stage, const RouterWeights& w, const Act* x, int32_t* idx, float* weight) = 0;
  /// Routed experts in ascending id, acc = fma(weight, part, acc) per local K-slice, then the shared expert,
  /// then the slices as in linear_sliced: part [T, H].
  virtual void experts(Stage, const ExpertWeights& w, const Act* x, const int32_t* idx, const float* weight,
                       float* part) = 0;

  /// Sum over ranks of `part` [T, n] in the fixed order of the four slices, in place between begin and end. A
  /// lost rank shows in finish().
  virtual void exchange_begin(Stage, float* part, int32_t n) = 0;
  virtual void exchange_end(Stage, float* part, int32_t n) = 0;

  /// h[i] = RMS(mean of the S streams of row rows[i]; norm); rows is host memory.
  virtual void head_input(Stage, const Act* streams, std::span<const int32_t> rows, int32_t hidden,
                          const float* norm, float eps, Act* h) = 0;
  /// out[i] = x[rows[i]], n elements a row.
  virtual void gather(Stage, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) = 0;

  /// MTP step 3's input (spec 4.5): out[T, 2H] = [RMS(e; enorm); RMS(h; hnorm)], e = embedding of the bound
  /// tokens, e = 0 where the position is 0.
  virtual void mtp_input(Stage, const Matrix& table, const float* enorm, const float* hnorm, float eps,
                         const Act* h, Act* out) = 0;
  /// x[i] += y[i], count elements (the MTP layer's plain residual).
  virtual void add(Stage, Act* x, const float* y, size_t count) = 0;
};

/// The CPU backend. `threads` < 1: one per hardware thread.
std::unique_ptr<Ops> make_cpu_ops(int threads, KvFormat kv = KvFormat::kWide);

}  // namespace firesteel
