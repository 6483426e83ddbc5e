// An Ops that hands everything to another one; tests override single ops to plant faults or to watch.
#pragma once

#include "ops/ops.h"

namespace firesteel::test {

class OpsProxy : public Ops {
 public:
  explicit OpsProxy(std::unique_ptr<Ops> inner) : in_(std::move(inner)) {}
  Ops& inner() { return *in_; }

  std::string_view name() const override { return in_->name(); }
  std::string_view device() const override { return in_->device(); }
  size_t act_size() const override { return in_->act_size(); }
  size_t latent_row_bytes(int32_t latent) const override { return in_->latent_row_bytes(latent); }
  size_t pool_row_bytes(int32_t dim) const override { return in_->pool_row_bytes(dim); }
  size_t kda_slot_bytes(const KdaWeights& w) const override { return in_->kda_slot_bytes(w); }
  size_t tail_slot_bytes(const IndexerWeights& w) const override { return in_->tail_slot_bytes(w); }
  size_t matrix_bytes(const MatrixSpec& spec) const override { return in_->matrix_bytes(spec); }
  size_t scratch_bytes(int32_t rows) const override { return in_->scratch_bytes(rows); }
  Result<std::byte*> allocate(size_t bytes, std::string_view what) override {
    return in_->allocate(bytes, what);
  }
  void set_scratch(std::byte* scratch, size_t bytes) override { in_->set_scratch(scratch, bytes); }
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override {
    return in_->load_matrix(spec, source, dst);
  }
  Result<Matrix> random_matrix(const MatrixSpec& spec, const RandomWeights& weights,
                               std::byte* dst) override {
    return in_->random_matrix(spec, weights, dst);
  }
  void upload(void* dst, const void* host, size_t bytes) override { in_->upload(dst, host, bytes); }
  void download(void* host, const void* src, size_t bytes) override { in_->download(host, src, bytes); }
  void zero(void* dst, size_t bytes) override { in_->zero(dst, bytes); }
  void copy(void* dst, const void* src, size_t bytes) override { in_->copy(dst, src, bytes); }
  void download_act(float* host, const Act* src, size_t count) override {
    in_->download_act(host, src, count);
  }
  void upload_act(Act* dst, const float* host, size_t count) override { in_->upload_act(dst, host, count); }
  void bind(const Batch& batch) override { in_->bind(batch); }
  int load_threads() const override { return in_->load_threads(); }
  bool begin(uint64_t key) override { return in_->begin(key); }
  uint64_t own_memory() const override { return in_->own_memory(); }
  Status finish() override { return in_->finish(); }
  void embed(Stage s, const Matrix& table, Act* streams) override { in_->embed(s, table, streams); }
  void hyper_pre(Stage s, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) override {
    in_->hyper_pre(s, w, streams, x, post, comb);
  }
  void hyper_post(Stage s, const float* y, const float* post, const float* comb, int32_t hidden,
                  Act* streams) override {
    in_->hyper_post(s, y, post, comb, hidden, streams);
  }
  void hyper_next(Stage s, const HyperSite& w, const float* y, Act* streams, Act* x, float* post,
                  float* comb) override {
    in_->hyper_next(s, w, y, streams, x, post, comb);
  }
  void linears(Stage s, std::span<const LinearJob> jobs) override { in_->linears(s, jobs); }
  void linear(Stage s, std::span<const Matrix> ws, const Act* x, Act* y) override {
    in_->linear(s, ws, x, y);
  }
  void linear_f32(Stage s, const Matrix& w, const Act* x, int32_t rows, float* y) override {
    in_->linear_f32(s, w, x, rows, y);
  }
  void linear_sliced(Stage s, const Matrix& w, const Act* x, float* part) override {
    in_->linear_sliced(s, w, x, part);
  }
  void rms_norm(Stage s, const float* w, float eps, int32_t n, const Act* x, int32_t ldx, Act* y) override {
    in_->rms_norm(s, w, eps, n, x, ldx, y);
  }
  void kda(Stage s, const KdaWeights& w, const Act* qkv, const Act* f, const Act* b, const Act* g,
           SlotPlane state, Act* out) override {
    in_->kda(s, w, qkv, f, b, g, state, out);
  }
  void latent_append(Stage s, const Act* c, int32_t latent, Plane plane) override {
    in_->latent_append(s, c, latent, plane);
  }
  void pool_append(Stage s, const IndexerWeights& w, const Act* ki, const Act* ga, Plane pools,
                   SlotPlane tail) override {
    in_->pool_append(s, w, ki, ga, pools, tail);
  }
  void pool_select(Stage s, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                   Selection out) override {
    in_->pool_select(s, w, q, hw, pools, out);
  }
  void sparse_attention(Stage s, const AttentionWeights& w, const Act* q, Plane latents, const Selection& sel,
                        int32_t kpool, Act* out) override {
    in_->sparse_attention(s, w, q, latents, sel, kpool, out);
  }
  void glu(Stage s, const Act* gate_up, int32_t width, float limit, Act* out) override {
    in_->glu(s, gate_up, width, limit, out);
  }
  void router(Stage s, const RouterWeights& w, const Act* x, int32_t* idx, float* weight) override {
    in_->router(s, w, x, idx, weight);
  }
  void experts(Stage s, const ExpertWeights& w, const Act* x, const int32_t* idx, const float* weight,
               float* part) override {
    in_->experts(s, w, x, idx, weight, part);
  }
  size_t exchange_bytes(int ranks, int32_t rows, int32_t n) const override {
    return in_->exchange_bytes(ranks, rows, n);
  }
  void set_exchange(std::byte* buffer, size_t bytes) override { in_->set_exchange(buffer, bytes); }
  void connect(Communicator* comm) override { in_->connect(comm); }
  void exchange_begin(Stage s, float* part, int32_t n) override { in_->exchange_begin(s, part, n); }
  void exchange_end(Stage s, float* part, int32_t n) override { in_->exchange_end(s, part, n); }
  void head_input(Stage s, const Act* streams, std::span<const int32_t> rows, int32_t hidden,
                  const float* norm, float eps, Act* h) override {
    in_->head_input(s, streams, rows, hidden, norm, eps, h);
  }
  void gather(Stage s, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) override {
    in_->gather(s, x, rows, n, out);
  }
  void mtp_input(Stage s, const Matrix& table, const float* enorm, const float* hnorm, float eps,
                 const Act* h, Act* out) override {
    in_->mtp_input(s, table, enorm, hnorm, eps, h, out);
  }
  void add(Stage s, Act* x, const float* y, size_t count) override { in_->add(s, x, y, count); }

 private:
  std::unique_ptr<Ops> in_;
};

}  // namespace firesteel::test
