// FP8 KV rows on every backend: what is appended is the row format of quant/kv_row.h, and ops on FP8 planes
// give the bits that they give on wide planes of the decoded rows.
#include <algorithm>
#include <cmath>
#include <memory>

#include "harness.h"
#include "ops/cuda/cuda_ops.h"
#include "quant/kv_row.h"
#include "tensor/dtype.h"

namespace firesteel::test {
namespace {

constexpr int32_t kPool = 4;

struct Dims {
  int32_t tokens, latent, dim, heads, qk, v, index_heads, top;
};

/// One backend in one format with planes for one sequence, pages in falling order.
class Cache {
 public:
  Cache(std::unique_ptr<Ops> ops, const Dims& d) : ops_(std::move(ops)), d_(d) {
    pages_ = (d.tokens + kPageTokens - 1) / kPageTokens;
    latents_ = plane(ops_->latent_row_bytes(d.latent) * kPageTokens + 512);
    pools_ = plane(ops_->pool_row_bytes(d.dim) * (kPageTokens / kPool) + 256);
    const size_t scratch = ops_->scratch_bytes(64);
    ops_->set_scratch(memory(scratch), scratch);
    for (int32_t i = pages_ - 1; i >= 0; --i) table_.push_back(i);
  }
  Ops& ops() { return *ops_; }
  std::byte* memory(size_t bytes) {
    std::byte* p = ops_->allocate(bytes, "test memory").value();
    const std::vector<unsigned char> poison(bytes, 0xFF);
    ops_->upload(p, poison.data(), bytes);
    return p;
  }
  Act* act(const Floats& v) {
    auto* p = reinterpret_cast<Act*>(memory(v.size() * ops_->act_size()));
    ops_->upload_act(p, v.data(), v.size());
    return p;
  }
  const float* floats(const Floats& v) {
    std::byte* p = memory(v.size() * 4);
    ops_->upload(p, v.data(), v.size() * 4);
    return reinterpret_cast<const float*>(p);
  }
  void bind(int32_t rows, int32_t start) {
    tokens_.assign(size_t(rows), 0);
    segment_ = Segment{0, rows, start, 0, 0};
    ops_->bind(Batch{rows, tokens_, {&segment_, 1}, table_});
  }
  /// A plane's rows in the host's hands: fetched, changed and stored as a whole.
  struct Image {
    std::vector<std::byte> bytes;
    std::vector<size_t> at;  // of each row
    size_t row_bytes;
    std::vector<std::byte> row(int32_t i) const {
      const auto first = bytes.begin() + std::ptrdiff_t(at[size_t(i)]);
      return {first, first + std::ptrdiff_t(row_bytes)};
    }
  };
  Image latent_image() { return image(latents_, d_.tokens, kPageTokens, ops_->latent_row_bytes(d_.latent)); }
  Image pool_image() {
    return image(pools_, d_.tokens / kPool, kPageTokens / kPool, ops_->pool_row_bytes(d_.dim));
  }
  void set(Image& image, int32_t i, const Floats& v) const {  // of wide planes
    std::byte* to = image.bytes.data() + image.at[size_t(i)];
    for (size_t j = 0; j < v.size(); ++j) {
      const uint16_t narrow = f32_to_bf16(v[j]);
      if (ops_->act_size() == 4) {
        std::memcpy(to + 4 * j, &v[j], 4);
      } else {
        std::memcpy(to + 2 * j, &narrow, 2);
      }
    }
  }
  void store(Plane p, const Image& image) { ops_->upload(p.base, image.bytes.data(), image.bytes.size()); }
  Floats read(const Act* p, size_t n) {
    Floats v(n);
    ops_->download_act(v.data(), p, n);
    return v;
  }

  struct Result {
    std::vector<int32_t> pools, count;
    Floats out;
  };
  Result select_and_attend(const IndexerWeights& ix, const AttentionWeights& at, const Floats& q,
                           const Floats& hw, const Floats& queries, int32_t rows, int32_t start) {
    bind(rows, start);
    Selection sel{reinterpret_cast<int32_t*>(memory(size_t(rows * d_.top) * 4)),
                  reinterpret_cast<int32_t*>(memory(size_t(rows) * 4)), d_.top};
    ops_->pool_select(Stage::kMain, ix, act(q), act(hw), pools_, sel);
    Act* out = act(Floats(size_t(rows * d_.heads * d_.v), NAN));
    ops_->sparse_attention(Stage::kMain, at, act(queries), latents_, sel, kPool, out);
    EXPECT_TRUE(ops_->finish().ok());
    Result r{std::vector<int32_t>(size_t(rows * d_.top)), std::vector<int32_t>(size_t(rows)),
             read(out, size_t(rows * d_.heads * d_.v))};
    ops_->download(r.pools.data(), sel.pools, r.pools.size() * 4);
    ops_->download(r.count.data(), sel.count, r.count.size() * 4);
    return r;
  }
  Plane latents() const { return latents_; }
  Plane pools() const { return pools_; }

 private:
  Plane plane(size_t stride) { return {memory(stride * size_t(pages_)), stride}; }
  Image image(Plane p, int32_t rows, int32_t per_page, size_t row_bytes) {
    Image m{std::vector<std::byte>(p.page_stride * size_t(pages_)), {}, row_bytes};
    ops_->download(m.bytes.data(), p.base, m.bytes.size());
    for (int32_t i = 0; i < rows; ++i) {
      m.at.push_back(size_t(table_[size_t(i / per_page)]) * p.page_stride + size_t(i % per_page) * row_bytes);
    }
    return m;
  }

  std::unique_ptr<Ops> ops_;
  Dims d_;
  int32_t pages_ = 0;
  Plane latents_, pools_;
  std::vector<int32_t> table_, tokens_;
  Segment segment_;
};

struct Backend {
  const char* name;
  std::unique_ptr<Ops> (*make)(KvFormat);
};
std::vector<Backend> kv_backends() {
  std::vector<Backend> all = {{"cpu", [](KvFormat kv) { return make_cpu_ops(2, kv); }}};
  if (make_cuda_ops(0).ok()) {
    all.push_back({"cuda", [](KvFormat kv) { return std::move(make_cuda_ops(0, kv)).value(); }});
  }
  return all;
}

class KvFormatTest : public testing::TestWithParam<Backend> {
 protected:
  Floats normals(size_t n) {
    Floats v = random_.normals(n, 1.0);
    for (float& x : v) x = bf16_to_f32(f32_to_bf16(x));  // the same inputs on every backend
    return v;
  }
  Random random_;
};

TEST_P(KvFormatTest, RowsTakeTheirBytes) {
  const auto wide = GetParam().make(KvFormat::kWide), fp8 = GetParam().make(KvFormat::kFp8);
  EXPECT_EQ(wide->latent_row_bytes(512), 512 * wide->act_size());
  EXPECT_EQ(fp8->latent_row_bytes(512), 528u);
  EXPECT_EQ(fp8->pool_row_bytes(128), 144u);
  EXPECT_EQ(fp8->pool_row_bytes(20), 32u);
}

TEST_P(KvFormatTest, AppendedLatentsAreTheRowFormatBitForBit) {
  for (const int32_t latent : {512, 64, 45}) {
    const Dims d{300, latent, 32, 1, 16, 16, 1, 4};
    Cache cache(GetParam().make(KvFormat::kFp8), d);
    Floats c = normals(size_t(d.tokens * latent));
    const auto value = [&](int32_t t, int32_t i) -> float& { return c[size_t(t * latent + i)]; };
    for (int32_t t = 0; t < d.tokens; ++t) {  // rows of every size, and odd ones
      for (int32_t i = 0; i < latent; ++i) value(t, i) = std::ldexp(value(t, i), t % 200 - 140);
    }
    for (int32_t i = 0; i < latent; ++i) value(3, i) = 0;
    value(5, 7) = NAN;
    value(6, latent - 1) = INFINITY;
    value(7, 0) = -448;
    for (int32_t i = 0; i < latent; ++i) value(8, i) = i % 2 ? -0.0f : 1.0f + float(i % 128) / 128;
    cache.bind(d.tokens, 0);
    cache.ops().latent_append(Stage::kMain, cache.act(c), latent, cache.latents());
    ASSERT_TRUE(cache.ops().finish().ok());
    const Cache::Image image = cache.latent_image();
    for (int32_t t = 0; t < d.tokens; ++t) {
      std::vector<std::byte> want(kv_row_bytes(latent));
      kv_row_quantize(&value(t, 0), latent, want.data());
      ASSERT_EQ(image.row(t), want) << "token " << t << " of " << latent;
    }
  }
}

TEST_P(KvFormatTest, AppendedPoolsAreTheWideOnesRounded) {
  const Dims d{203, 64, 128, 1, 16, 16, 1, 4};
  IndexerWeights ix;
  ix.dim = d.dim;
  ix.kpool = kPool;
  const Floats norm = normals(128), bias = normals(128), ape = normals(512);
  const Floats ki = normals(size_t(d.tokens * d.dim)), ga = normals(size_t(d.tokens * d.dim));
  std::vector<std::vector<std::byte>> rows[2];
  for (const KvFormat kv : {KvFormat::kWide, KvFormat::kFp8}) {
    Cache cache(GetParam().make(kv), d);
    ix.k_norm_weight = cache.floats(norm);
    ix.k_norm_bias = cache.floats(bias);
    ix.ape = cache.floats(ape);
    const size_t tail = cache.ops().tail_slot_bytes(ix);
    const SlotPlane tails{cache.memory(tail), tail};
    for (int32_t at = 0; at < d.tokens;) {
      const int32_t n = std::min(at % 3 ? 1 : 30, d.tokens - at);
      const auto cut = [&](const Floats& v) {
        return Floats(v.begin() + at * d.dim, v.begin() + (at + n) * d.dim);
      };
      cache.bind(n, at);
      cache.ops().pool_append(Stage::kMain, ix, cache.act(cut(ki)), cache.act(cut(ga)), cache.pools(), tails);
      at += n;
    }
    ASSERT_TRUE(cache.ops().finish().ok());
    const Cache::Image image = cache.pool_image();
    for (int32_t p = 0; p < d.tokens / kPool; ++p) rows[kv == KvFormat::kFp8].push_back(image.row(p));
  }
  const bool exact = std::string(GetParam().name) == "cpu";
  for (size_t p = 0; p < rows[0].size(); ++p) {
    Floats wide(size_t(d.dim)), back(size_t(d.dim));
    for (size_t i = 0; i < wide.size(); ++i) {
      if (exact) {
        std::memcpy(&wide[i], rows[0][p].data() + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, rows[0][p].data() + 2 * i, 2);
        wide[i] = bf16_to_f32(bits);
      }
    }
    std::vector<std::byte> want(kv_row_bytes(d.dim));
    kv_row_quantize(wide.data(), d.dim, want.data());
    if (exact) {
      ASSERT_EQ(rows[1][p], want) << "pool " << p;
      continue;
    }
    // A wide CUDA key is rounded to bf16 already: the same scale, and codes at most one apart.
    kv_row_dequantize(rows[1][p].data(), d.dim, back.data());
    float most = 0;
    for (const float v : wide) most = std::max(most, std::fabs(v));
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_LE(std::fabs(back[i] - wide[i]), std::fabs(wide[i]) * 0.068f + most * 0x1p-17f) << p << " " << i;
    }
  }
}

TEST_P(KvFormatTest, OpsOnFp8RowsAreOpsOnTheDecodedRowsBitForBit) {
  // Real widths, odd widths (the plain kernels on CUDA), and enough pools for several passes.
  for (const Dims& d : {Dims{702, 512, 128, 4, 256, 256, 16, 30}, Dims{301, 44, 20, 3, 20, 12, 5, 16},
                        Dims{41003, 64, 32, 2, 16, 16, 4, 100}}) {
    Cache wide(GetParam().make(KvFormat::kWide), d), fp8(GetParam().make(KvFormat::kFp8), d);
    const StoredMatrix kv_b =
        make_stored(random_, {.format = MatrixFormat::kBf16, .std = 1 / std::sqrt(double(d.latent))},
                    d.heads * (d.qk + d.v), d.latent);
    const Floats c = normals(size_t(d.tokens * d.latent));
    for (int32_t at = 0; at < d.tokens; at += 2000) {
      const int32_t n = std::min(2000, d.tokens - at);
      fp8.bind(n, at);
      fp8.ops().latent_append(Stage::kMain,
                              fp8.act(Floats(c.begin() + at * d.latent, c.begin() + (at + n) * d.latent)),
                              d.latent, fp8.latents());
    }
    ASSERT_TRUE(fp8.ops().finish().ok());
    const Cache::Image codes = fp8.latent_image();
    Cache::Image latents = wide.latent_image(), keys = wide.pool_image(), key_codes = fp8.pool_image();
    Floats v(size_t(d.latent)), key(size_t(d.dim));
    for (int32_t t = 0; t < d.tokens; ++t) {
      kv_row_dequantize(codes.row(t).data(), d.latent, v.data());
      wide.set(latents, t, v);
    }
    for (int32_t p = 0; p < d.tokens / kPool; ++p) {
      std::byte* row = key_codes.bytes.data() + key_codes.at[size_t(p)];
      kv_row_quantize(normals(size_t(d.dim)).data(), d.dim, row);
      kv_row_dequantize(row, d.dim, key.data());
      wide.set(keys, p, key);
    }
    wide.store(wide.latents(), latents);
    wide.store(wide.pools(), keys);
    fp8.store(fp8.pools(), key_codes);
    IndexerWeights ix;
    ix.heads = d.index_heads;
    ix.dim = d.dim;
    ix.kpool = kPool;
    ix.top_pools = d.top;
    const int32_t rows = 7, start = d.tokens - rows;
    const Floats q = normals(size_t(rows * d.index_heads * d.dim)),
                 hw = normals(size_t(rows * d.index_heads)), queries = normals(size_t(rows * d.heads * d.qk));
    const auto run = [&](Cache& cache) {
      const TestMatrix m = load_all(cache.ops(), kv_b);
      const AttentionWeights at{d.heads, d.qk, d.v, d.latent, m.matrix};
      return cache.select_and_attend(ix, at, q, hw, queries, rows, start);
    };
    const Cache::Result a = run(wide), b = run(fp8);
    EXPECT_EQ(a.count, b.count);
    EXPECT_EQ(a.pools, b.pools);
    ASSERT_EQ(a.out.size(), b.out.size());
    EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4), 0);
    // The comparison sees one value that differs: of the last token, which is of an incomplete pool.
    kv_row_dequantize(codes.row(d.tokens - 1).data(), d.latent, v.data());
    v[3] = v[3] * 4 + 1;
    wide.set(latents, d.tokens - 1, v);
    wide.store(wide.latents(), latents);
    const Cache::Result changed = run(wide);
    EXPECT_NE(std::memcmp(changed.out.data(), b.out.data(), b.out.size() * 4), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KvFormatTest, testing::ValuesIn(kv_backends()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace firesteel::test
