// Loading of matrices: refusals instead of crashes, errors of the source passed on, large matrices in pieces.
#include "harness.h"

namespace firesteel::test {
namespace {

class LoadTest : public OpsTest {};
FS_FOR_EACH_BACKEND(LoadTest);

/// Gives zeros until `fail_after` calls, and records what was asked.
class Source : public MatrixSource {
 public:
  explicit Source(int fail_after = -1) : fail_after_(fail_after) {}
  Status read_rows(MatrixPart, int64_t, int64_t, void*) override {
    ++calls;
    if (calls > fail_after_ && fail_after_ >= 0) return Error{ErrorCode::kInvalidFile, "cut short"};
    return Status::success();
  }
  int calls = 0;

 private:
  int fail_after_;
};

TEST_P(LoadTest, ImpossibleShapesAreRefusedBeforeAnythingIsRead) {
  const auto refused = [&](const MatrixSpec& spec) {
    Source source;
    Buffer& memory = buffer(64);
    const auto m = ops().load_matrix(spec, source, memory.data());
    ASSERT_FALSE(m.ok());
    EXPECT_EQ(source.calls, 0);
    EXPECT_EQ(m.error().code, ErrorCode::kUnsupported) << m.error().message;
  };
  refused({.format = MatrixFormat::kBf16, .n = 0, .k = 4});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = -1});
  refused({.format = MatrixFormat::kBf16, .n = 1, .k = 1 << 30});
  refused({.format = MatrixFormat::kExl3, .bits = 4, .n = 130, .k = 128});
  refused({.format = MatrixFormat::kExl3, .bits = 4, .n = 128, .k = 64});
  refused({.format = MatrixFormat::kExl3, .bits = 0, .n = 128, .k = 128});
  refused({.format = MatrixFormat::kExl3, .bits = 9, .n = 128, .k = 128});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 96, .keep = MatrixKeep::kQ4});
  refused({.format = MatrixFormat::kFp8Block, .n = 4, .k = 128, .keep = MatrixKeep::kQ4});
  refused({.format = MatrixFormat::kExl3, .bits = 4, .n = 128, .k = 128, .keep = MatrixKeep::kFp8});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 128, .keep = MatrixKeep::kDecoded});
  refused({.format = MatrixFormat::kQ4, .n = 4, .k = 128});
  refused({.format = MatrixFormat::kFp8Rows, .n = 4, .k = 128});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 512, .slices = 3, .slice_end = {128, 256, 512, 0}});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 512, .slices = 2, .slice_end = {300, 512, 0, 0}});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 512, .slices = 2, .slice_end = {256, 384, 0, 0}});
  refused({.format = MatrixFormat::kBf16, .n = 4, .k = 512, .slices = 2, .slice_end = {640, 512, 0, 0}});
}

TEST_P(LoadTest, ErrorsOfTheSourceComeBackUnchanged) {
  for (const MatrixSpec& spec :
       {MatrixSpec{.format = MatrixFormat::kBf16, .n = 3, .k = 5},
        MatrixSpec{.format = MatrixFormat::kFp8Block, .n = 3, .k = 5},
        MatrixSpec{.format = MatrixFormat::kBf16, .n = 3, .k = 64, .keep = MatrixKeep::kQ4},
        MatrixSpec{.format = MatrixFormat::kF32, .n = 3, .k = 5, .keep = MatrixKeep::kFp8},
        MatrixSpec{.format = MatrixFormat::kExl3, .bits = 2, .n = 128, .k = 128}}) {
    Buffer& memory = buffer(ops().matrix_bytes(spec));
    int needed = 0;
    {
      Source all;
      ASSERT_TRUE(ops().load_matrix(spec, all, memory.data()).ok());
      needed = all.calls;
    }
    for (int fail = 0; fail < needed; ++fail) {
      Source source(fail);
      const auto m = ops().load_matrix(spec, source, memory.data());
      ASSERT_FALSE(m.ok());
      EXPECT_EQ(m.error().code, ErrorCode::kInvalidFile);
      EXPECT_EQ(m.error().message, "cut short");
    }
  }
}

TEST_P(LoadTest, MatricesLargerThanOneReadArriveWhole) {
  // Several reads of the loader's ring: 4.7 MB of bf16, 6.6 MB of trellis.
  for (const auto& [format, n, k] :
       {std::tuple{MatrixFormat::kBf16, 1601, 1473}, {MatrixFormat::kExl3, 4608, 1536}}) {
    const MatrixFormat f = format;
    StoredMatrix stored;
    stored.format = f;
    stored.n = n;
    stored.k = k;
    stored.bits = f == MatrixFormat::kExl3 ? 8 : 0;
    const size_t bytes = f == MatrixFormat::kExl3 ? size_t(n) * size_t(k) : size_t(n) * size_t(k) * 2;
    stored.weight.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) stored.weight[i] = std::byte(i * 2654435761u >> 13 & 0x3F);
    stored.suh.assign(size_t(k), 0x3C00);
    stored.svh.assign(size_t(n), 0x3C00);
    stored.dense.resize(size_t(n) * size_t(k));
    const TestMatrix w = load_all(ops(), stored);
    // The same bytes read as one 128-column (EXL3: k-tile) strip at a time, by another source.
    const Floats x = normals(size_t(k));
    bind(1);
    Act* y = empty_act(size_t(n));
    ops().linear(Stage::kMain, {&w.matrix, 1}, act(x), y);
    const Floats got = get(y, size_t(n));
    const int32_t half = k / 256 * 128;
    const TestMatrix low = load_part(ops(), stored, 0, half, {}),
                     high = load_part(ops(), stored, half, k, {});
    Act *y0 = empty_act(size_t(n)), *y1 = empty_act(size_t(n));
    ops().linear(Stage::kMain, {&low.matrix, 1}, act(Floats(x.begin(), x.begin() + half)), y0);
    ops().linear(Stage::kMain, {&high.matrix, 1}, act(Floats(x.begin() + half, x.end())), y1);
    const Floats a = get(y0, size_t(n)), b = get(y1, size_t(n));
    Doubles want;
    for (size_t i = 0; i < a.size(); ++i) want.push_back(double(a[i]) + b[i]);
    expect_close(got, want, 40, "whole");
  }
}

TEST_P(LoadTest, ALargeNarrowedMatrixArrivesWholeAndABadRowIsNamed) {
  // More rows than one piece, on several threads; every matrix row is its own number.
  start(3, 64);
  const int32_t n = 4603, k = 1088;
  for (const MatrixKeep keep : {MatrixKeep::kQ4, MatrixKeep::kFp8}) {
    StoredMatrix stored = make_stored(random(), {.format = MatrixFormat::kBf16, .keep = keep}, n, k);
    const TestMatrix w = load_all(ops(), stored);
    const Floats x = normals(size_t(k));
    bind(1);
    float* y = empty_floats(size_t(n));
    ops().linear_f32(Stage::kMain, w.matrix, act(x), 1, y);
    expect_close(get(y, size_t(n)), product(w, wide(x), 1), 12, "narrowed");
    // Two rows hold what is no weight: the first is named.
    for (const int32_t row : {4601, 3777}) {
      const uint16_t infinity = 0x7F80;
      std::memcpy(stored.weight.data() + (size_t(row) * size_t(k) + 77) * 2, &infinity, 2);
    }
    MatrixSpec spec;
    spec.n = n;
    spec.k = k;
    spec.keep = keep;
    class Whole : public MatrixSource {
     public:
      explicit Whole(const StoredMatrix& m) : m_(m) {}
      Status read_rows(MatrixPart, int64_t first, int64_t count, void* dst) override {
        const size_t row = size_t(m_.k) * 2;
        std::memcpy(dst, m_.weight.data() + size_t(first) * row, size_t(count) * row);
        return Status::success();
      }

     private:
      const StoredMatrix& m_;
    } source(stored);
    const auto refused = ops().load_matrix(spec, source, buffer(ops().matrix_bytes(spec)).data());
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("row 3777, column 77 "), std::string::npos)
        << refused.error().message;
  }
}

TEST_P(LoadTest, AllocationThatCannotBeIsAnError) {
  const auto m = ops().allocate(size_t{1} << 60, "pages");
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(m.error().message.find("pages"), std::string::npos);
  EXPECT_FALSE(ops().allocate(SIZE_MAX, "all").ok());
}

}  // namespace
}  // namespace firesteel::test
