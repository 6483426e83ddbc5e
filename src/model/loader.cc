#include "model/loader.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "model/layout.h"
#include "model/matrix_source.h"
#include "ops/random_source.h"

namespace firesteel {
namespace {

/// Values that keep activations of a plausible size: norms 1, decays as trained ones have them, the rest
/// small.
void random_vector(const VectorRef& ref, uint64_t seed, float* dst) {
  const std::string& name = ref.pieces.front().tensor.info->name;
  const auto holds = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool norm = holds("norm.weight"), scale = holds("_scale"), bias = holds("dt_bias"),
             log = holds("A_log");
  for (size_t p = 0; p < ref.pieces.size(); ++p) {
    const VectorRef::Piece& piece = ref.pieces[p];
    for (int64_t i = piece.first; i < piece.first + piece.count; ++i) {
      const float u = static_cast<float>(random_bits(seed + p, static_cast<uint64_t>(i)) >> 40) * 0x1p-24f;
      *dst++ = norm ? 1.0f : scale ? 0.5f : bias ? -6.0f + 4.0f * u : log ? 2.0f * u : u - 0.5f;
    }
  }
}

class WeightLoader {
 public:
  WeightLoader(const ModelFiles& files, Ops& ops, const LoadProgress& progress)
      : files_(files), c_(files.config), ops_(ops), progress_(progress) {}

  Result<Weights> run();

 private:
  /// A matrix to load; `out` stays where it is until run() returns.
  struct Job {
    const MatrixRef* ref;
    Matrix* out;
    std::byte* place;
  };
  /// Takes the place of a matrix; load_all() fills it.
  Status matrix(const MatrixRef& ref, Matrix& out);
  Status load(const Job& job);
  Status load_all();
  Status vector(const VectorRef& ref, const float*& out);
  Status hyper(const HyperRef& ref, HyperSite& out);
  Status kda(const KdaRef& ref, KdaLayer& out);
  Status dsa(const DsaRef& ref, DsaLayer& out);
  Status indexer(const IndexerRef& ref, IndexerLayer& out);
  Status dense(const MlpRef& ref, DenseMlp& out);
  Status moe(const MoeRef& ref, MoeLayer& out);
  Status block(const BlockRef& ref, Block& out);
  Status mtp(const MtpRef& ref, MtpLayer& out);
  std::byte* take(size_t bytes);
  void done(uint64_t bytes);

  const ModelFiles& files_;
  const ModelConfig& c_;
  Ops& ops_;
  const LoadProgress& progress_;
  std::byte* arena_ = nullptr;
  size_t used_ = 0, size_ = 0;
  uint64_t done_bytes_ = 0, total_bytes_ = 0;
  std::vector<Job> jobs_;
  uint64_t random_seed_ = 0;  // the same steps on every rank
  std::vector<float> staging_;
};

std::byte* WeightLoader::take(size_t bytes) {
  CHECK(bytes <= size_ - used_);
  std::byte* p = arena_ + used_;
  used_ += aligned(bytes);
  return p;
}

void WeightLoader::done(uint64_t bytes) {
  done_bytes_ += bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

Status WeightLoader::matrix(const MatrixRef& ref, Matrix& out) {
  out.spec = ref.spec;
  if (ref.empty()) return Status::success();
  std::byte* const place = take(ops_.matrix_bytes(ref.spec));
  if (files_.random_weights) {
    const RandomWeights random{++random_seed_, ref.rows.begin, ref.cols.begin, ref.full_k};
    ASSIGN_OR_RETURN(out, ops_.random_matrix(ref.spec, random, place));
    done(ref.file_bytes());
  } else {
    jobs_.push_back({&ref, &out, place});
  }
  return Status::success();
}

Status WeightLoader::load(const Job& job) {
  FileMatrixSource source(*job.ref);
  auto loaded = ops_.load_matrix(job.ref->spec, source, job.place);
  if (!loaded.ok()) {
    // The reader's own messages name the tensor already; the backend's do not.
    const Error& e = loaded.error();
    return e.message.find(job.ref->weight.file->path()) == std::string::npos
               ? tensor_error(job.ref->weight, e.message, e.code)
               : e;
  }
  *job.out = *loaded;
  return Status::success();
}

/// All matrices, by as many threads as the backend takes. Of several errors the one of the first matrix
/// counts.
Status WeightLoader::load_all() {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t failed = jobs_.size();
  Status status;
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < jobs_.size(); i = next.fetch_add(1)) {
      Status one = load(jobs_[i]);
      std::lock_guard lock(mutex);
      if (one.ok()) {
        done(jobs_[i].ref->file_bytes());
      } else if (i < failed) {
        failed = i;
        status = std::move(one);
        next.store(jobs_.size());
      }
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < ops_.load_threads(); ++t) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  return status;
}

Status WeightLoader::vector(const VectorRef& ref, const float*& out) {
  if (ref.size() == 0) return Status::success();
  staging_.resize(static_cast<size_t>(ref.size()));
  if (files_.random_weights) {
    random_vector(ref, ++random_seed_, staging_.data());
  } else {
    RETURN_IF_ERROR(read_vector(ref, staging_.data()));
  }
  const size_t bytes = staging_.size() * sizeof(float);
  std::byte* dst = take(bytes);
  ops_.upload(dst, staging_.data(), bytes);
  out = reinterpret_cast<const float*>(dst);
  return Status::success();
}

Status WeightLoader::hyper(const HyperRef& ref, HyperSite& out) {
  out.rms_eps = c_.rms_eps;
  out.hc_eps = c_.hc_eps;
  out.sinkhorn_iters = c_.hc_iters;
  RETURN_IF_ERROR(matrix(ref.fn, out.fn));
  RETURN_IF_ERROR(vector(ref.base, out.base));
  RETURN_IF_ERROR(vector(ref.scale, out.scale));
  return vector(ref.norm, out.norm);
}

Status WeightLoader::kda(const KdaRef& ref, KdaLayer& out) {
  out.w = kda_sizes(c_, ref.heads);
  const MatrixRef* qkv[3] = {&ref.q, &ref.k, &ref.v};
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(matrix(*qkv[i], out.qkv[i]));
  RETURN_IF_ERROR(matrix(ref.f_a, out.f_a));
  RETURN_IF_ERROR(matrix(ref.g_a, out.g_a));
  RETURN_IF_ERROR(matrix(ref.f_b, out.f_b));
  RETURN_IF_ERROR(matrix(ref.g_b, out.g_b));
  RETURN_IF_ERROR(matrix(ref.b, out.beta));
  RETURN_IF_ERROR(matrix(ref.o, out.out));
  RETURN_IF_ERROR(vector(ref.conv, out.w.conv));
  RETURN_IF_ERROR(vector(ref.a_log, out.w.a_log));
  RETURN_IF_ERROR(vector(ref.dt_bias, out.w.dt_bias));
  return vector(ref.o_norm, out.w.o_norm);
}

Status WeightLoader::indexer(const IndexerRef& ref, IndexerLayer& out) {
  out.w = indexer_sizes(c_);
  RETURN_IF_ERROR(matrix(ref.q, out.q));
  RETURN_IF_ERROR(matrix(ref.k, out.k));
  RETURN_IF_ERROR(matrix(ref.gate, out.gate));
  RETURN_IF_ERROR(matrix(ref.weights, out.weights));
  RETURN_IF_ERROR(vector(ref.k_norm_weight, out.w.k_norm_weight));
  RETURN_IF_ERROR(vector(ref.k_norm_bias, out.w.k_norm_bias));
  return vector(ref.ape, out.w.ape);
}

Status WeightLoader::dsa(const DsaRef& ref, DsaLayer& out) {
  out.w.heads = ref.heads;
  out.w.qk_dim = c_.qk_dim;
  out.w.v_dim = c_.v_dim;
  out.w.latent = c_.kv_lora;
  RETURN_IF_ERROR(matrix(ref.q_a, out.q_kv_a[0]));
  RETURN_IF_ERROR(matrix(ref.kv_a, out.q_kv_a[1]));
  RETURN_IF_ERROR(matrix(ref.q_b, out.q_b));
  RETURN_IF_ERROR(matrix(ref.kv_b, out.w.kv_b));
  RETURN_IF_ERROR(matrix(ref.o, out.out));
  RETURN_IF_ERROR(vector(ref.q_norm, out.q_norm));
  RETURN_IF_ERROR(vector(ref.kv_norm, out.kv_norm));
  return ref.indexer ? indexer(*ref.indexer, out.indexer.emplace()) : Status::success();
}

Status WeightLoader::dense(const MlpRef& ref, DenseMlp& out) {
  out.width = ref.width;
  RETURN_IF_ERROR(matrix(ref.gate, out.gate_up[0]));
  RETURN_IF_ERROR(matrix(ref.up, out.gate_up[1]));
  return matrix(ref.down, out.down);
}

Status WeightLoader::moe(const MoeRef& ref, MoeLayer& out) {
  RETURN_IF_ERROR(matrix(ref.router, out.router.weight));
  RETURN_IF_ERROR(vector(ref.bias, out.router.bias));
  out.router.experts = c_.experts;
  out.router.top_k = c_.experts_per_token;
  out.router.groups = c_.groups;
  out.router.top_groups = c_.top_groups;
  out.router.norm_topk = c_.norm_topk;
  out.router.factor = c_.routed_factor;

  const size_t experts = ref.experts.size();
  out.gate.resize(experts);
  out.up.resize(experts);
  out.down.resize(experts);
  std::vector<const MatrixRef*> inputs;
  for (size_t e = 0; e < experts; ++e) {
    const MlpRef& expert = ref.experts[e];
    RETURN_IF_ERROR(matrix(expert.gate, out.gate[e]));
    RETURN_IF_ERROR(matrix(expert.up, out.up[e]));
    RETURN_IF_ERROR(matrix(expert.down, out.down[e]));
    inputs.push_back(&expert.gate);
    inputs.push_back(&expert.up);
  }
  out.w.experts = c_.experts;
  out.w.top_k = c_.experts_per_token;
  out.w.width = ref.experts.front().width;
  out.w.limit = c_.swiglu_limit;
  out.w.gate = out.gate.data();
  out.w.up = out.up.data();
  out.w.down = out.down.data();
  if (ref.shared) {
    RETURN_IF_ERROR(matrix(ref.shared->gate, out.w.shared_gate));
    RETURN_IF_ERROR(matrix(ref.shared->up, out.w.shared_up));
    RETURN_IF_ERROR(matrix(ref.shared->down, out.w.shared_down));
  }
  if (files_.random_weights) {
    out.w.shared_suh = true;  // as in the known checkpoints
  } else {
    ASSIGN_OR_RETURN(out.w.shared_suh, same_suh(inputs));
  }
  return Status::success();
}

Status WeightLoader::block(const BlockRef& ref, Block& out) {
  if (ref.kda) RETURN_IF_ERROR(kda(*ref.kda, out.kda.emplace()));
  if (ref.dsa) RETURN_IF_ERROR(dsa(*ref.dsa, out.dsa.emplace()));
  if (ref.dense) RETURN_IF_ERROR(dense(*ref.dense, out.dense.emplace()));
  if (ref.moe) RETURN_IF_ERROR(moe(*ref.moe, out.moe.emplace()));
  return Status::success();
}

Status WeightLoader::mtp(const MtpRef& ref, MtpLayer& out) {
  RETURN_IF_ERROR(vector(ref.enorm, out.enorm));
  RETURN_IF_ERROR(vector(ref.hnorm, out.hnorm));
  RETURN_IF_ERROR(vector(ref.input_norm, out.input_norm));
  RETURN_IF_ERROR(vector(ref.post_norm, out.post_norm));
  RETURN_IF_ERROR(vector(ref.head_norm, out.head_norm));
  RETURN_IF_ERROR(matrix(ref.eh_proj, out.eh_proj));
  return block(ref.block, out.block);
}

Result<Weights> WeightLoader::run() {
  const WeightMap& map = files_.weights;
  walk_weights(
      map,
      [&](WeightGroup, const MatrixRef& m) {
        if (m.empty()) return;
        size_ += aligned(ops_.matrix_bytes(m.spec));
        total_bytes_ += m.file_bytes();
      },
      [&](WeightGroup, const VectorRef& v) {
        size_ += aligned(static_cast<size_t>(v.size()) * sizeof(float));
      });
  ASSIGN_OR_RETURN(arena_, ops_.allocate(size_, "weights"));

  Weights w;
  RETURN_IF_ERROR(matrix(map.embedding, w.embedding));
  RETURN_IF_ERROR(matrix(map.head, w.head));
  RETURN_IF_ERROR(vector(map.final_norm, w.final_norm));
  w.layers.resize(map.layers.size());
  for (size_t i = 0; i < map.layers.size(); ++i) {
    RETURN_IF_ERROR(hyper(map.layers[i].attention_site, w.layers[i].attention_site));
    RETURN_IF_ERROR(hyper(map.layers[i].mlp_site, w.layers[i].mlp_site));
    RETURN_IF_ERROR(block(map.layers[i].block, w.layers[i].block));
  }
  if (map.mtp) {
    w.mtp = std::make_unique<MtpLayer>();
    RETURN_IF_ERROR(mtp(*map.mtp, *w.mtp));
  }
  RETURN_IF_ERROR(load_all());
  return w;
}

}  // namespace

Result<Weights> load_weights(const ModelFiles& files, Ops& ops, const LoadProgress& progress) {
  return WeightLoader(files, ops, progress).run();
}

}  // namespace firesteel
