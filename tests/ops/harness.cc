#include "harness.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "ops/cuda/cuda_ops.h"
#include "quant/exl3.h"
#include "quant/narrow.h"
#include "tensor/dtype.h"

namespace firesteel::test {
namespace {

constexpr size_t kGuard = 512;
constexpr unsigned char kGuardByte = 0xA5;

/// Serves a stored matrix, columns [k0, k1).
class StoredSource : public MatrixSource {
 public:
  StoredSource(const StoredMatrix& m, int32_t k0, int32_t k1) : m_(m), k0_(k0), k1_(k1) {}
  Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override {
    auto* out = static_cast<std::byte*>(dst);
    switch (part) {
      case MatrixPart::kWeight: {
        if (m_.format == MatrixFormat::kExl3) {
          const size_t row = size_t(m_.n) / 16 * 32 * m_.bits;
          std::memcpy(out, m_.weight.data() + (size_t(k0_) / 16 + size_t(first)) * row, size_t(count) * row);
          return Status::success();
        }
        const size_t size = m_.weight.size() / (size_t(m_.n) * size_t(m_.k));
        const size_t row = size_t(k1_ - k0_) * size;
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(out + size_t(i) * row,
                      m_.weight.data() + (size_t(first + i) * size_t(m_.k) + size_t(k0_)) * size, row);
        }
        return Status::success();
      }
      case MatrixPart::kScale: {
        const size_t all = (size_t(m_.k) + 127) / 128, from = size_t(k0_) / 128,
                     mine = (size_t(k1_ - k0_) + 127) / 128;
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(out + size_t(i) * mine * 4, m_.scale.data() + size_t(first + i) * all + from, mine * 4);
        }
        return Status::success();
      }
      case MatrixPart::kSuh:
        std::memcpy(out, m_.suh.data() + k0_ + first, size_t(count) * 2);
        return Status::success();
      case MatrixPart::kSvh:
        std::memcpy(out, m_.svh.data() + first, size_t(count) * 2);
        return Status::success();
    }
    return Status::success();
  }

 private:
  const StoredMatrix& m_;
  int32_t k0_, k1_;
};

double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double v = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -v : v;
}

/// One 128-block transformed by the definition, H[i][j] = (-1)^popcount(i & j)/√128.
void hadamard(double* x, size_t stride) {
  double out[128];
  for (unsigned i = 0; i < 128; ++i) {
    double s = 0;
    for (unsigned j = 0; j < 128; ++j) s += (__builtin_popcount(i & j) % 2 ? -1 : 1) * x[j * stride];
    out[i] = s / std::sqrt(128.0);
  }
  for (unsigned i = 0; i < 128; ++i) x[i * stride] = out[i];
}

}  // namespace

std::vector<BackendCase> backends() {
  std::vector<BackendCase> all = {{"cpu", [](int threads) { return make_cpu_ops(threads); }, 0x1p-24}};
  // Where a GPU is, the CUDA backend is held to the same definitions, at the width of bf16.
  if (make_cuda_ops(0).ok()) {
    all.push_back({"cuda", [](int) { return std::move(make_cuda_ops(0)).value(); }, 0x1p-8});
  }
  return all;
}

Floats OpsTest::normals(size_t n, double mean, double std) {
  Floats v = random_.normals(n, std);
  for (float& x : v) x = static_cast<float>(x + mean);
  return v;
}

Buffer::Buffer(Ops& ops, size_t bytes) : ops_(&ops), bytes_(bytes) {
  auto memory = ops.allocate(bytes + 2 * kGuard, "a test buffer");
  if (!memory.ok()) throw std::runtime_error(memory.error().message);
  data_ = memory.value() + kGuard;
  std::vector<unsigned char> fill(bytes + 2 * kGuard, kGuardByte);
  std::fill_n(fill.begin() + kGuard, bytes, 0xFF);
  ops.upload(data_ - kGuard, fill.data(), fill.size());
}
void Buffer::check() const {
  std::vector<unsigned char> guard(kGuard);
  const auto intact = [&](const std::byte* at) {
    ops_->download(guard.data(), at, kGuard);
    return std::all_of(guard.begin(), guard.end(), [](unsigned char c) { return c == kGuardByte; });
  };
  EXPECT_TRUE(intact(data_ - kGuard)) << "written before a buffer of " << bytes_ << " bytes";
  EXPECT_TRUE(intact(data_ + bytes_)) << "written past a buffer of " << bytes_ << " bytes";
}

/// Replaces each row by what its narrowed form means.
void narrow(Doubles& dense, MatrixKeep keep, int32_t n, int32_t k) {
  std::vector<float> row(static_cast<size_t>(k));
  std::vector<uint8_t> codes(row.size());
  std::vector<Q4Scale> q4(row.size() / kQ4Group + 1);
  std::vector<uint16_t> fp8(row.size() / kFp8Group + 1);
  for (int32_t r = 0; r < n; ++r) {
    double* at = dense.data() + int64_t{r} * k;
    for (int32_t c = 0; c < k; ++c) row[size_t(c)] = static_cast<float>(at[c]);
    const bool four = keep == MatrixKeep::kQ4;
    EXPECT_TRUE((four ? q4_from_row(row.data(), k, codes.data(), q4.data())
                      : fp8_from_row(row.data(), k, codes.data(), fp8.data()))
                    .ok());
    for (int32_t c = 0; c < k; ++c) {
      at[c] = bf16_to_f32(four ? q4_value(codes[size_t(c)], q4[size_t(c) / kQ4Group])
                               : fp8_value(codes[size_t(c)], fp8[size_t(c) / kFp8Group]));
    }
  }
}

StoredMatrix make_stored(Random& random, const MatrixOptions& o, int32_t n, int32_t k) {
  StoredMatrix m{o.format, o.codebook, o.bits, n, k, {}, {}, {}, {}, Doubles(size_t(n) * size_t(k)), o.keep};
  const size_t count = size_t(n) * size_t(k);
  switch (o.format) {
    case MatrixFormat::kF32: {
      m.weight.resize(count * 4);
      for (size_t i = 0; i < count; ++i) {
        const float v = static_cast<float>(random.normal() * o.std);
        std::memcpy(m.weight.data() + i * 4, &v, 4);
        m.dense[i] = v;
      }
      break;
    }
    case MatrixFormat::kBf16: {
      m.weight.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t v = f32_to_bf16(static_cast<float>(random.normal() * o.std));
        std::memcpy(m.weight.data() + i * 2, &v, 2);
        m.dense[i] = bf16_to_f32(v);
      }
      break;
    }
    case MatrixFormat::kFp8Block: {
      m.weight.resize(count);
      const size_t across = (size_t(k) + 127) / 128;
      m.scale.resize((size_t(n) + 127) / 128 * across);
      for (float& s : m.scale)
        s = static_cast<float>(o.std * (0.005 + 0.005 * (random.bits() % 1000) / 1000.0));
      for (size_t i = 0; i < count; ++i) {
        uint8_t code = static_cast<uint8_t>(random.bits());
        if ((code & 0x7F) == 0x7F) code ^= 1;  // not NaN
        m.weight[i] = std::byte{code};
        // The product of code and scale is rounded to fp32: that is the weight.
        m.dense[i] =
            static_cast<float>(e4m3(code) * m.scale[i / size_t(k) / 128 * across + i % size_t(k) / 128]);
      }
      break;
    }
    case MatrixFormat::kExl3: {
      m.weight.resize(size_t(k) / 16 * (size_t(n) / 16) * 32 * o.bits);
      for (auto& b : m.weight) b = std::byte(random.bits());
      if (o.suh != nullptr) {
        m.suh = *o.suh;
      } else {
        for (int32_t i = 0; i < k; ++i)
          m.suh.push_back(f32_to_f16((random.bits() & 1 ? -1.0f : 1.0f) *
                                     (0.75f + 0.5f * (random.bits() % 1000) / 1000.0f)));
      }
      for (int32_t i = 0; i < n; ++i)
        m.svh.push_back(f32_to_f16(static_cast<float>((random.bits() & 1 ? -o.std : o.std) *
                                                      (0.75 + 0.5 * (random.bits() % 1000) / 1000.0))));
      std::vector<uint16_t> words(m.weight.size() / 2), inner(count);
      std::memcpy(words.data(), m.weight.data(), m.weight.size());
      const Exl3Trellis trellis{words.data(), k, n, o.bits, o.codebook};
      exl3_decode(trellis, exl3_all_tiles(trellis), inner.data(), n);
      Doubles w(count);  // [k, n]
      for (size_t i = 0; i < count; ++i) w[i] = f16_to_f32(inner[i]);
      for (size_t b = 0; b < size_t(k); b += 128) {
        for (size_t c = 0; c < size_t(n); ++c) hadamard(w.data() + b * size_t(n) + c, size_t(n));
      }
      for (size_t r = 0; r < size_t(k); ++r) {
        for (size_t b = 0; b < size_t(n); b += 128) hadamard(w.data() + r * size_t(n) + b, 1);
        for (size_t c = 0; c < size_t(n); ++c) {
          m.dense[c * size_t(k) + r] = w[r * size_t(n) + c] * f16_to_f32(m.suh[r]) * f16_to_f32(m.svh[c]);
        }
      }
      break;
    }
    case MatrixFormat::kFp8Rows:
    case MatrixFormat::kQ4:
      ADD_FAILURE() << "never stored";
  }
  if (o.keep == MatrixKeep::kFp8 || o.keep == MatrixKeep::kQ4) narrow(m.dense, o.keep, n, k);
  return m;
}

TestMatrix load_part(Ops& ops, const StoredMatrix& stored, int32_t k0, int32_t k1,
                     const std::vector<int32_t>& ends, MatrixKeep keep) {
  MatrixSpec spec;
  spec.format = stored.format;
  spec.codebook = stored.codebook;
  spec.bits = stored.bits;
  spec.n = stored.n;
  spec.k = k1 - k0;
  spec.keep = keep == MatrixKeep::kStored ? stored.keep : keep;
  if (!ends.empty()) {
    spec.slices = static_cast<int32_t>(ends.size());
    std::copy(ends.begin(), ends.end(), spec.slice_end);
  }
  TestMatrix m;
  m.n = stored.n;
  m.k = k1 - k0;
  for (int32_t r = 0; r < m.n; ++r) {
    const auto row = stored.dense.begin() + int64_t{r} * stored.k;
    m.dense.insert(m.dense.end(), row + k0, row + k1);
  }
  StoredSource source(stored, k0, k1);
  auto memory = ops.allocate(ops.matrix_bytes(spec), "a test matrix");
  auto loaded = ops.load_matrix(spec, source, memory.value());
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
  m.matrix = loaded.value();
  return m;
}

TestMatrix load_slices(Ops& ops, const StoredMatrix& stored, int32_t first, int32_t count) {
  const int32_t k0 = slice_boundary(stored.k, first), k1 = slice_boundary(stored.k, first + count);
  std::vector<int32_t> ends;
  for (int32_t i = first + 1; i <= first + count; ++i) ends.push_back(slice_boundary(stored.k, i) - k0);
  return load_part(ops, stored, k0, k1, ends);
}

void OpsTest::start(int threads, int32_t rows) {
  buffers_.clear();
  ops_ = GetParam().make(threads);
  const size_t bytes = ops_->scratch_bytes(rows);
  auto scratch = ops_->allocate(bytes, "scratch");
  ASSERT_TRUE(scratch.ok());
  std::vector<unsigned char> poison(bytes, 0xFF);
  ops_->upload(scratch.value(), poison.data(), bytes);
  ops_->set_scratch(scratch.value(), bytes);
}
void OpsTest::TearDown() {
  EXPECT_TRUE(ops_->finish().ok());
  for (const auto& b : buffers_) b->check();
}

Buffer& OpsTest::buffer(size_t bytes) {
  buffers_.push_back(std::make_unique<Buffer>(*ops_, bytes));
  return *buffers_.back();
}
Act* OpsTest::act(const Floats& host) {
  Act* p = empty_act(host.size());
  ops_->upload_act(p, host.data(), host.size());
  return p;
}
Act* OpsTest::empty_act(size_t count) {
  return reinterpret_cast<Act*>(buffer(count * ops_->act_size()).data());
}
float* OpsTest::floats(const Floats& host) {
  float* p = empty_floats(host.size());
  ops_->upload(p, host.data(), host.size() * 4);
  return p;
}
float* OpsTest::empty_floats(size_t count) { return buffer(count * 4).as<float>(); }
int32_t* OpsTest::empty_ints(size_t count) { return buffer(count * 4).as<int32_t>(); }
Floats OpsTest::get(const Act* p, size_t count) {
  Floats v(count);
  ops_->download_act(v.data(), p, count);
  return v;
}
Floats OpsTest::get(const float* p, size_t count) {
  Floats v(count);
  ops_->download(v.data(), p, count * 4);
  return v;
}
std::vector<int32_t> OpsTest::get(const int32_t* p, size_t count) {
  std::vector<int32_t> v(count);
  ops_->download(v.data(), p, count * 4);
  return v;
}

void OpsTest::bind(int32_t rows, int32_t start) {
  bind({Segment{0, rows, start, 0, 0}}, (start + rows + kPageTokens - 1) / kPageTokens);
}
void OpsTest::bind(const std::vector<Segment>& segments, int32_t pages_each) {
  segments_ = segments;
  pages_.clear();
  int32_t rows = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    segments_[i].page_begin = static_cast<int32_t>(i) * pages_each;
    // Pages of a sequence are scattered and in falling order.
    for (int32_t p = 0; p < pages_each; ++p) {
      pages_.push_back((pages_each - 1 - p) * static_cast<int32_t>(segments_.size()) +
                       static_cast<int32_t>(i));
    }
    rows += segments_[i].rows;
  }
  tokens_.resize(size_t(rows), 0);
  batch_ = Batch{rows, tokens_, segments_, pages_};
  ops_->bind(batch_);
}

void OpsTest::expect_close(const Floats& actual, const Doubles& expected, double tol,
                           const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double most = 0;
  for (double e : expected) {
    if (std::isfinite(e)) most = std::max(most, std::fabs(e));
  }
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      EXPECT_TRUE(std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i])
          << what << " at " << i;
      continue;
    }
    const double off = std::isfinite(actual[i]) ? std::fabs(actual[i] - expected[i]) : HUGE_VAL;
    if (off > worst) {
      worst = off;
      at = i;
    }
  }
  EXPECT_LE(worst, tol * unit() * most) << what << " at " << at << ": " << actual[at] << " for "
                                        << expected[at] << " (" << worst / (unit() * most) << " units)";
}

Doubles product(const TestMatrix& w, const Doubles& x, int32_t rows) {
  Doubles y(size_t(rows) * size_t(w.n));
  for (size_t t = 0; t < size_t(rows); ++t) {
    for (size_t i = 0; i < size_t(w.n); ++i) {
      double s = 0;
      for (size_t k = 0; k < size_t(w.k); ++k) s += w.dense[i * size_t(w.k) + k] * x[t * size_t(w.k) + k];
      y[t * size_t(w.n) + i] = s;
    }
  }
  return y;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
Doubles rms_norm(const Doubles& x, const Floats& w, double eps) {
  const size_t n = w.size();
  Doubles y(x.size());
  for (size_t r = 0; r < x.size() / n; ++r) {
    double s = 0;
    for (size_t i = 0; i < n; ++i) s += x[r * n + i] * x[r * n + i];
    const double f = 1 / std::sqrt(s / double(n) + eps);
    for (size_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * f * w[i];
  }
  return y;
}

}  // namespace firesteel::test
