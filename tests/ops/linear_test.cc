// Matrix products in every weight format against float64, and the four-slice rule across emulated ranks.
#include "harness.h"

namespace firesteel::test {
namespace {

class LinearTest : public OpsTest {};
FS_FOR_EACH_BACKEND(LinearTest);

struct Shape {
  MatrixFormat format;
  int32_t n, k;
  uint8_t bits = 0;
  Codebook codebook = Codebook::k3Inst;
  MatrixKeep keep = MatrixKeep::kStored;

  MatrixOptions options() const {
    return {.format = format, .codebook = codebook, .bits = bits, .keep = keep};
  }
};
Shape narrowed(MatrixKeep keep, int32_t n, int32_t k, MatrixFormat format = MatrixFormat::kBf16) {
  return {format, n, k, 0, Codebook::k3Inst, keep};
}
const Shape kShapes[] = {
    {MatrixFormat::kF32, 1, 1},
    {MatrixFormat::kF32, 37, 45},
    {MatrixFormat::kF32, 24, 1024},
    {MatrixFormat::kBf16, 5, 17},
    {MatrixFormat::kBf16, 130, 300},
    {MatrixFormat::kBf16, 33, 777},
    {MatrixFormat::kFp8Block, 19, 50},
    {MatrixFormat::kFp8Block, 256, 384},
    {MatrixFormat::kFp8Block, 140, 515},
    {MatrixFormat::kExl3, 128, 128, 1, Codebook::k3Inst},
    {MatrixFormat::kExl3, 256, 384, 4, Codebook::kMcg},
    {MatrixFormat::kExl3, 128, 640, 6, Codebook::kMul1},
    {MatrixFormat::kExl3, 384, 128, 8, Codebook::kMcg},
    narrowed(MatrixKeep::kQ4, 9, 64),
    narrowed(MatrixKeep::kQ4, 37, 192),
    narrowed(MatrixKeep::kQ4, 130, 1088),
    narrowed(MatrixKeep::kQ4, 21, 320, MatrixFormat::kF32),
    narrowed(MatrixKeep::kFp8, 5, 17),
    narrowed(MatrixKeep::kFp8, 130, 300),
    narrowed(MatrixKeep::kFp8, 33, 1100, MatrixFormat::kF32),
};

TEST_P(LinearTest, EveryFormatAndRowCountMatchesFloat64) {
  for (const Shape& s : kShapes) {
    const StoredMatrix stored = make_stored(random(), s.options(), s.n, s.k);
    const TestMatrix w = load_all(ops(), stored);
    for (int32_t rows : {1, 2, 3, 4, 5, 7, 16, 37}) {
      SCOPED_TRACE(::testing::Message() << "format " << int(s.format) << " keep " << int(s.keep) << " n "
                                        << s.n << " k " << s.k << " rows " << rows);
      const Floats x = normals(size_t(rows) * size_t(s.k));
      bind(rows);
      Act* in = act(x);
      Act* out = empty_act(size_t(rows) * size_t(s.n));
      ops().linear(Stage::kMain, {&w.matrix, 1}, in, out);
      const Doubles expected = product(w, wide(x), rows);
      expect_close(get(out, size_t(rows) * size_t(s.n)), expected, 12, "linear");
      float* wide_out = empty_floats(size_t(rows) * size_t(s.n));
      ops().linear_f32(Stage::kMain, w.matrix, in, rows, wide_out);
      expect_close(get(wide_out, size_t(rows) * size_t(s.n)), expected, 12, "linear_f32");
    }
  }
}

TEST_P(LinearTest, GroupsLieSideBySideWhetherOrNotTheyShareSuh) {
  std::vector<uint16_t> suh;
  const MatrixOptions exl3{.format = MatrixFormat::kExl3, .codebook = Codebook::kMul1, .bits = 5};
  const StoredMatrix first = make_stored(random(), exl3, 128, 256);
  MatrixOptions sharing = exl3;
  sharing.suh = &first.suh;
  const StoredMatrix parts[] = {first, make_stored(random(), {.format = MatrixFormat::kBf16}, 37, 256),
                                make_stored(random(), exl3, 256, 256),
                                make_stored(random(), sharing, 128, 256),
                                make_stored(random(), {.format = MatrixFormat::kF32}, 3, 256)};
  std::vector<TestMatrix> ws;
  std::vector<Matrix> list;
  int32_t width = 0;
  for (const StoredMatrix& p : parts) {
    ws.push_back(load_all(ops(), p));
    list.push_back(ws.back().matrix);
    width += p.n;
  }
  const int32_t rows = 5;
  const Floats x = normals(size_t(rows) * 256);
  bind(rows);
  Act* in = act(x);
  Act* out = empty_act(size_t(rows) * size_t(width));
  ops().linear(Stage::kMain, list, in, out);
  const Floats got = get(out, size_t(rows) * size_t(width));
  size_t column = 0;
  for (const TestMatrix& w : ws) {
    // Alone and in the group: the same bits.
    Act* alone = empty_act(size_t(rows) * size_t(w.n));
    ops().linear(Stage::kMain, {&w.matrix, 1}, in, alone);
    const Floats one = get(alone, size_t(rows) * size_t(w.n));
    Floats part;
    for (size_t t = 0; t < size_t(rows); ++t) {
      part.insert(part.end(), got.begin() + long(t * size_t(width) + column),
                  got.begin() + long(t * size_t(width) + column + size_t(w.n)));
    }
    expect_close(part, product(w, wide(x), rows), 12, "group");
    EXPECT_EQ(part, one);
    column += size_t(w.n);
  }
}

TEST_P(LinearTest, SliceBoundariesFollowTheRule) {
  EXPECT_EQ(slice_boundary(8192, 0), 0);
  EXPECT_EQ(slice_boundary(8192, 1), 2048);
  EXPECT_EQ(slice_boundary(8192, 4), 8192);
  EXPECT_EQ(slice_boundary(640, 1), 128);  // 5 blocks: 1, 1, 1, 2
  EXPECT_EQ(slice_boundary(640, 2), 256);
  EXPECT_EQ(slice_boundary(640, 3), 384);
  EXPECT_EQ(slice_boundary(96, 1), 0);  // one partial block: three empty slices
  EXPECT_EQ(slice_boundary(96, 3), 0);
  EXPECT_EQ(slice_boundary(96, 4), 96);
  EXPECT_EQ(slice_boundary(1 << 30, 3), 3 * (1 << 28));
}

TEST_P(LinearTest, OneTwoAndFourRanksAgreeBitForBit) {
  for (const Shape& s :
       {Shape{MatrixFormat::kBf16, 45, 1024}, Shape{MatrixFormat::kBf16, 20, 96},
        Shape{MatrixFormat::kF32, 33, 700}, Shape{MatrixFormat::kFp8Block, 50, 640},
        Shape{MatrixFormat::kExl3, 256, 1024, 4, Codebook::kMcg}, narrowed(MatrixKeep::kQ4, 50, 1088),
        narrowed(MatrixKeep::kQ4, 33, 640, MatrixFormat::kF32), narrowed(MatrixKeep::kFp8, 50, 700),
        narrowed(MatrixKeep::kFp8, 20, 96)}) {
    SCOPED_TRACE(::testing::Message()
                 << "format " << int(s.format) << " keep " << int(s.keep) << " k " << s.k);
    const int32_t rows = 6;
    const StoredMatrix stored = make_stored(random(), s.options(), s.n, s.k);
    const Floats x = normals(size_t(rows) * size_t(s.k));
    bind(rows);
    // The part of one rank: its columns of x and its slices.
    const auto part_of = [&](int32_t first, int32_t count) -> Floats {
      const int32_t k0 = slice_boundary(s.k, first), k1 = slice_boundary(s.k, first + count);
      const size_t n = size_t(rows) * size_t(s.n);
      if (k0 == k1) return Floats(n, 0.0f);  // nothing to load: an empty slice is +0
      const TestMatrix w = load_slices(ops(), stored, first, count);
      Floats cut;
      for (int32_t t = 0; t < rows; ++t)
        cut.insert(cut.end(), x.begin() + t * s.k + k0, x.begin() + t * s.k + k1);
      float* part = empty_floats(n);
      ops().linear_sliced(Stage::kMain, w.matrix, act(cut), part);
      return get(part, n);
    };
    const Floats whole = part_of(0, 4), low = part_of(0, 2), high = part_of(2, 2);
    const Floats q0 = part_of(0, 1), q1 = part_of(1, 1), q2 = part_of(2, 1), q3 = part_of(3, 1);
    expect_close(whole, product(load_all(ops(), stored), wide(x), rows), 12, "sliced");
    bool order_matters = false;
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(whole[i], low[i] + high[i]);
      EXPECT_EQ(whole[i], (q0[i] + q1[i]) + (q2[i] + q3[i]));
      order_matters |= whole[i] != ((q0[i] + q1[i]) + q2[i]) + q3[i];
    }
    EXPECT_TRUE(order_matters || s.k < 640) << "the control, another order of the sum, must differ";
  }
}

TEST_P(LinearTest, DecodedExl3IsTheMatrixItself) {
  const StoredMatrix stored = make_stored(
      random(), {.format = MatrixFormat::kExl3, .codebook = Codebook::k3Inst, .bits = 3}, 256, 384);
  const TestMatrix w = load_part(ops(), stored, 0, stored.k, {}, MatrixKeep::kDecoded);
  EXPECT_NE(w.matrix.spec.format, MatrixFormat::kExl3);
  EXPECT_EQ(w.matrix.spec.keep, MatrixKeep::kStored);
  const Floats x = normals(384 * 3);
  bind(3);
  Act* out = empty_act(256 * 3);
  ops().linear(Stage::kMain, {&w.matrix, 1}, act(x), out);
  expect_close(get(out, 256 * 3), product(w, wide(x), 3), 20, "decoded");
}

}  // namespace
}  // namespace firesteel::test
