// KDA against the CPU backend, and its independence of cuts and of the batch: cuts at and around the edges of
// groups and pieces, prompts and decode rows in one batch, convolutions and widths other than the published
// ones. Outputs and states are compared bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

using Floats = std::vector<float>;

Floats slice_rows(const Floats& v, int32_t first, int32_t rows, size_t n) {
  const auto at = static_cast<std::ptrdiff_t>(static_cast<size_t>(first) * n);
  return {v.begin() + at, v.begin() + at + static_cast<std::ptrdiff_t>(static_cast<size_t>(rows) * n)};
}

constexpr int32_t kSlots = 48;

struct Piece {
  int32_t rows, start, slot;
};

/// One sequence's inputs, and runs of it.
struct Layer {
  Layer(int32_t heads_, int32_t dim_, int32_t taps_, int32_t rows_, float bound_ = -5.0f)
      : bound(bound_),
        heads(heads_),
        dim(dim_),
        taps(taps_),
        rows(rows_),
        all(static_cast<size_t>(heads_ * dim_)) {
    const auto count = static_cast<size_t>(rows);
    qkv = bf16_normals(random, count * 3 * all, 1.0);
    f = bf16_normals(random, count * all, 1.0);
    g = bf16_normals(random, count * all, 1.0);
    b = bf16_normals(random, count * static_cast<size_t>(heads), 1.0);
    conv = random.normals(3 * all * static_cast<size_t>(taps), 0.5);
    a_log = random.normals(static_cast<size_t>(heads), 0.5);
    dt = random.normals(all, 1.0);
    o_norm = random.normals(static_cast<size_t>(dim), 1.0);
  }

  struct Result {
    Floats out;
    std::vector<int32_t> state;  // of slot 0
  };
  KdaWeights weights(Side& side) const {
    KdaWeights w;
    w.heads = heads;
    w.dim = dim;
    w.taps = taps;
    w.conv = side.f32(conv);
    w.a_log = side.f32(a_log);
    w.dt_bias = side.f32(dt);
    w.o_norm = side.f32(o_norm);
    w.lower_bound = bound;
    return w;
  }
  /// Batches one after the other; rows are taken in order. Slots start from zero.
  Result run(Side& side, const std::vector<std::vector<Piece>>& batches) const {
    side.reset();
    const KdaWeights w = weights(side);
    const size_t slot = side.ops().kda_slot_bytes(w);
    SlotPlane plane{side.take(kSlots * slot), slot};
    side.ops().zero(plane.base, kSlots * slot);
    Result r;
    int32_t at = 0;
    for (const std::vector<Piece>& pieces : batches) {
      TestBatch batch;
      for (const Piece& piece : pieces) batch.add(piece.rows, piece.start, piece.slot);
      side.ops().bind(batch.view());
      const int32_t count = batch.rows;
      Act* y = side.poisoned_act(static_cast<size_t>(count) * all);
      side.ops().kda(Stage::kMain, w, side.act(slice_rows(qkv, at, count, 3 * all)),
                     side.act(slice_rows(f, at, count, all)),
                     side.act(slice_rows(b, at, count, static_cast<size_t>(heads))),
                     side.act(slice_rows(g, at, count, all)), plane, y);
      side.finish();
      const Floats v = side.read_act(y, static_cast<size_t>(count) * all);
      r.out.insert(r.out.end(), v.begin(), v.end());
      at += count;
    }
    r.state = side.read(reinterpret_cast<const int32_t*>(plane.base), slot / sizeof(int32_t));
    return r;
  }
  /// The same layer with other rows: `parts` (first, rows), one after the other.
  Layer with_rows(const std::vector<std::pair<int32_t, int32_t>>& parts) const {
    Layer other = *this;
    other.rows = 0;
    for (Floats* v : {&other.qkv, &other.f, &other.g, &other.b}) v->clear();
    for (const auto& [first, count] : parts) {
      other.rows += count;
      for (const auto& [to, from, n] : {std::tuple{&other.qkv, &qkv, 3 * all},
                                        {&other.f, &f, all},
                                        {&other.g, &g, all},
                                        {&other.b, &b, static_cast<size_t>(heads)}}) {
        const Floats some = slice_rows(*from, first, count, n);
        to->insert(to->end(), some.begin(), some.end());
      }
    }
    return other;
  }
  /// One sequence in pieces of the given sizes.
  Result cut(Side& side, const std::vector<int32_t>& sizes) const {
    std::vector<std::vector<Piece>> batches;
    int32_t at = 0;
    for (const int32_t n : sizes) {
      batches.push_back({Piece{n, at, 0}});
      at += n;
    }
    return run(side, batches);
  }

  Random random;
  float bound;
  int32_t heads, dim, taps, rows;
  size_t all;
  Floats qkv, f, g, b, conv, a_log, dt, o_norm;
};

void expect_same(const Layer::Result& got, const Layer::Result& want, const char* what) {
  expect_same_bits(got.out, want.out, what);
  EXPECT_EQ(got.state, want.state) << what;
}

TEST(KdaPrompt, DoesNotDependOnCutsAroundGroups) {
  REQUIRE_CUDA();
  Layer layer(2, 128, 4, 203);
  const Layer::Result whole = layer.cut(*cuda_side(), {203});
  expect_close(whole.out, layer.cut(*cpu_side(), {203}).out, 5e-3, "a prompt");
  // More than 8 rows go through the prompt kernels, fewer through the one for decode.
  expect_same(layer.cut(*cuda_side(), {9, 15, 16, 17, 23, 24, 25, 31, 32, 11}), whole, "at groups' edges");
  expect_same(layer.cut(*cuda_side(), {1, 7, 8, 9, 2, 176}), whole, "decode, then prompt");
  expect_same(layer.cut(*cuda_side(), std::vector<int32_t>(203, 1)), whole, "row by row");
  // The comparison sees one changed value, and only from its row on.
  float& changed = layer.qkv[static_cast<size_t>(100) * 3 * layer.all + 5];
  changed = -changed;
  const Layer::Result other = layer.cut(*cuda_side(), {203});
  EXPECT_TRUE(same_bits(slice_rows(other.out, 0, 100, layer.all), slice_rows(whole.out, 0, 100, layer.all)));
  EXPECT_FALSE(same_bits(slice_rows(other.out, 100, 1, layer.all), slice_rows(whole.out, 100, 1, layer.all)));
  // A query leaves no trace in the state, the last row's value does.
  float& late = layer.qkv[static_cast<size_t>(202) * 3 * layer.all + 2 * layer.all + 5];
  late = -late;
  EXPECT_NE(layer.cut(*cuda_side(), {203}).state, whole.state);
}

TEST(KdaPrompt, PromptsAndDecodeRowsShareABatch) {
  REQUIRE_CUDA();
  Layer layer(3, 128, 4, 140);
  const Layer::Result mixed =
      layer.run(*cuda_side(), {{{40, 0, 0}, {1, 0, 1}, {21, 0, 2}}, {{17, 40, 0}, {3, 1, 1}, {58, 21, 2}}});
  // The rows of the sequence of slot 0, alone.
  const Layer::Result want = layer.with_rows({{0, 40}, {62, 17}}).cut(*cuda_side(), {57});
  EXPECT_EQ(mixed.state, want.state);
  expect_same_bits(slice_rows(mixed.out, 0, 40, layer.all), slice_rows(want.out, 0, 40, layer.all), "first");
  expect_same_bits(slice_rows(mixed.out, 62, 17, layer.all), slice_rows(want.out, 40, 17, layer.all),
                   "second");
}

/// Several sequences in one batch are what each is alone.
TEST(KdaBatch, SegmentsDoNotMix) {
  REQUIRE_CUDA();
  Layer layer(2, 128, 4, 46);
  const Layer::Result whole = layer.run(*cuda_side(), {{{5, 0, 3}, {1, 0, 2}, {40, 0, 1}}});
  int32_t first = 0;
  for (const int32_t count : {5, 1, 40}) {
    const Layer alone = layer.with_rows({{first, count}});
    expect_same_bits(alone.cut(*cuda_side(), {count}).out, slice_rows(whole.out, first, count, layer.all),
                     "a segment alone");
    first += count;
  }
}

/// More blocks than any GPU has multiprocessors.
TEST(KdaPrompt, ManyPromptsInABatch) {
  REQUIRE_CUDA();
  Layer layer(3, 128, 4, kSlots * 13);
  std::vector<Piece> pieces;
  for (int32_t i = 0; i < kSlots; ++i) pieces.push_back({13, 0, kSlots - 1 - i});
  const Layer::Result whole = layer.run(*cuda_side(), {pieces});
  for (const int32_t i : {0, 20, kSlots - 1}) {
    const Layer::Result alone = layer.with_rows({{13 * i, 13}}).cut(*cuda_side(), {13});
    expect_same_bits(slice_rows(whole.out, 13 * i, 13, layer.all), alone.out, "one of many prompts");
    if (i == kSlots - 1) {
      EXPECT_EQ(whole.state, alone.state);
    }
  }
}

/// More rows than are prepared at a time.
TEST(KdaPrompt, PiecesOfALongBatch) {
  REQUIRE_CUDA();
  Layer layer(2, 128, 4, 2306);
  // The second segment has one row in the first piece, so that the next ones need the history.
  const std::vector<int32_t> counts = {2047, 40, 213};
  const Layer::Result whole =
      layer.run(*cuda_side(), {{{2047, 0, 1}, {40, 0, 0}, {213, 0, 2}}, {{1, 2047, 1}, {5, 40, 0}}});
  int32_t first = 0;
  for (const int32_t count : counts) {
    const Layer alone = layer.with_rows({{first, count}});
    std::vector<int32_t> sizes(static_cast<size_t>(count / 50), 50);
    if (count % 50 != 0) sizes.push_back(count % 50);
    expect_same_bits(slice_rows(whole.out, first, count, layer.all), alone.cut(*cuda_side(), sizes).out,
                     "a segment in a long batch");
    first += count;
  }
  const Layer::Result second = layer.with_rows({{2047, 40}, {2301, 5}}).cut(*cuda_side(), {40, 5});
  expect_same_bits(slice_rows(whole.out, 2301, 5, layer.all), slice_rows(second.out, 40, 5, layer.all), "on");
  EXPECT_EQ(whole.state, second.state);
}

struct Shape {
  int32_t dim, taps;
  float bound;
};
class KdaShapes : public testing::TestWithParam<Shape> {};

TEST_P(KdaShapes, MatchTheDefinitionInAnyCut) {
  REQUIRE_CUDA();
  Layer layer(3, GetParam().dim, GetParam().taps, 61, GetParam().bound);
  const Layer::Result whole = layer.cut(*cuda_side(), {61});
  expect_close(whole.out, layer.cut(*cpu_side(), {61}).out, 5e-3, "kda");
  expect_same(layer.cut(*cuda_side(), {1, 2, 1, 3, 16, 17, 21}), whole, "in pieces");
  expect_same(layer.cut(*cuda_side(), std::vector<int32_t>(61, 1)), whole, "row by row");
}
INSTANTIATE_TEST_SUITE_P(Shapes, KdaShapes,
                         testing::Values(Shape{128, 4, kNan}, Shape{128, 4, -5.0f}, Shape{64, 4, kNan},
                                         Shape{64, 4, -5.0f}, Shape{40, 4, kNan}, Shape{40, 4, -5.0f},
                                         Shape{128, 2, -5.0f}, Shape{128, 7, -5.0f}, Shape{64, 3, -5.0f},
                                         Shape{36, 4, -5.0f}, Shape{22, 4, -5.0f}, Shape{22, 5, -5.0f}));

}  // namespace
}  // namespace firesteel::test
