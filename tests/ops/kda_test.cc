// The KDA layer between its projections, against float64 and the traps of spec/model.md section 6.
#include <cmath>

#include "harness.h"

namespace firesteel::test {
namespace {

struct KdaCase {
  int32_t heads, dim, taps;
  float bound;
};

class KdaTest : public OpsTest {
 protected:
  struct Layer {
    KdaWeights w;
    Floats conv, a_log, dt_bias, o_norm;
  };
  Layer make_layer(const KdaCase& c) {
    Layer l;
    const size_t all = size_t(c.heads * c.dim);
    l.conv = normals(3 * all * size_t(c.taps), 0, 0.5);
    l.a_log = normals(size_t(c.heads), 0, 0.5);
    l.dt_bias = normals(all, -1, 1);
    l.o_norm = normals(size_t(c.dim), 1, 0.2);
    l.w.heads = c.heads;
    l.w.dim = c.dim;
    l.w.taps = c.taps;
    l.w.lower_bound = c.bound;
    place(l);
    return l;
  }
  void place(Layer& l) {
    l.w.conv = floats(l.conv);
    l.w.a_log = floats(l.a_log);
    l.w.dt_bias = floats(l.dt_bias);
    l.w.o_norm = floats(l.o_norm);
  }
  struct Inputs {
    Floats qkv, f, b, g;
  };
  Inputs make_inputs(const KdaCase& c, size_t rows) {
    const size_t all = size_t(c.heads * c.dim);
    return {normals(rows * 3 * all), normals(rows * all), normals(rows * size_t(c.heads)),
            normals(rows * all)};
  }
  struct State {
    Doubles history, s;  // [taps-1, 3·heads·dim], [heads, dim, dim]
  };
  static State zero_state(const KdaCase& c) {
    return {Doubles(size_t((c.taps - 1) * 3 * c.heads * c.dim)), Doubles(size_t(c.heads * c.dim * c.dim))};
  }

  /// One row of the definition.
  static void step(const Layer& l, const KdaCase& c, const double* u, const double* f, const double* b,
                   const double* g, State& state, Doubles& out) {
    const size_t H = size_t(c.heads), d = size_t(c.dim), all = H * d, channels = 3 * all,
                 taps = size_t(c.taps);
    Doubles conv(channels);
    for (size_t ch = 0; ch < channels; ++ch) {
      double s = 0;
      for (size_t m = 0; m < taps; ++m) {
        const double v = m + 1 == taps ? u[ch] : state.history[m * channels + ch];
        s += l.conv[ch * taps + m] * v;
      }
      conv[ch] = silu(s);
    }
    state.history.insert(state.history.end(), u, u + channels);
    state.history.erase(state.history.begin(), state.history.begin() + long(channels));
    for (size_t h = 0; h < H; ++h) {
      const double *q = &conv[h * d], *k = &conv[all + h * d], *v = &conv[2 * all + h * d];
      double qq = 0, kk = 0;
      for (size_t i = 0; i < d; ++i) {
        qq += q[i] * q[i];
        kk += k[i] * k[i];
      }
      const double qs = 1 / std::sqrt(qq + 1e-6) / std::sqrt(double(d)), ks = 1 / std::sqrt(kk + 1e-6);
      const double beta = sigmoid(b[h]), rate = std::exp(double(l.a_log[h]));
      double* S = &state.s[h * d * d];
      Doubles o(d);
      for (size_t i = 0; i < d; ++i) {
        const double a = f[h * d + i] + l.dt_bias[h * d + i];
        const double gate = std::isnan(c.bound) ? -rate * (a > 20 ? a : std::log1p(std::exp(a)))
                                                : c.bound * sigmoid(rate * a);
        for (size_t j = 0; j < d; ++j) S[i * d + j] *= std::exp(gate);
      }
      for (size_t j = 0; j < d; ++j) {
        double seen = 0;
        for (size_t i = 0; i < d; ++i) seen += S[i * d + j] * k[i] * ks;
        const double delta = beta * (v[j] - seen);
        for (size_t i = 0; i < d; ++i) S[i * d + j] += k[i] * ks * delta;
        for (size_t i = 0; i < d; ++i) o[j] += S[i * d + j] * q[i] * qs;
      }
      double mean = 0;
      for (double x : o) mean += x * x;
      const double r = 1 / std::sqrt(mean / double(d) + double(l.w.rms_eps));
      for (size_t j = 0; j < d; ++j) out.push_back(l.o_norm[j] * o[j] * r * sigmoid(g[h * d + j]));
    }
  }
  static Doubles expected(const Layer& l, const KdaCase& c, const Inputs& in, size_t rows, State& state) {
    const size_t all = size_t(c.heads * c.dim);
    const Doubles u = wide(in.qkv), f = wide(in.f), b = wide(in.b), g = wide(in.g);
    Doubles out;
    for (size_t t = 0; t < rows; ++t) {
      step(l, c, &u[t * 3 * all], &f[t * all], &b[t * size_t(c.heads)], &g[t * all], state, out);
    }
    return out;
  }
  SlotPlane slots(const Layer& l, int32_t count) {
    const size_t bytes = ops().kda_slot_bytes(l.w);
    std::byte* base = buffer(bytes * size_t(count)).data();
    ops().zero(base, bytes * size_t(count));
    return {base, bytes};
  }
  Floats run(const Layer& l, const KdaCase& c, const Inputs& in, size_t rows, SlotPlane plane) {
    Act* out = empty_act(rows * size_t(c.heads * c.dim));
    ops().kda(Stage::kMain, l.w, act(in.qkv), act(in.f), act(in.b), act(in.g), plane, out);
    return get(out, rows * size_t(c.heads * c.dim));
  }
};
FS_FOR_EACH_BACKEND(KdaTest);

TEST_P(KdaTest, MatchesFloat64) {
  for (const KdaCase& c : {KdaCase{3, 16, 4, -5}, KdaCase{2, 24, 4, -5}, KdaCase{1, 5, 2, -5},
                           KdaCase{2, 128, 4, -5}, KdaCase{2, 48, 3, NAN}}) {
    SCOPED_TRACE(::testing::Message() << "dim " << c.dim << " taps " << c.taps << " bound " << c.bound);
    for (size_t rows : {1, 2, 37}) {
      const Layer l = make_layer(c);
      const Inputs in = make_inputs(c, rows);
      bind(int32_t(rows));
      State state = zero_state(c);
      const Doubles want = expected(l, c, in, rows, state);
      const SlotPlane plane = slots(l, 1);
      expect_close(run(l, c, in, rows, plane), want, 100, "kda");
      Floats slot(ops().kda_slot_bytes(l.w) / 4);
      if (GetParam().name != "cpu") continue;  // the slot's element types are the backend's
      ops().download(slot.data(), plane.base, slot.size() * 4);
      const long history = long(state.history.size());
      expect_close(Floats(slot.begin(), slot.begin() + history), state.history, 0, "history: raw rows");
      expect_close(Floats(slot.begin() + history, slot.end()), state.s, 100, "state");
    }
  }
}

TEST_P(KdaTest, SegmentsUseTheirOwnSlots) {
  const KdaCase c{2, 16, 4, -5};
  const Layer l = make_layer(c);
  const SlotPlane plane = slots(l, 4);
  State a = zero_state(c), b = zero_state(c);
  for (int round = 0; round < 3; ++round) {
    const Inputs in = make_inputs(c, 5);
    bind({{0, 2, 2 * round, 3, 0}, {2, 3, 3 * round, 1, 0}}, 1);
    const auto cut = [&](const Floats& x, size_t width, size_t first, size_t rows) {
      return Floats(x.begin() + long(first * width), x.begin() + long((first + rows) * width));
    };
    const auto rows_of = [&](size_t first, size_t rows) {
      return Inputs{cut(in.qkv, 96, first, rows), cut(in.f, 32, first, rows), cut(in.b, 2, first, rows),
                    cut(in.g, 32, first, rows)};
    };
    Doubles want = expected(l, c, rows_of(0, 2), 2, a);
    const Doubles second = expected(l, c, rows_of(2, 3), 3, b);
    want.insert(want.end(), second.begin(), second.end());
    expect_close(run(l, c, in, 5, plane), want, 100, "two segments");
  }
}

TEST_P(KdaTest, Trap03GateIsBoundTimesSigmoid) {
  // a = 0: g = -2.5 whatever A_log; one write at t = 0, read at t = 1 after one decay.
  const KdaCase c{2, 16, 1, -5};
  Layer l = make_layer(c);
  l.a_log = {-3, 2};
  l.dt_bias.assign(32, 0.0f);
  l.conv.assign(96, 1.0f);
  l.o_norm.assign(16, 1.0f);
  l.w.rms_eps = 1.0f;  // keeps the norm from hiding the size of o
  place(l);
  Inputs in{Floats(2 * 96, 0.0f), Floats(2 * 32, 0.0f), Floats(4, 0.0f), Floats(2 * 32, 0.0f)};
  for (size_t h = 0; h < 2; ++h) {
    for (size_t i = 0; i < 16; ++i) {
      in.qkv[96 + h * 16 + i] = 1;  // q of row 1
      in.qkv[32 + h * 16 + i] = 1;  // k and v of row 0
      in.qkv[64 + h * 16 + i] = 1;
    }
  }
  in.b = {1, 1, -40, -40};  // row 1 writes nothing
  bind(2);
  const Floats got = run(l, c, in, 2, slots(l, 1));
  // k̄ = 1/4 each, q̄ = 1/16 each, δ = β·SiLU(1): o = e^-2.5 · 16·(1/64)·δ.
  const double o = std::exp(-2.5) * 0.25 * sigmoid(1) * silu(1);
  expect_close(Floats(got.begin() + 32, got.end()), Doubles(32, o / std::sqrt(o * o + 1) * 0.5), 60, "row 1");
}

TEST_P(KdaTest, Trap04And41GateStaysInBoundsAtExtremes) {
  const KdaCase c{2, 16, 4, -5};
  Layer l = make_layer(c);
  l.a_log = {12, 30};
  place(l);
  Inputs in = make_inputs(c, 64);
  for (size_t i = 0; i < in.f.size(); ++i) in.f[i] = i % 3 == 0 ? -1e6f : 1e6f;
  bind(64);
  State state = zero_state(c);
  const Doubles want = expected(l, c, in, 64, state);
  const Floats got = run(l, c, in, 64, slots(l, 1));
  for (float x : got) ASSERT_TRUE(std::isfinite(x));
  expect_close(got, want, 100, "extreme gates");
}

TEST_P(KdaTest, Trap05L2NormAddsItsEpsilonInsideTheRoot) {
  // One-tap convolution; k of norm 1e-3 must come out with norm √½, and k = 0 must give 0.
  for (double size : {1e-3, 0.0}) {
    const KdaCase c{1, 16, 1, -5};
    Layer l = make_layer(c);
    l.conv.assign(48, 1.0f);
    l.o_norm.assign(16, 1.0f);
    l.w.rms_eps = 1.0f;
    place(l);
    Inputs in{Floats(48, 0.0f), Floats(16, 0.0f), {0.5f}, Floats(16, 0.0f)};
    // SiLU(x) ≈ x/2 + x²/4 near 0.
    const double x = size / 4 * 2;
    for (size_t i = 0; i < 16; ++i) {
      in.qkv[i] = 1;
      in.qkv[16 + i] = float(x);
      in.qkv[32 + i] = 2;
    }
    bind(1);
    State state = zero_state(c);
    const Doubles want = expected(l, c, in, 1, state);
    double norm = 0;
    for (size_t i = 0; i < 16; ++i) norm += state.s[i * 16] * state.s[i * 16];
    norm = std::sqrt(norm) / (sigmoid(0.5) * silu(2));  // ‖k̄‖ in the oracle
    EXPECT_NEAR(norm, size == 0 ? 0 : 0.7071, 1e-3);
    expect_close(run(l, c, in, 1, slots(l, 1)), want, 40, "small k");
  }
}

TEST_P(KdaTest, Trap06QueryScaleComesAfterItsNorm) {
  const KdaCase c{1, 64, 1, -5};
  Layer l = make_layer(c);
  l.conv.assign(192, 1.0f);
  l.o_norm.assign(64, 1.0f);
  l.w.rms_eps = 1.0f;
  place(l);
  Inputs in{Floats(192, 1.0f), Floats(64, 0.0f), {0.0f}, Floats(64, 0.0f)};
  bind(1);
  // q̄ = k̄ = 1/8: o = (q̄·k̄)·β·v/√64.
  const double o = 0.5 * silu(1) / 8;
  expect_close(run(l, c, in, 1, slots(l, 1)), Doubles(64, o / std::sqrt(o * o + 1) * 0.5), 40, "o");
}

TEST_P(KdaTest, Trap07DecayScalesKeyRowsBeforeTheUpdate) {
  // Unequal channel decays; two tokens against the definition, and the definition against its transposed
  // mistake.
  const KdaCase c{1, 8, 1, -5};
  Layer l = make_layer(c);
  for (size_t i = 0; i < 8; ++i) l.dt_bias[i] = i < 4 ? -8.0f : 4.0f;
  l.w.rms_eps = 1.0f;
  place(l);
  const Inputs in = make_inputs(c, 2);
  bind(2);
  State state = zero_state(c);
  expect_close(run(l, c, in, 2, slots(l, 1)), expected(l, c, in, 2, state), 60, "unequal decays");
}

TEST_P(KdaTest, Trap08AnImpulseMeetsTheLastTapFirst) {
  const KdaCase c{1, 4, 4, -5};
  Layer l = make_layer(c);
  for (size_t ch = 0; ch < 12; ++ch) {
    for (size_t m = 0; m < 4; ++m) l.conv[ch * 4 + m] = float(m + 1);
  }
  l.o_norm.assign(4, 1.0f);
  l.w.rms_eps = 1.0f;
  place(l);
  Inputs in{Floats(4 * 12, 0.0f), Floats(16, -100.0f), Floats(4, 20.0f), Floats(16, 0.0f)};
  for (size_t ch = 0; ch < 12; ++ch) in.qkv[ch] = 1;
  bind(4);
  State state = zero_state(c);
  const Doubles want = expected(l, c, in, 4, state);
  const Floats got = run(l, c, in, 4, slots(l, 1));
  expect_close(got, want, 40, "impulse");
  const double v = silu(4), o = v / 2;  // row 0: tap 3 (value 4); q̄·k̄ = 1, /√4
  EXPECT_NEAR(got[0], o / std::sqrt(o * o + 1) * 0.5, 1e-5 + unit());
}

TEST_P(KdaTest, Trap09OutputGateIsASigmoidAndTheNormIsPerHead) {
  const KdaCase c{2, 16, 4, -5};
  const Layer l = make_layer(c);
  Inputs in = make_inputs(c, 3);
  for (size_t i = 0; i < in.g.size(); ++i) in.g[i] = 0;
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 80; i < 96; ++i) in.qkv[t * 96 + i] *= 100;  // v of head 1 is far larger
  }
  bind(3);
  State state = zero_state(c);
  expect_close(run(l, c, in, 3, slots(l, 1)), expected(l, c, in, 3, state), 100,
               "gate 0 is a factor of one half");
}

}  // namespace
}  // namespace firesteel::test
