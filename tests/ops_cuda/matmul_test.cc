// Products on CUDA: every format against the CPU backend, and the same bits for a row in any batch.
#include <gtest/gtest.h>

#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

struct Shape {
  MatrixFormat format;
  int32_t bits;
  Codebook codebook;
  int32_t n, k;
  MatrixKeep keep = MatrixKeep::kStored;

  RawMatrix make(Random& random) const {
    return RawMatrix::make(random, format, n, k, bits, codebook, nullptr, keep);
  }
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << "format " << static_cast<int>(s.format) << " bits " << s.bits << " codebook "
       << static_cast<int>(s.codebook) << " keep " << static_cast<int>(s.keep) << ", " << s.n << " by "
       << s.k;
}

/// fp16 inputs of EXL3 after the rotation round at 2^-12 relative; bf16 and FP8 products are exact but for
/// fp32 sums.
double limit_of(MatrixFormat format) { return format == MatrixFormat::kExl3 ? 1e-3 : 3e-6; }

constexpr MatrixFormat kE = MatrixFormat::kExl3;
constexpr MatrixFormat kB = MatrixFormat::kBf16, kF = MatrixFormat::kF32;
constexpr MatrixKeep kStored = MatrixKeep::kStored, k8 = MatrixKeep::kFp8, k4 = MatrixKeep::kQ4;
constexpr Codebook k3 = Codebook::k3Inst, kG = Codebook::kMcg, kM = Codebook::kMul1;
const Shape kShapes[] = {
    {MatrixFormat::kBf16, 0, kG, 24, 4096},
    {MatrixFormat::kBf16, 0, kG, 512, 1536},
    {MatrixFormat::kBf16, 0, kG, 77, 300},
    {MatrixFormat::kBf16, 0, kG, 130, 1001},
    {MatrixFormat::kF32, 0, kG, 33, 515},
    {MatrixFormat::kFp8Block, 0, kG, 256, 1024},
    {MatrixFormat::kFp8Block, 0, kG, 200, 328},
    {kB, 0, kG, 512, 1536, k4},
    {kB, 0, kG, 24, 4096, k4},
    {kB, 0, kG, 9000, 4096, k4},  // two tiles a warp
    {kB, 0, kG, 34000, 640, k8},
    {kB, 0, kG, 4400, 1536, k4},  // units that no number of warps divides
    {kB, 0, kG, 4397, 1100},
    {kB, 0, kG, 40000, 640},     // several tiles a block, in rounds
    {kB, 0, kG, 40, 20480, k4},  // more units than warps
    {kB, 0, kG, 77, 320, k4},
    {kF, 0, kG, 130, 1088, k4},
    {kB, 0, kG, 512, 1536, k8},
    {kB, 0, kG, 77, 300, k8},
    {kF, 0, kG, 130, 1001, k8},
    {kE, 1, kG, 128, 512},
    {kE, 2, kG, 128, 640},
    {kE, 3, kG, 256, 1024},
    {kE, 4, kG, 384, 2048},
    {kE, 5, kG, 256, 640},
    {kE, 6, kG, 128, 768},
    {kE, 7, kG, 128, 512},
    {kE, 8, kG, 128, 512},
    {kE, 1, kM, 128, 512},
    {kE, 2, kM, 128, 512},
    {kE, 3, kM, 128, 1152},
    {kE, 4, kM, 256, 1024},
    {kE, 5, kM, 256, 896},
    {kE, 6, kM, 256, 1024},
    {kE, 7, kM, 128, 512},
    {kE, 8, kM, 128, 512},
    {kE, 1, k3, 128, 512},
    {kE, 2, k3, 128, 512},
    {kE, 3, k3, 128, 512},
    {kE, 4, k3, 128, 512},
    {kE, 5, k3, 128, 512},
    {kE, 6, k3, 128, 512},
    {kE, 7, k3, 128, 512},
    {kE, 8, k3, 128, 512},
};

class Matmul : public testing::TestWithParam<Shape> {};

TEST_P(Matmul, MatchesTheDefinition) {
  REQUIRE_CUDA();
  const Shape s = GetParam();
  Random random;
  RawMatrix raw = s.make(random);
  const Matrix cpu = cpu_side()->load(raw), cuda = cuda_side()->load(raw);
  for (const int32_t rows : {1, 7, 8, 9, 32, 33, 100}) {
    const auto x = bf16_normals(random, static_cast<size_t>(rows) * static_cast<size_t>(s.k), 1.0);
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(s.n);
    std::vector<float> result[2];
    int i = 0;
    for (auto [side, m] : {std::pair{cpu_side(), &cpu}, {cuda_side(), &cuda}}) {
      float* y = side->poisoned(count);
      side->ops().linear_f32(Stage::kMain, *m, side->act(x), rows, y);
      side->finish();
      result[i++] = side->read(y, count);
    }
    expect_close(result[1], result[0], limit_of(s.format), "linear_f32");
    if (HasFailure()) {
      FAIL() << rows << " rows";
    }
  }
}

/// A row's bits must not depend on how many rows go with it, nor on its place among them.
TEST_P(Matmul, RowsDoNotDependOnTheBatch) {
  REQUIRE_CUDA();
  const Shape s = GetParam();
  Random random;
  RawMatrix raw = s.make(random);
  Side& side = *cuda_side();
  const Matrix m = side.load(raw);
  const int32_t all = 200;
  const auto k = static_cast<size_t>(s.k), n = static_cast<size_t>(s.n);
  const auto x = bf16_normals(random, all * k, 1.0);
  const auto product = [&](size_t first, size_t rows) {
    float* y = side.poisoned(rows * n);
    const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(first * k),
                                  x.begin() + static_cast<std::ptrdiff_t>((first + rows) * k));
    side.ops().linear_f32(Stage::kMain, m, side.act(part), static_cast<int32_t>(rows), y);
    side.finish();
    return side.read(y, rows * n);
  };
  const auto whole = product(0, all);
  for (const auto& [first, rows] : {std::pair<size_t, size_t>{0, 1},
                                    {3, 1},
                                    {5, 5},
                                    {11, 8},
                                    {0, 9},
                                    {40, 17},
                                    {64, 32},
                                    {100, 33},
                                    {1, 64},
                                    {7, 130}}) {
    const std::vector<float> want(whole.begin() + static_cast<std::ptrdiff_t>(first * n),
                                  whole.begin() + static_cast<std::ptrdiff_t>((first + rows) * n));
    expect_same_bits(product(first, rows), want, "rows of a smaller batch");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Matmul, testing::ValuesIn(kShapes));

/// The planted fault: a sum cut at another place must show as other bits, or the comparison above proves
/// nothing.
TEST(MatmulControl, AnotherCutOfTheSumIsSeen) {
  REQUIRE_CUDA();
  Random random;
  Side& side = *cuda_side();
  RawMatrix raw = RawMatrix::make(random, MatrixFormat::kBf16, 256, 2048);
  const Matrix whole = side.load(raw);
  raw.slice(4);
  const Matrix sliced = side.load(raw);
  TestBatch batch;
  batch.add(5, 0, 0);
  side.ops().bind(batch.view());
  Act* x = side.act(bf16_normals(random, 5 * 2048, 1.0));
  float* a = side.poisoned(5 * 256);
  float* b = side.poisoned(5 * 256);
  side.ops().linear_f32(Stage::kMain, whole, x, 5, a);
  side.ops().linear_sliced(Stage::kMain, sliced, x, b);
  side.finish();
  const auto va = side.read(a, 5 * 256), vb = side.read(b, 5 * 256);
  expect_close(vb, va, 1e-6, "two orders of one sum");
  EXPECT_FALSE(same_bits(va, vb));
}

/// Products with so many tiles that the kernels for long prompts take them have the bits of those for few
/// rows, in every column and row of a tile, with unaligned outputs and slices.
TEST(Matmul, ManyTilesHaveTheBitsOfFewRows) {
  REQUIRE_CUDA();
  struct Case {
    MatrixFormat format;
    int32_t bits, n, k, slices;
    MatrixKeep keep = kStored;
  };
  for (const Case& c : {Case{MatrixFormat::kBf16, 0, 2310, 712, 1},
                        {MatrixFormat::kBf16, 0, 2304, 1280, 2},
                        {MatrixFormat::kBf16, 0, 2310, 2688, 4},
                        {MatrixFormat::kBf16, 0, 2304, 1408, 2, k4},
                        {MatrixFormat::kBf16, 0, 2304, 2048, 4, k8},
                        {MatrixFormat::kBf16, 0, 4096, 128, 2},
                        {MatrixFormat::kFp8Block, 0, 2310, 640, 1},
                        {MatrixFormat::kFp8Block, 0, 2304, 1152, 2},
                        {kE, 4, 2432, 1280, 1},
                        {kE, 5, 2304, 1280, 4},
                        {kE, 6, 2304, 640, 2},
                        {kE, 3, 2304, 640, 1}}) {
    Random random;
    Side& side = *cuda_side();
    side.reset();
    RawMatrix raw =
        RawMatrix::make(random, c.format, c.n, c.k, c.bits, c.bits % 2 ? kM : kG, nullptr, c.keep);
    raw.slice(c.slices);
    const Matrix m = side.load(raw);
    constexpr int32_t kAll = 1500;
    const auto k = static_cast<size_t>(c.k), n = static_cast<size_t>(c.n);
    const auto x = bf16_normals(random, kAll * k, 1.0);
    Act* const xs = side.act(x);
    const auto product = [&](int32_t first, int32_t rows) {
      TestBatch batch;
      batch.add(rows, 0, 0);
      side.ops().bind(batch.view());
      const size_t count = static_cast<size_t>(rows) * n;
      float* y = side.poisoned(count);
      Act* from = side.act(std::vector<float>(x.begin() + first * c.k,
                                              x.begin() + static_cast<std::ptrdiff_t>(first + rows) * c.k));
      side.ops().linear_sliced(Stage::kMain, m, rows == kAll ? xs : from, y);
      side.finish();
      return side.read(y, count);
    };
    const auto whole = product(0, kAll);
    for (const auto& [first, rows] : {std::pair{0, 8}, {120, 16}, {700, 32}, {1460, 40}}) {
      const std::vector<float> want(whole.begin() + first * c.n,
                                    whole.begin() + static_cast<std::ptrdiff_t>(first + rows) * c.n);
      expect_same_bits(product(first, rows), want, "rows of a large batch");
    }
  }
}

/// Slices are summed alone, then added: what several ranks compute apart has the same bits.
TEST(Matmul, SlicesAreSumsOfTheirOwn) {
  REQUIRE_CUDA();
  for (const auto& [format, keep] :
       {std::pair{kB, kStored}, {kE, kStored}, {MatrixFormat::kFp8Block, kStored}, {kB, k4}, {kB, k8}}) {
    Random random;
    Side& side = *cuda_side();
    const int32_t n = 256, k = 1024, rows = 9;
    RawMatrix low = RawMatrix::make(random, format, n, k, 4, Codebook::kMcg, nullptr, keep);
    low.slice(2);
    const Matrix two = side.load(low);
    TestBatch batch;
    batch.add(rows, 0, 0);
    side.ops().bind(batch.view());
    Act* x = side.act(bf16_normals(random, static_cast<size_t>(rows * k), 1.0));
    float* part = side.poisoned(rows * n);
    side.ops().linear_sliced(Stage::kMain, two, x, part);
    std::vector<float> sum(static_cast<size_t>(rows * n), 0.0f);
    for (int32_t i = 0; i < 2; ++i) {
      // Keep slice i only: zero the input elsewhere.
      auto masked = side.read_act(x, static_cast<size_t>(rows * k));
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t c = 0; c < k; ++c) {
          if ((c >= k / 2) != (i == 1)) masked[static_cast<size_t>(r * k + c)] = 0.0f;
        }
      }
      float* y = side.poisoned(rows * n);
      side.ops().linear_sliced(Stage::kMain, two, side.act(masked), y);
      const auto v = side.read(y, static_cast<size_t>(rows * n));
      for (size_t j = 0; j < v.size(); ++j) sum[j] += v[j];
    }
    side.finish();
    expect_same_bits(side.read(part, sum.size()), sum, "s0 + s1");
  }
}

TEST(Matmul, JoinedAndSlicedMatchTheDefinition) {
  REQUIRE_CUDA();
  for (const auto& [format, keep] : {std::pair{kB, kStored},
                                     {kE, kStored},
                                     {MatrixFormat::kFp8Block, kStored},
                                     {kF, kStored},
                                     {kB, k4},
                                     {kF, k8}}) {
    Random random;
    const int32_t k = 1024;
    std::vector<RawMatrix> raws;
    for (const int32_t n : {256, 128, 384})
      raws.push_back(RawMatrix::make(random, format, n, k, 4, Codebook::kMul1, nullptr, keep));
    RawMatrix bf16 = RawMatrix::make(random, MatrixFormat::kBf16, 40, k);
    RawMatrix down = RawMatrix::make(random, format, 256, k, 5, Codebook::kMcg, nullptr, keep);
    for (const int32_t rows : {1, 20, 150}) {
      for (const int32_t slices : {1, 2, 4}) {
        down.slice(slices);
        const auto x = bf16_normals(random, static_cast<size_t>(rows * k), 1.0);
        std::vector<float> joined[2], sliced[2];
        int i = 0;
        for (Side* side : {cpu_side(), cuda_side()}) {
          side->reset();
          TestBatch batch;
          batch.add(rows, 0, 0);
          side->ops().bind(batch.view());
          std::vector<Matrix> ws;
          for (RawMatrix& raw : raws) ws.push_back(side->load(raw));
          ws.insert(ws.begin() + 1, side->load(bf16));
          const Matrix d = side->load(down);
          const size_t width = 256 + 128 + 384 + 40, count = static_cast<size_t>(rows) * width;
          Act* y = side->poisoned_act(count);
          float* part = side->poisoned(static_cast<size_t>(rows) * 256);
          Act* xa = side->act(x);
          side->ops().linear(Stage::kMain, ws, xa, y);
          side->ops().linear_sliced(Stage::kMain, d, xa, part);
          side->finish();
          joined[i] = side->read_act(y, count);
          sliced[i++] = side->read(part, static_cast<size_t>(rows) * 256);
        }
        expect_close(joined[1], joined[0], 4e-3, "joined, rounded to bf16");
        expect_close(sliced[1], sliced[0], limit_of(format), "sliced");
      }
    }
  }
}

/// Products issued together, with inputs and outputs of their own, have the bits of each alone.
TEST(Matmul, JobsTogetherAreEachAlone) {
  REQUIRE_CUDA();
  Random random;
  Side& side = *cuda_side();
  struct Kind {
    MatrixFormat format;
    int32_t n, k;
    MatrixKeep keep = kStored;
  };
  const Kind kinds[] = {{MatrixFormat::kBf16, 256, 1024},     {MatrixFormat::kBf16, 40, 1024},
                        {MatrixFormat::kBf16, 128, 128},      {MatrixFormat::kBf16, 72, 128},
                        {MatrixFormat::kFp8Block, 256, 1024}, {MatrixFormat::kFp8Block, 128, 1024},
                        {MatrixFormat::kExl3, 256, 1024},     {MatrixFormat::kF32, 24, 1024},
                        {MatrixFormat::kBf16, 33, 100},       {MatrixFormat::kBf16, 16, 1024},
                        {MatrixFormat::kBf16, 250, 1024, k4}, {MatrixFormat::kBf16, 40, 1024, k4},
                        {MatrixFormat::kBf16, 4096, 128, k4}, {MatrixFormat::kBf16, 2000, 128, k4}};
  std::vector<RawMatrix> raws;
  for (const Kind& k : kinds)
    raws.push_back(RawMatrix::make(random, k.format, k.n, k.k, 4, Codebook::kMul1, nullptr, k.keep));
  for (const int32_t rows : {1, 8, 20, 70, 300}) {
    side.reset();
    TestBatch batch;
    batch.add(rows, 0, 0);
    side.ops().bind(batch.view());
    std::vector<Matrix> ws;
    for (RawMatrix& raw : raws) ws.push_back(side.load(raw));
    const Matrix pair[2] = {ws[0], ws[9]};
    const auto x_of = [&](int32_t k) {
      return side.act(bf16_normals(random, static_cast<size_t>(rows * k), 1.0));
    };
    std::vector<LinearJob> jobs;
    std::vector<size_t> counts;
    const Act* shared = x_of(1024);
    const auto add = [&](std::span<const Matrix> group, const Act* x) {
      size_t n = 0;
      for (const Matrix& m : group) n += static_cast<size_t>(m.spec.n);
      counts.push_back(n * static_cast<size_t>(rows));
      jobs.push_back({group, x, side.poisoned_act(counts.back())});
    };
    add(pair, shared);
    for (size_t i = 1; i < ws.size(); ++i) add({&ws[i], 1}, i % 2 ? shared : x_of(1024));
    jobs[2].x = x_of(128), jobs[3].x = x_of(128), jobs[8].x = x_of(100);
    jobs[12].x = x_of(128), jobs[13].x = x_of(128);
    side.ops().linears(Stage::kMain, jobs);
    side.finish();
    for (size_t i = 0; i < jobs.size(); ++i) {
      Act* alone = side.poisoned_act(counts[i]);
      side.ops().linear(Stage::kMain, jobs[i].ws, jobs[i].x, alone);
      side.finish();
      expect_same_bits(side.read_act(jobs[i].y, counts[i]), side.read_act(alone, counts[i]), "a job");
    }
  }
}

/// An EXL3 matrix kept decoded (kv_b) is the matrix itself to bf16 rounding.
TEST(Matmul, DecodedAtLoad) {
  REQUIRE_CUDA();
  Random random;
  RawMatrix raw = RawMatrix::make(random, MatrixFormat::kExl3, 256, 512, 4, Codebook::kMcg);
  raw.spec.keep = MatrixKeep::kDecoded;
  const int32_t rows = 16;
  const auto x = bf16_normals(random, rows * 512, 1.0);
  std::vector<float> result[2];
  int i = 0;
  for (Side* side : {cpu_side(), cuda_side()}) {
    const Matrix m = side->load(raw);
    EXPECT_NE(m.spec.format, MatrixFormat::kExl3);
    float* y = side->poisoned(rows * 256);
    side->ops().linear_f32(Stage::kMain, m, side->act(x), rows, y);
    side->finish();
    result[i++] = side->read(y, rows * 256);
  }
  expect_close(result[1], result[0], 4e-3, "decoded");
}

}  // namespace
}  // namespace firesteel::test
