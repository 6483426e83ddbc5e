// CudaOps: the class behind make_cuda_ops. See cuda_ops.h for what it promises.
//
// Scratch is a stack that every op starts anew; it is the arena given by set_scratch, or, when an op needs
// more, memory of the backend's own, grown before the op runs (never during a graph capture: sizes are
// settled by running once).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/host_exchange.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/loading.h"
#include "ops/cuda/nccl_exchange.h"
#include "ops/cuda/pack.h"
#include "ops/draw.h"
#include "ops/ops.h"

namespace firesteel::cuda {

inline constexpr int32_t kStreams = 4;

class CudaOps final : public Ops, public Drawer {
 public:
  static Result<std::unique_ptr<CudaOps>> make(int ordinal, KvFormat kv, ExchangeChoice choice);
  ~CudaOps() override;

  gpu::Device& device() { return *device_; }
  bool set_experts_in_order(bool on) { return std::exchange(experts_in_order_, on); }
  const gpu::Stream& stream() const { return stream_; }

  std::string_view name() const override { return "cuda"; }
  std::string_view device() const override { return device_->info().name; }
  size_t act_size() const override { return sizeof(Bits16); }
  size_t latent_row_bytes(int32_t latent) const override { return kv_bytes(latent); }
  size_t pool_row_bytes(int32_t dim) const override { return kv_bytes(dim); }
  size_t kda_slot_bytes(const KdaWeights& w) const override;
  size_t tail_slot_bytes(const IndexerWeights& w) const override;
  size_t matrix_bytes(const MatrixSpec& spec) const override { return packed_layout(spec).bytes; }
  size_t scratch_bytes(int32_t rows) const override;

  Result<std::byte*> allocate(size_t bytes, std::string_view what) override;
  size_t measure_scratch(const Batch& batch, const std::function<void()>& issue) override;
  void set_scratch(std::byte* scratch, size_t bytes) override;
  int load_threads() const override;
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override;
  Result<Matrix> random_matrix(const MatrixSpec& spec, const RandomWeights& weights, std::byte* dst) override;

  void upload(void* dst, const void* host, size_t bytes) override;
  void download(void* host, const void* src, size_t bytes) override;
  void zero(void* dst, size_t bytes) override;
  void copy(void* dst, const void* src, size_t bytes) override;
  void download_act(float* host, const Act* src, size_t count) override;
  void upload_act(Act* dst, const float* host, size_t count) override;

  void bind(const Batch& batch) override;
  bool begin(uint64_t key) override;
  Status finish() override;

  void embed(Stage, const Matrix& table, Act* streams) override;
  void hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) override;
  void hyper_post(Stage, const float* y, const float* post, const float* comb, int32_t hidden,
                  Act* streams) override;
  void hyper_next(Stage, const HyperSite& w, const float* y, Act* streams, Act* x, float* post,
                  float* comb) override;
  void linear(Stage, std::span<const Matrix> ws, const Act* x, Act* y) override;
  void linears(Stage, std::span<const LinearJob> jobs) override;
  void linear_f32(Stage, const Matrix& w, const Act* x, int32_t rows, float* y) override;
  void linear_sliced(Stage, const Matrix& w, const Act* x, float* part) override;
  void rms_norm(Stage, const float* w, float eps, int32_t n, const Act* x, int32_t ldx, Act* y) override;
  void kda(Stage, const KdaWeights& w, const Act* qkv, const Act* f, const Act* b, const Act* g,
           SlotPlane state, Act* out) override;
  void latent_append(Stage, const Act* c, int32_t latent, Plane plane) override;
  void pool_append(Stage, const IndexerWeights& w, const Act* ki, const Act* ga, Plane pools,
                   SlotPlane tail) override;
  void pool_select(Stage, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                   Selection out) override;
  void sparse_attention(Stage, const AttentionWeights& w, const Act* q, Plane latents, const Selection& sel,
                        int32_t kpool, Act* out) override;
  void glu(Stage, const Act* gate_up, int32_t width, float limit, Act* out) override;
  void router(Stage, const RouterWeights& w, const Act* x, int32_t* idx, float* weight) override;
  void experts(Stage, const ExpertWeights& w, const Act* x, const int32_t* idx, const float* weight,
               float* part) override;
  void moe(Stage, const RouterWeights& r, const ExpertWeights& w, const Act* x, int32_t* idx, float* weight,
           float* part) override;
  size_t exchange_bytes(int ranks, int32_t rows, int32_t n) const override;
  uint64_t own_memory() const override;
  void set_exchange(std::byte* buffer, size_t bytes) override;
  void connect(Communicator* comm) override;
  void exchange_begin(Stage, float* part, int32_t n) override;
  void exchange_end(Stage, float* part, int32_t n) override;
  void head_input(Stage, const Act* streams, std::span<const int32_t> rows, int32_t hidden, const float* norm,
                  float eps, Act* h) override;
  void gather(Stage, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) override;
  void mtp_input(Stage, const Matrix& table, const float* enorm, const float* hnorm, float eps, const Act* h,
                 Act* out) override;
  void add(Stage, Act* x, const float* y, size_t count) override;

  Drawer* drawer() override { return this; }
  int32_t max_draw_rows(int32_t width) const override;
  Status draw_best(const DrawShard& shard, std::span<const DrawRow> rows, std::span<Candidate> best) override;
  Status draw(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
              std::span<DrawResult> results) override;

 private:
  /// What a product reads and writes.
  struct Product {
    const Bits16* x = nullptr;
    int64_t ldx = 0;
    int32_t rows = 0;
    void* y = nullptr;
    int64_t ldy = 0;
    bool f32 = false;
    // Slices of K, each to its own y (slice_stride elements apart); 0: all of K.
    int32_t slices = 0;
    int32_t slice_end[4] = {0, 0, 0, 0};
    int64_t slice_stride = 0;
    // The caller adds the units of a slice itself (f32 only): y holds slices · unit_span sums; products()
    // says how many.
    bool unit_sums = false;
    int32_t unit_span = 1;
    // Few rows, slices: y is the sum of them, where folds() allows.
    bool fold = false;
    // Prompts, slices: y holds sums of two neighbours, where adds_neighbours() allows.
    bool neighbours = false;
    const PartIo* io = nullptr;  // each matrix's own x and y instead (bf16, no padding, one launch)
  };
  /// The routed pairs of an expert op, grouped.
  struct Pairs {  // see GroupParams
    int32_t count = 0, max_items = 0;
    int32_t* source = nullptr;
    int32_t* pair_of = nullptr;
    int32_t* row = nullptr;
    int32_t* expert = nullptr;
    ExpertItem* items = nullptr;
    int32_t* item_count = nullptr;
  };
  /// Refs of the routed experts of one layer in device memory: gate, up, down of each expert.
  struct ExpertTable {
    MatrixRef* refs = nullptr;
    int32_t experts = 0;
    std::vector<MatrixSpec> kinds[2];  // the distinct formats of gate/up, and of down
    bool paired = true;                // gate and up of every expert have one format
    Matrix first[3], last[3];          // what it was made from: another layer at the same address is noticed
  };

  CudaOps(KvFormat kv, ExchangeChoice choice) : kv_(kv), choice_(choice) {}

  /// Bytes of a row of n values in a KV plane.
  size_t kv_bytes(int32_t n) const;

  template <typename P>
  void run(const gpu::Kernel<P>& kernel, const gpu::LaunchShape& shape, const P& params) {
    // A rank's part may be empty.
    if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
    if (status_.ok() && !measuring_) check(device_->launch(stream_, kernel, shape, params));
  }
  void check(Status status) {
    if (status_.ok() && !status.ok()) status_ = std::move(status);
  }
  /// part := 0, `count` numbers.
  void clear_part(float* part, int64_t count);
  void unsupported(const char* what) { check(Error{ErrorCode::kUnsupported, std::string("cuda: ") + what}); }

  /// Starts an op's scratch with at least `bytes` in all.
  bool begin_scratch(size_t bytes);
  template <typename T>
  T* take(size_t count) {
    std::byte* p = scratch_at_;
    scratch_at_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(p);
  }
  static size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

  static MatrixRef ref_of(const Matrix& m);
  static int32_t kind_of(const MatrixSpec& spec);
  const MatmulKernels& kernels_of(const MatrixSpec& spec) const;
  /// Scratch that products() takes: rotated inputs and unit sums of EXL3 matrices.
  static size_t product_bytes(std::span<const Matrix> ws, int32_t rows);
  /// A copy of rows padded to whole groups, in scratch.
  const Bits16* pad(const Bits16* x, int64_t ldx, int32_t k, int32_t rows);
  /// Whether the kernels for few rows can add the slices of this matrix: a block has a warp for every unit.
  bool folds(const MatrixSpec& spec) const;
  bool adds_neighbours(const MatrixSpec& spec) const;
  /// Whether blocks of k.large would be enough of them for every multiprocessor.
  bool large_fits(const MatmulKernels& k, int64_t channel_tiles, int32_t rows, int64_t slices) const;
  /// Units of the longest slice.
  static int32_t unit_span_of(const MatrixSpec& spec, const Product& p);
  /// A launch of k.ring: `tiles` in all, `units` each; `parts` of K apart.
  void run_ring(const MatmulKernels& k, MatmulParams& q, int32_t tiles, int32_t units, unsigned parts);
  /// y of matrices that share x, side by side; EXL3 inputs are rotated into scratch.
  void products(std::span<const Matrix> ws, Product& p);
  void product_f32(const Matrix& w, const Product& p, int32_t column);
  static void set_slices(Product& p, const MatrixSpec& spec, int64_t stride);
  /// Streams and next site in two launches; y = nullptr: the streams stay. Shapes that mixes() names.
  void hyper_mix(const HyperSite& w, const float* y, Act* streams, Act* x, float* post, float* comb);
  HyperFinishParams hyper_finish_params(const HyperSite& w, const Act* streams, Act* x, float* post,
                                        float* comb) const;
  /// Rows of a prompt that KDA takes at a time: what is prepared of them stays in L2.
  int32_t kda_piece(int32_t heads) const;
  void run_combine(const CombineParams& c);
  /// Sums slices to `part`.
  void combine_slices(const float* slices, int64_t stride, int32_t count, int32_t rows, int32_t n,
                      float* part);

  Status load_packed(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at);
  Status load_exl3(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at);
  Status load_decoded(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at);
  Status load_narrowed(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at);

  /// Uploads what the rows ask for and takes the scratch of the kernels; false: the status says why not.
  bool draw_begin(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
                  DrawParams& p);

  const ExpertTable* expert_table(const ExpertWeights& w);
  /// Whether every matrix of gate and up (0) or down (1) has all kernels of its format.
  bool all_tuned(const ExpertTable& table, int which) const;
  /// Groups the routed pairs.
  /// `apart`: row and expert of each pair are wanted too.
  Pairs group_pairs(const int32_t* idx, int32_t top_k, int32_t experts, int32_t rows_per_item, bool apart);
  void expert_products(const ExpertTable& table, int which, int32_t first_part, int32_t joined,
                       const Pairs& pairs, const Bits16* x, int64_t ldx, int64_t part_stride, bool by_row,
                       const Product& out, int32_t columns_first, int32_t columns_count, int32_t n,
                       int32_t unit_span);
  /// Gate and up of EXL3 experts with the activation and the rotation of down's input in one launch, for
  /// prompts; `input` is rotated, out [pairs, act_ld].
  void expert_gate_up(const ExpertTable& table, const ExpertWeights& w, const Pairs& pairs,
                      const Bits16* input, Bits16* out, int32_t act_ld);
  /// Down products of EXL3 experts of one kind, added in the order of the experts in the same launch, for
  /// prompts; `act` is rotated. Scratch: ordered_bytes().
  void expert_down(const ExpertWeights& w, const ExpertTable& table, const Pairs& pairs, const Bits16* act,
                   int64_t act_ld, const float* shared, const float* weight, float* part);
  size_t ordered_bytes(const ExpertWeights& w) const;
  /// What expert slices in flight may take: little where only formats that cannot be added in order need
  /// them.
  size_t down_pass_bytes() const { return size_t{experts_in_order_ ? 128u : 512u} << 20; }

  /// Few rows of EXL3 experts of one kind: the short way (cuda_ops_experts_few.cc).
  bool experts_few_apply(const ExpertTable& table, const ExpertWeights& w) const;
  /// With a router, idx and weight are its choice, made in a launch before.
  void experts_few(const ExpertTable& table, const ExpertWeights& w, const Act* x, int32_t* idx,
                   float* weight, float* part, const RouterWeights* router);
  /// Whether router_few takes this router.
  bool routes_few(const RouterWeights& w) const;
  RouterParams router_params(const RouterWeights& w, int32_t* idx, float* weight) const;
  /// `next`: the table of the experts that come next, or nullptr.
  void router_few(const RouterWeights& w, const Act* x, int32_t* idx, float* weight, float* logits,
                  const ExpertTable* next);
  /// Whether those kernels take the shared expert too.
  static bool shared_within(const ExpertWeights& w);
  /// The shared expert's slices [slices, rows, hidden] in scratch; nullptr without one.
  size_t shared_expert_bytes(const ExpertWeights& w);
  float* shared_expert(const ExpertWeights& w, const Act* x);
  /// Where this rank holds no part of the routed experts.
  void shared_alone(const ExpertWeights& w, const Act* x, float* part);

  /// Settles with the other ranks how parts are exchanged, and makes it ready.
  Status choose_exchange(Communicator& comm);
  Status open_host_exchange(Communicator& comm);

  const KvFormat kv_;
  const ExchangeChoice choice_;
  // Order matters: what is made from the device goes before it.
  std::unique_ptr<gpu::Device> device_;
  gpu::Stream stream_;
  Kernels kernels_;
  std::vector<gpu::Buffer> owned_;
  gpu::Buffer own_scratch_, staging_, bound_, tables_, picks_;
  gpu::Buffer draw_staging_;  // page-locked: what draws ask for, then their answers
  gpu::Event bound_copied_;
  LoadingPool loadings_;
  std::map<std::tuple<int, int32_t, int32_t>, std::vector<std::byte>> random_parts_;  // of random_matrix
  std::mutex decode_mutex_;
  size_t tables_used_ = 0;
  std::map<const Matrix*, ExpertTable> expert_tables_;
  std::byte* scratch_ = nullptr;
  std::byte* scratch_at_ = nullptr;
  size_t scratch_bytes_ = 0;
  bool experts_in_order_ = false;  // see cuda_ops.h
  bool measuring_ = false;         // ops only say what scratch they need
  size_t measured_ = 0;
  Status status_;

  /// A forward of one pass and shape; valid once recorded, which is the second time.
  struct Recording {
    gpu::Graph graph;
    uint64_t used = 0;  // the forward that used it last, counted
  };
  using Recordings = std::map<std::pair<uint64_t, uint64_t>, Recording>;
  Recordings recordings_;
  gpu::Graph* recording_ = nullptr;  // the one being recorded
  uint64_t forwards_ = 0;
  // What the driver may only take back when nothing runs: other ranks of this process may be waiting on the
  // GPU for this one until its forward has ended.
  std::vector<gpu::Buffer> old_buffers_;
  std::vector<Recordings> old_recordings_;
  /// Memory that recordings use is replaced.
  void replace(gpu::Buffer& buffer, gpu::Buffer with);

  bool alone_ = true;
  Status lost_;  // why there is no exchange
  std::span<std::byte> exchange_memory_;
  std::unique_ptr<HostExchange> host_exchange_;
  std::unique_ptr<NcclExchange> nccl_exchange_;
  Exchange* exchange_ = nullptr;  // the one in use

  // The bound batch: host copies that launches depend on.
  int32_t rows_ = 0, segments_ = 0, max_segment_rows_ = 0;
  int32_t max_position_ = 0;  // with few rows: rounded up, see bind
  uint64_t shape_key_ = 0;    // of what launches depend on
  BatchView view_{};
};

inline const Bits16* bits(const Act* p) { return reinterpret_cast<const Bits16*>(p); }
inline Bits16* bits(Act* p) { return reinterpret_cast<Bits16*>(p); }
inline unsigned blocks_of(int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); }

}  // namespace firesteel::cuda
