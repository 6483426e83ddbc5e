#include "ops_cuda/both.h"

#include <cstdio>

#include "ops/cuda/cuda_ops.h"

namespace firesteel::test {

namespace {
constexpr size_t kCpuArena = size_t{3} << 29, kCudaArena = size_t{3} << 29;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span<const T>(v));
}
template <typename T>
std::vector<std::byte> to_bytes(const std::vector<T>& v) {
  const auto b = bytes_of(v);
  return {b.begin(), b.end()};
}
}  // namespace

float round_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

std::vector<float> bf16_normals(Random& random, size_t count, double std) {
  std::vector<float> v = random.normals(count, std);
  for (float& x : v) x = round_bf16(x);
  return v;
}

RawMatrix RawMatrix::make(Random& random, MatrixFormat format, int32_t n, int32_t k, int32_t bits,
                          Codebook codebook, const RawMatrix* same_suh, MatrixKeep keep) {
  RawMatrix m;
  m.spec.format = format;
  m.spec.n = n;
  m.spec.k = k;
  m.spec.slice_end[0] = k;
  m.spec.keep = keep;
  const auto count = static_cast<size_t>(n) * static_cast<size_t>(k);
  const double std = 1.0 / std::sqrt(static_cast<double>(k));
  switch (format) {
    case MatrixFormat::kF32:
      m.weight_ = to_bytes(random.normals(count, std));
      break;
    case MatrixFormat::kBf16: {
      std::vector<uint16_t> w(count);
      for (uint16_t& x : w) x = f32_to_bf16(static_cast<float>(random.normal() * std));
      m.weight_ = to_bytes(w);
      break;
    }
    case MatrixFormat::kFp8Block: {
      std::vector<uint8_t> w(count);
      for (uint8_t& x : w) {
        do x = static_cast<uint8_t>(random.below(256));
        while ((x & 0x7f) == 0x7f);
      }
      std::vector<float> scale(static_cast<size_t>((n + 127) / 128) * static_cast<size_t>((k + 127) / 128));
      for (float& s : scale) s = static_cast<float>(std * random.uniform(0.004, 0.01));
      m.weight_ = to_bytes(w);
      m.scale_ = to_bytes(scale);
      break;
    }
    case MatrixFormat::kExl3: {
      m.spec.bits = static_cast<uint8_t>(bits);
      m.spec.codebook = codebook;
      m.weight_ = to_bytes(random.words(count / 256 * 16 * static_cast<size_t>(bits)));
      const auto signs = [&](int32_t size, double value) {
        std::vector<uint16_t> v(static_cast<size_t>(size));
        for (uint16_t& x : v) {
          const double magnitude = value * random.uniform(0.75, 1.25);
          x = f32_to_f16(static_cast<float>(random.below(2) ? magnitude : -magnitude));
        }
        return to_bytes(v);
      };
      m.suh_ = same_suh != nullptr ? same_suh->suh_ : signs(k, 1.0);
      m.svh_ = signs(n, std / 1.2);
      break;
    }
    case MatrixFormat::kFp8Rows:
    case MatrixFormat::kQ4:
      ADD_FAILURE() << "never stored";
  }
  return m;
}

void RawMatrix::slice(int32_t slices) {
  spec.slices = slices;
  // The first `slices` of four equal cuts at multiples of 128, as one rank of 4 / slices would hold them.
  const int32_t unsliced = spec.k * 4 / slices;
  for (int32_t i = 0; i < slices; ++i) spec.slice_end[i] = std::min(spec.k, slice_boundary(unsliced, i + 1));
  spec.slice_end[slices - 1] = spec.k;
}

Status RawMatrix::read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) {
  const std::vector<std::byte>* from = &weight_;
  size_t row = 0;
  const auto n = static_cast<size_t>(spec.n), k = static_cast<size_t>(spec.k);
  switch (part) {
    case MatrixPart::kWeight:
      row = spec.format == MatrixFormat::kF32        ? 4 * k
            : spec.format == MatrixFormat::kBf16     ? 2 * k
            : spec.format == MatrixFormat::kFp8Block ? k
                                                     : n / 16 * 32 * spec.bits;
      break;
    case MatrixPart::kScale:
      from = &scale_;
      row = (k + 127) / 128 * 4;
      break;
    case MatrixPart::kSuh:
      from = &suh_;
      row = 2;
      break;
    case MatrixPart::kSvh:
      from = &svh_;
      row = 2;
      break;
  }
  const size_t at = static_cast<size_t>(first) * row, bytes = static_cast<size_t>(count) * row;
  if (at + bytes > from->size()) return Error{ErrorCode::kInternal, "a read beyond the matrix"};
  std::memcpy(dst, from->data() + at, bytes);
  return {};
}

Side::Side(std::unique_ptr<Ops> ops, size_t arena_bytes) : ops_(std::move(ops)), size_(arena_bytes) {
  auto arena = ops_->allocate(arena_bytes, "test arena");
  EXPECT_TRUE(arena.ok());
  arena_ = arena.value();
  const size_t scratch = ops_->scratch_bytes(2048);
  auto memory = ops_->allocate(scratch, "test scratch");
  EXPECT_TRUE(memory.ok());
  ops_->set_scratch(memory.value(), scratch);
}

std::byte* Side::take(size_t bytes) {
  std::byte* p = arena_ + used_;
  used_ += (bytes + 255) / 256 * 256;
  EXPECT_LE(used_, size_) << "the test arena is too small";
  return p;
}

Act* Side::act(const std::vector<float>& host) {
  auto* p = reinterpret_cast<Act*>(take(host.size() * ops_->act_size()));
  ops_->upload_act(p, host.data(), host.size());
  return p;
}

Matrix Side::load(RawMatrix& raw) {
  auto m = ops_->load_matrix(raw.spec, raw, take(ops_->matrix_bytes(raw.spec)));
  EXPECT_TRUE(m.ok()) << (m.ok() ? "" : m.error().message);
  return m.ok() ? m.value() : Matrix{};
}

std::vector<float> Side::read(const float* p, size_t count) {
  std::vector<float> v(count);
  ops_->download(v.data(), p, count * sizeof(float));
  return v;
}
std::vector<int32_t> Side::read(const int32_t* p, size_t count) {
  std::vector<int32_t> v(count);
  ops_->download(v.data(), p, count * sizeof(int32_t));
  return v;
}
std::vector<float> Side::read_act(const Act* p, size_t count) {
  std::vector<float> v(count);
  ops_->download_act(v.data(), p, count);
  return v;
}
void Side::finish() {
  const Status s = ops_->finish();
  EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
}

Side* cuda_side(KvFormat kv) {
  const auto make = [](KvFormat format) -> std::unique_ptr<Side> {
    auto ops = make_cuda_ops(0, format);
    if (!ops.ok()) {
      std::printf("CUDA tests are skipped: %s\n", ops.error().message.c_str());
      return nullptr;
    }
    return std::make_unique<Side>(std::move(ops).value(), kCudaArena);
  };
  static const std::unique_ptr<Side> wide = make(KvFormat::kWide);
  if (kv == KvFormat::kWide) return wide.get();
  static const std::unique_ptr<Side> fp8 = make(KvFormat::kFp8);
  return fp8.get();
}

Side* cpu_side(KvFormat kv) {
  static const std::unique_ptr<Side> wide = std::make_unique<Side>(make_cpu_ops(0), kCpuArena);
  if (kv == KvFormat::kWide) return wide.get();
  static const std::unique_ptr<Side> fp8 = std::make_unique<Side>(make_cpu_ops(0, kv), kCpuArena);
  return fp8.get();
}

void TestBatch::add(int32_t segment_rows, int32_t start, int32_t slot) {
  Segment s;
  s.first_row = rows;
  s.rows = segment_rows;
  s.start = start;
  s.slot = slot;
  s.page_begin = static_cast<int32_t>(pages.size());
  rows += segment_rows;
  const int32_t count = (start + segment_rows + kPageTokens - 1) / kPageTokens;
  // Pages in descending order: a kernel that forgets the table fails.
  for (int32_t i = count - 1; i >= 0; --i) pages.push_back(page_count + i);
  page_count += count;
  segments.push_back(s);
  for (int32_t i = 0; i < segment_rows; ++i) tokens.push_back((7 * (start + i) + 3 * slot) % 97);
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VAL;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double e = std::sqrt(difference / std::max(norm, 1e-300));
  return std::isnan(e) ? HUGE_VAL : e;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, double limit,
                  const char* what) {
  const double e = relative_error(got, want);
  EXPECT_LE(e, limit) << what;
  // One wrong row must not hide in a large norm.
  double scale = 0, worst = 0;
  size_t at = 0;
  for (const float v : want) scale = std::max(scale, std::abs(static_cast<double>(v)));
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(d <= worst)) {
      worst = d;
      at = i;
    }
  }
  EXPECT_LE(worst, 12 * limit * scale)
      << what << ": element " << at << " is " << (at < got.size() ? got[at] : kNan) << ", should be "
      << (at < want.size() ? want[at] : kNan);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  size_t different = 0, first = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && different++ == 0) first = i;
  }
  EXPECT_EQ(different, 0u) << what << ": of " << a.size() << " values; the first is " << first << ": "
                           << a[first] << " and " << b[first];
}

}  // namespace firesteel::test
