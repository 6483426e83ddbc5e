// Operations on single rows: embedding, norms, the gated unit, head and MTP inputs, copies, caches' appends.
#include <cmath>

#include "harness.h"

namespace firesteel::test {
namespace {

class RowsTest : public OpsTest {};
FS_FOR_EACH_BACKEND(RowsTest);

TEST_P(RowsTest, EmbedCopiesTheRowIntoFourStreams) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kBf16, MatrixFormat::kFp8Block}) {
    const int32_t hidden = 45, rows = 11;
    const StoredMatrix stored = make_stored(random(), {.format = format}, 50, hidden);
    const TestMatrix table = load_all(ops(), stored);
    tokens_.resize(rows);
    for (int32_t& t : tokens_) t = below(50);
    bind(rows);
    Act* streams = empty_act(rows * 4 * hidden);
    ops().embed(Stage::kMain, table.matrix, streams);
    Doubles expected;
    for (int32_t t : tokens_) {
      for (int s = 0; s < 4; ++s) {
        for (int32_t i = 0; i < hidden; ++i) expected.push_back(table.at(t, i));
      }
    }
    expect_close(get(streams, expected.size()), expected, 1, "embed");
  }
}

TEST_P(RowsTest, RmsNormReadsStridedRows) {
  for (int32_t n : {1, 16, 37, 512}) {
    const int32_t rows = 9, ldx = n + 5;
    const Floats x = normals(rows * ldx), w = normals(n, 1, 0.2);
    bind(rows);
    Act* y = empty_act(rows * n);
    ops().rms_norm(Stage::kMain, floats(w), 1e-5f, n, act(x), ldx, y);
    Doubles packed;
    for (int32_t r = 0; r < rows; ++r)
      packed.insert(packed.end(), x.begin() + r * ldx, x.begin() + r * ldx + n);
    expect_close(get(y, rows * n), rms_norm(packed, w, 1e-5), 8, "rms_norm");
  }
}

TEST_P(RowsTest, RmsNormEpsilonIsInsideTheRoot) {
  const Floats x(64, 1e-3f), w(64, 1.0f);
  bind(1);
  Act* y = empty_act(64);
  ops().rms_norm(Stage::kMain, floats(w), 1e-5f, 64, act(x), 64, y);
  expect_close(get(y, 64), Doubles(64, 1e-3 / std::sqrt(1e-6 + 1e-5)), 8, "rms_norm at small scale");
}

TEST_P(RowsTest, Trap16GluClampsBeforeSilu) {
  // gate -20 is not clamped from below, up 20 is; gate 50 is cut to 10.
  const Floats gate_up = {-20, 50, 3, -0.5f, 1, 20, 20, -40, 7, 0.25f};
  bind(1);
  Act* out = empty_act(5);
  ops().glu(Stage::kMain, act(gate_up), 5, 10.0f, out);
  expect_close(get(out, 5), {silu(-20) * 10, silu(10) * 10, silu(3) * -10, silu(-0.5) * 7, silu(1) * 0.25}, 8,
               "glu");
}

TEST_P(RowsTest, GluMatchesFloat64AndPassesNaN) {
  const int32_t rows = 6, width = 53;
  Floats gate_up = normals(rows * 2 * width, 0, 2);
  gate_up[3] = NAN;
  gate_up[width + 7] = NAN;
  bind(rows);
  Act* out = empty_act(rows * width);
  ops().glu(Stage::kMain, act(gate_up), width, 1.5f, out);
  Doubles expected;
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t i = 0; i < width; ++i) {
      const double g = gate_up[size_t(r * 2 * width + i)], u = gate_up[size_t(r * 2 * width + width + i)];
      const bool bad = std::isnan(g) || std::isnan(u);
      expected.push_back(bad ? NAN : silu(std::min(g, 1.5)) * std::max(-1.5, std::min(u, 1.5)));
    }
  }
  expect_close(get(out, expected.size()), expected, 8, "glu");
}

TEST_P(RowsTest, Trap14HeadInputIsTheMeanOfTheStreams) {
  // At the scale of ε a sum in place of the mean would show: RMS 1e-3 against ε 1e-5.
  for (double size : {1.0, 1e-3}) {
    const int32_t rows = 7, hidden = 43;
    const Floats streams = normals(rows * 4 * hidden, 0, size), w = normals(hidden, 1, 0.2);
    const std::vector<int32_t> wanted = {0, 3, 6};
    bind(rows);
    Act* h = empty_act(wanted.size() * hidden);
    ops().head_input(Stage::kMain, act(streams), wanted, hidden, floats(w), 1e-5f, h);
    Doubles mean;
    for (int32_t r : wanted) {
      for (int32_t i = 0; i < hidden; ++i) {
        double s = 0;
        for (int32_t j = 0; j < 4; ++j) s += streams[size_t((r * 4 + j) * hidden + i)];
        mean.push_back(s / 4);
      }
    }
    expect_close(get(h, mean.size()), rms_norm(mean, w, 1e-5), 8, "head_input");
  }
}

TEST_P(RowsTest, GatherAndAdd) {
  const int32_t rows = 5, n = 19;
  const Floats x = normals(rows * n), y = normals(2 * n);
  const std::vector<int32_t> wanted = {4, 1};
  bind(rows);
  Act* out = empty_act(2 * n);
  ops().gather(Stage::kMain, act(x), wanted, n, out);
  Doubles expected;
  for (int32_t r : wanted) expected.insert(expected.end(), x.begin() + r * n, x.begin() + (r + 1) * n);
  expect_close(get(out, 2 * n), expected, 1, "gather");
  ops().add(Stage::kMain, out, floats(y), 2 * n);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += y[i];
  expect_close(get(out, 2 * n), expected, 3, "add");
}

TEST_P(RowsTest, Trap36MtpInputPutsTheEmbeddingFirstAndZeroesPositionZero) {
  const int32_t hidden = 40;
  const TestMatrix table =
      load_all(ops(), make_stored(random(), {.format = MatrixFormat::kBf16}, 20, hidden));
  const Floats enorm = normals(hidden, 1, 0.2), hnorm = normals(hidden, 1, 0.2);
  tokens_ = {3, 19, 7, 2, 5};
  bind({{0, 3, 0, 0, 0}, {3, 2, 9, 1, 0}}, 1);
  const Floats h = normals(5 * hidden);
  Act* out = empty_act(5 * 2 * hidden);
  ops().mtp_input(Stage::kMain, table.matrix, floats(enorm), floats(hnorm), 1e-5f, act(h), out);
  const Doubles hn = rms_norm(wide(h), hnorm, 1e-5);
  Doubles expected;
  for (int32_t r = 0; r < 5; ++r) {
    Doubles e(size_t(hidden), 0.0);
    if (r != 0) {
      for (int32_t i = 0; i < hidden; ++i) e[size_t(i)] = table.at(tokens_[size_t(r)], i);
      e = rms_norm(e, enorm, 1e-5);
    }
    expected.insert(expected.end(), e.begin(), e.end());
    expected.insert(expected.end(), hn.begin() + r * hidden, hn.begin() + (r + 1) * hidden);
  }
  expect_close(get(out, expected.size()), expected, 8, "mtp_input");
}

}  // namespace
}  // namespace firesteel::test
