// The CPU backend: every operation of ops.h in fp32, the readable definition that the other backends are held
// to.
//
// One thread issues ops; the backend's own pool shares each op's loop over rows, heads or outputs, and no
// result depends on which thread computed it. Ops run when they are issued, so Stage has no meaning here.
// Scratch is carved anew by each op, which takes rows in as many passes as the scratch needs; passes never
// change a result.
#pragma once

#include <memory>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "comm/sum_exchange.h"
#include "ops/cpu/matrix.h"
#include "ops/ops.h"
#include "ops/random_source.h"

namespace firesteel::cpu {

inline constexpr int32_t kStreams = 4;

inline const float* f32(const Act* p) { return reinterpret_cast<const float*>(p); }
inline float* f32(Act* p) { return reinterpret_cast<float*>(p); }

/// Hands out 64-byte aligned pieces of the scratch during one op.
class Scratch {
 public:
  Scratch(std::byte* begin, size_t bytes) : at_(begin), left_(bytes) {}
  template <typename T>
  T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    CHECK(bytes <= left_);
    T* p = reinterpret_cast<T*>(at_);
    at_ += bytes;
    left_ -= bytes;
    return p;
  }
  bool fits(size_t floats) const { return floats * sizeof(float) + 64 <= left_; }
  /// How many of at most `rows` rows fit when each takes `floats` floats (at least one must).
  int32_t rows_that_fit(int32_t rows, size_t floats) const;

 private:
  std::byte* at_;
  size_t left_;
};

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, KvFormat kv) : kv_(kv), pool_(threads) {}
  ~CpuOps() override;

  std::string_view name() const override { return "cpu"; }
  std::string_view device() const override { return "CPU"; }
  size_t act_size() const override { return sizeof(float); }
  size_t latent_row_bytes(int32_t latent) const override { return kv_bytes(latent); }
  size_t pool_row_bytes(int32_t dim) const override { return kv_bytes(dim); }
  size_t kda_slot_bytes(const KdaWeights& w) const override;
  size_t tail_slot_bytes(const IndexerWeights& w) const override;
  size_t matrix_bytes(const MatrixSpec& spec) const override { return cpu::matrix_bytes(spec); }
  size_t scratch_bytes(int32_t rows) const override;
  size_t exchange_bytes(int ranks, int32_t rows, int32_t n) const override;

  Result<std::byte*> allocate(size_t bytes, std::string_view what) override;
  void set_scratch(std::byte* scratch, size_t bytes) override;
  void set_exchange(std::byte* buffer, size_t bytes) override { exchange_buffer_ = {buffer, bytes}; }
  void connect(Communicator* comm) override;
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override;

  void upload(void* dst, const void* host, size_t bytes) override;
  void download(void* host, const void* src, size_t bytes) override;
  void zero(void* dst, size_t bytes) override;
  void copy(void* dst, const void* src, size_t bytes) override;
  void download_act(float* host, const Act* src, size_t count) override;
  void upload_act(Act* dst, const float* host, size_t count) override;

  void bind(const Batch& batch) override;
  Result<Matrix> random_matrix(const MatrixSpec& spec, const RandomWeights& weights,
                               std::byte* dst) override {
    RandomSource source(spec, weights);
    return load_matrix(spec, source, dst);
  }
  int load_threads() const override { return 1; }  // each uses them all
  bool begin(uint64_t) override { return true; }
  uint64_t own_memory() const override { return 0; }
  Status finish() override;

  void embed(Stage, const Matrix& table, Act* streams) override;
  void hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) override;
  void hyper_post(Stage, const float* y, const float* post, const float* comb, int32_t hidden,
                  Act* streams) override;
  void linear(Stage, std::span<const Matrix> ws, const Act* x, Act* y) override;
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
  void exchange_begin(Stage, float* part, int32_t n) override;
  void exchange_end(Stage, float* part, int32_t n) override;
  void head_input(Stage, const Act* streams, std::span<const int32_t> rows, int32_t hidden, const float* norm,
                  float eps, Act* h) override;
  void gather(Stage, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) override;
  void mtp_input(Stage, const Matrix& table, const float* enorm, const float* hnorm, float eps, const Act* h,
                 Act* out) override;
  void add(Stage, Act* x, const float* y, size_t count) override;

 private:
  struct ExpertPass;  // moe.cc

  Scratch scratch() const;
  int workers() const { return pool_.size(); }
  /// y[r·ldy + column of w] for `rows` rows of x; the matrices stand side by side in y.
  void products(std::span<const Matrix> ws, const float* x, int64_t ldx, int32_t rows, float* y, int64_t ldy,
                Scratch scratch);
  /// Floats of scratch that products() needs for each worker; it also rotates inputs there (EXL3).
  static size_t product_floats();
  /// Position of each bound row.
  int32_t position(int32_t row) const { return positions_[row]; }
  const Segment& segment_of(int32_t row) const {
    return batch_.segments[static_cast<size_t>(row_segment_[row])];
  }
  /// Element (position / tokens_per_row) of a plane of one segment.
  std::byte* plane_row(Plane plane, const Segment& s, int64_t index, int32_t per_page,
                       size_t row_bytes) const {
    const int32_t page = batch_.page_table[static_cast<size_t>(s.page_begin + index / per_page)];
    return plane.base + static_cast<size_t>(page) * plane.page_stride +
           static_cast<size_t>(index % per_page) * row_bytes;
  }

  // Rows of the KV planes in the format asked for.
  size_t kv_bytes(int32_t n) const;
  void store_kv(const float* x, int32_t n, std::byte* row) const;
  /// The row's values: in place, or decoded to `room` (n floats).
  const float* load_kv(const std::byte* row, int32_t n, float* room) const;
  /// Floats of room that `rows` rows of n values need.
  size_t kv_room(int32_t rows, int32_t n) const {
    return kv_ == KvFormat::kFp8 ? static_cast<size_t>(rows) * static_cast<size_t>(n) : 0;
  }

  const KvFormat kv_;
  ThreadPool pool_;
  std::vector<void*> owned_;
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  bool alone_ = true;  // the only rank: a part is the sum
  Communicator* comm_ = nullptr;
  SumExchange exchange_;
  std::span<std::byte> exchange_buffer_;
  Status fault_;  // of an exchange of this forward
  Batch batch_;
  int32_t* positions_ = nullptr;    // [rows] of the bound batch, at the head of the scratch
  int32_t* row_segment_ = nullptr;  // [rows]
};

}  // namespace firesteel::cpu
