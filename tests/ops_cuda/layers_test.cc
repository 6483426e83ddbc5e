// The CUDA backend's ops other than products, against the CPU backend, and their independence of the batch.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

using Floats = std::vector<float>;

/// Runs `op` on both backends; it returns the outputs, concatenated.
std::pair<Floats, Floats> on_both(const std::function<Floats(Side&)>& op) {
  Floats r[2];
  int i = 0;
  for (Side* side : {cpu_side(), cuda_side()}) r[i++] = op(*side);
  return {r[1], r[0]};
}

Floats slice_rows(const Floats& v, size_t first, size_t rows, size_t n) {
  return {v.begin() + static_cast<std::ptrdiff_t>(first * n),
          v.begin() + static_cast<std::ptrdiff_t>((first + rows) * n)};
}

TEST(Layers, EmbedAndMtpInput) {
  REQUIRE_CUDA();
  Random random;
  const int32_t hidden = 320, vocab = 97, rows = 21;
  for (const auto format : {MatrixFormat::kBf16, MatrixFormat::kF32}) {
    RawMatrix table = RawMatrix::make(random, format, vocab, hidden);
    const Floats h = bf16_normals(random, static_cast<size_t>(rows * hidden), 1.0);
    const Floats norm = random.normals(static_cast<size_t>(2 * hidden), 1.0);
    const auto [got, want] = on_both([&](Side& side) {
      TestBatch batch;
      batch.add(rows - 4, 0, 0);
      batch.add(4, 9, 1);
      side.ops().bind(batch.view());
      const Matrix m = side.load(table);
      const size_t n = static_cast<size_t>(rows * hidden);
      Act* streams = side.poisoned_act(4 * n);
      Act* out = side.poisoned_act(2 * n);
      const float* w = side.f32(norm);
      side.ops().embed(Stage::kMain, m, streams);
      side.ops().mtp_input(Stage::kMain, m, w, w + hidden, 1e-5f, side.act(h), out);
      side.finish();
      Floats all = side.read_act(streams, 4 * n);
      const Floats more = side.read_act(out, 2 * n);
      all.insert(all.end(), more.begin(), more.end());
      return all;
    });
    expect_close(got, want, 4e-3, "embed and mtp_input");
  }
}

TEST(Layers, HyperConnections) {
  REQUIRE_CUDA();
  for (const int32_t hidden : {200, 256, 1024, 4096, 5120}) {
    Random random;
    RawMatrix fn = RawMatrix::make(random, MatrixFormat::kBf16, 24, 4 * hidden);
    const Floats base = random.normals(24, 1.0), scale = random.normals(3, 1.0),
                 norm = random.normals(static_cast<size_t>(hidden), 1.0);
    const size_t all = hidden == 4096 ? 270 : 70;  // parts of these go another way
    const auto h = static_cast<size_t>(hidden);
    const Floats streams = bf16_normals(random, all * 4 * h, 1.3), y = random.normals(all * h, 1.0);
    const auto run = [&](Side& side, size_t first, size_t rows) {
      TestBatch batch;
      batch.add(static_cast<int32_t>(rows), 0, 0);
      side.ops().bind(batch.view());
      HyperSite w;
      w.fn = side.load(fn);
      w.base = side.f32(base);
      w.scale = side.f32(scale);
      w.norm = side.f32(norm);
      Act* s = side.act(slice_rows(streams, first, rows, 4 * h));
      Act* x = side.poisoned_act(rows * h);
      float* post = side.poisoned(rows * 4);
      float* comb = side.poisoned(rows * 16);
      side.ops().hyper_pre(Stage::kMain, w, s, x, post, comb);
      side.ops().hyper_post(Stage::kMain, side.f32(slice_rows(y, first, rows, h)), post, comb, hidden, s);
      side.finish();
      Floats out[4] = {side.read_act(x, rows * h), side.read(post, rows * 4), side.read(comb, rows * 16),
                       side.read_act(s, rows * 4 * h)};
      return std::vector<Floats>(out, out + 4);
    };
    const auto want = run(*cpu_side(), 0, all), got = run(*cuda_side(), 0, all);
    expect_close(got[0], want[0], 4e-3, "x");
    expect_close(got[1], want[1], 3e-6, "post");
    expect_close(got[2], want[2], 3e-6, "comb");
    expect_close(got[3], want[3], 4e-3, "streams");
    const size_t width[4] = {h, 4, 16, 4 * h};
    for (const auto& [first, rows] : {std::pair<size_t, size_t>{0, 1}, {5, 8}, {30, 33}}) {
      const auto part = run(*cuda_side(), first, rows);
      for (size_t i = 0; i < 4; ++i)
        expect_same_bits(part[i], slice_rows(got[i], first, rows, width[i]), "hyper rows");
    }
    // The end of one site and the start of the next together: the bits of the two alone.
    for (const int32_t rows : {1, 7, 70, 1100}) {
      const auto n = static_cast<size_t>(rows);
      const Floats many = bf16_normals(random, n * 4 * h, 1.3), more = random.normals(n * h, 1.0);
      const auto next = [&](Side& side, bool together) {
        side.reset();
        TestBatch batch;
        batch.add(rows, 0, 0);
        side.ops().bind(batch.view());
        HyperSite w;
        w.fn = side.load(fn);
        w.base = side.f32(base);
        w.scale = side.f32(scale);
        w.norm = side.f32(norm);
        Act* s = side.act(many);
        Act* x = side.poisoned_act(n * h);
        float* part = side.f32(more);
        float* post = side.poisoned(n * 4);
        float* comb = side.poisoned(n * 16);
        side.ops().hyper_pre(Stage::kMain, w, s, x, post, comb);
        if (together) {
          side.ops().hyper_next(Stage::kMain, w, part, s, x, post, comb);
        } else {
          side.ops().hyper_post(Stage::kMain, part, post, comb, hidden, s);
          side.ops().hyper_pre(Stage::kMain, w, s, x, post, comb);
        }
        side.finish();
        return std::vector<Floats>{side.read_act(x, n * h), side.read(post, n * 4), side.read(comb, n * 16),
                                   side.read_act(s, n * 4 * h)};
      };
      const auto one = next(*cuda_side(), true), two = next(*cuda_side(), false);
      for (size_t i = 0; i < 4; ++i) expect_same_bits(one[i], two[i], "hyper_next");
    }
  }
}

TEST(Layers, NormsGluAddGatherHead) {
  REQUIRE_CUDA();
  Random random;
  const int32_t rows = 37, n = 1536, hidden = 512;
  const Floats x = bf16_normals(random, rows * (n + 64), 1.0), w = random.normals(n, 1.0);
  const Floats gate_up = bf16_normals(random, rows * 2 * n, 6.0), y = random.normals(rows * n, 1.0);
  const Floats streams = bf16_normals(random, rows * 4 * hidden, 1.0);
  const std::vector<int32_t> list = {3, 0, 36, 36, 17};
  const auto [got, want] = on_both([&](Side& side) {
    TestBatch batch;
    batch.add(rows, 0, 0);
    side.ops().bind(batch.view());
    const float* weight = side.f32(w);
    Act* normed = side.poisoned_act(rows * n);
    side.ops().rms_norm(Stage::kMain, weight, 1e-5f, n, side.act(x), n + 64, normed);
    Act* glu = side.poisoned_act(rows * n);
    side.ops().glu(Stage::kMain, side.act(gate_up), n, 3.0f, glu);
    Act* sum = side.act(Floats(x.begin(), x.begin() + rows * n));
    side.ops().add(Stage::kMain, sum, side.f32(y), rows * n);
    Act* head = side.poisoned_act(list.size() * hidden);
    side.ops().head_input(Stage::kMain, side.act(streams), list, hidden, weight, 1e-5f, head);
    Act* picked = side.poisoned_act(list.size() * hidden);
    side.ops().gather(Stage::kMain, side.act(streams), list, hidden, picked);
    side.finish();
    Floats all;
    for (const auto& [p, count] : {std::pair<Act*, size_t>{normed, rows * n},
                                   {glu, rows * n},
                                   {sum, rows * n},
                                   {head, list.size() * hidden},
                                   {picked, list.size() * hidden}}) {
      const Floats v = side.read_act(p, count);
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  });
  expect_close(got, want, 4e-3, "row ops");
}

TEST(Layers, Router) {
  REQUIRE_CUDA();
  struct Case {
    int32_t experts, top_k, groups, top_groups, hidden, rows;
  };
  // The last has tiles for every multiprocessor; prompts with fewer go unit by unit.
  for (const Case c :
       {Case{288, 8, 1, 1, 512, 60}, Case{288, 8, 1, 1, 4096, 60}, Case{33, 33, 1, 1, 1088, 60},
        Case{8, 2, 2, 1, 512, 60}, Case{64, 6, 8, 3, 512, 60}, Case{400, 40, 1, 1, 1088, 2300}}) {
    Random random;
    const int32_t rows = c.rows, hidden = c.hidden;
    RawMatrix weight = RawMatrix::make(random, MatrixFormat::kBf16, c.experts, hidden);
    const Floats bias = random.normals(static_cast<size_t>(c.experts), 0.3),
                 x = bf16_normals(random, static_cast<size_t>(rows * hidden), 1.0);
    const auto run = [&](Side& side, size_t first, int32_t count, std::vector<int32_t>& idx,
                         Floats& weights) {
      TestBatch batch;
      batch.add(count, 0, 0);
      side.ops().bind(batch.view());
      RouterWeights w;
      w.weight = side.load(weight);
      w.bias = side.f32(bias);
      w.experts = c.experts;
      w.top_k = c.top_k;
      w.groups = c.groups;
      w.top_groups = c.top_groups;
      const auto picks = static_cast<size_t>(count * c.top_k);
      auto* ids = reinterpret_cast<int32_t*>(side.poisoned(picks));
      float* out = side.poisoned(picks);
      side.ops().router(Stage::kMain, w, side.act(slice_rows(x, first, static_cast<size_t>(count), hidden)),
                        ids, out);
      side.finish();
      idx = side.read(ids, picks);
      weights = side.read(out, picks);
    };
    std::vector<int32_t> idx[2];
    Floats weights[2];
    run(*cpu_side(), 0, rows, idx[0], weights[0]);
    run(*cuda_side(), 0, rows, idx[1], weights[1]);
    for (const int32_t count : {1, 5, 8, 30, 50}) {
      std::vector<int32_t> ids;
      Floats some;
      run(*cuda_side(), 7, count, ids, some);
      const auto at = static_cast<size_t>(7 * c.top_k), picks = static_cast<size_t>(count * c.top_k);
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), idx[1].begin() + static_cast<std::ptrdiff_t>(at)));
      expect_same_bits(some, slice_rows(weights[1], at, picks, 1), "router rows");
    }
    // Scores of random rows are not closer than fp32 rounding more than once in thousands of rows.
    size_t different = 0;
    for (size_t j = 0; j < idx[0].size(); ++j) different += idx[0][j] != idx[1][j];
    EXPECT_LE(different, 2u + static_cast<size_t>(rows) / 60) << c.experts << " experts";
    if (different == 0) expect_close(weights[1], weights[0], 3e-6, "router weights");
  }
}

}  // namespace
}  // namespace firesteel::test
