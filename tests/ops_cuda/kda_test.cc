// KDA prompts in groups of tokens: cuts at and around the groups' edges, prompts and decode rows in one
// batch, convolutions and widths other than the published ones. Outputs and states are compared bit for bit.
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

struct Piece {
  int32_t rows, start, slot;
};

/// One sequence's inputs, and runs of it.
struct Layer {
  Layer(int32_t heads_, int32_t dim_, int32_t taps_, int32_t rows_)
      : heads(heads_), dim(dim_), taps(taps_), rows(rows_), all(static_cast<size_t>(heads_ * dim_)) {
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
  /// Batches one after the other; rows are taken in order. Slots start from zero.
  Result run(Side& side, const std::vector<std::vector<Piece>>& batches) {
    side.reset();
    KdaWeights w;
    w.heads = heads;
    w.dim = dim;
    w.taps = taps;
    w.conv = side.f32(conv);
    w.a_log = side.f32(a_log);
    w.dt_bias = side.f32(dt);
    w.o_norm = side.f32(o_norm);
    const size_t slot = side.ops().kda_slot_bytes(w);
    SlotPlane plane{side.take(4 * slot), slot};
    side.ops().zero(plane.base, 4 * slot);
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
  /// One sequence in pieces of the given sizes.
  Result cut(Side& side, const std::vector<int32_t>& sizes) {
    std::vector<std::vector<Piece>> batches;
    int32_t at = 0;
    for (const int32_t n : sizes) {
      batches.push_back({Piece{n, at, 0}});
      at += n;
    }
    return run(side, batches);
  }

  Random random;
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
  Layer alone = layer;
  for (auto [rows, n] : {std::pair{&alone.qkv, 3 * alone.all},
                         {&alone.f, alone.all},
                         {&alone.g, alone.all},
                         {&alone.b, static_cast<size_t>(3)}}) {
    const Floats second = slice_rows(*rows, 62, 17, n);
    std::copy(second.begin(), second.end(), rows->begin() + static_cast<std::ptrdiff_t>(40 * n));
  }
  const Layer::Result want = alone.cut(*cuda_side(), {57});
  EXPECT_EQ(mixed.state, want.state);
  expect_same_bits(slice_rows(mixed.out, 0, 40, layer.all), slice_rows(want.out, 0, 40, layer.all), "first");
  expect_same_bits(slice_rows(mixed.out, 62, 17, layer.all), slice_rows(want.out, 40, 17, layer.all),
                   "second");
}

/// (dim, taps)
class KdaShapes : public testing::TestWithParam<std::pair<int32_t, int32_t>> {};

TEST_P(KdaShapes, MatchTheDefinitionInAnyCut) {
  REQUIRE_CUDA();
  Layer layer(2, GetParam().first, GetParam().second, 45);
  const Layer::Result whole = layer.cut(*cuda_side(), {45});
  expect_close(whole.out, layer.cut(*cpu_side(), {45}).out, 5e-3, "kda");
  expect_same(layer.cut(*cuda_side(), {1, 2, 9, 16, 17}), whole, "in pieces");
}
INSTANTIATE_TEST_SUITE_P(Shapes, KdaShapes,
                         testing::Values(std::pair{128, 2}, std::pair{128, 7}, std::pair{64, 4},
                                         std::pair{64, 3}, std::pair{36, 4}, std::pair{22, 4},
                                         std::pair{22, 5}));

}  // namespace
}  // namespace firesteel::test
