// FP8 block matrices: scale indices, partial blocks, row ranges, and the direction of the scale.
#include "quant/fp8_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/golden.h"
#include "support/random.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace firesteel {
namespace {

using test::Random;

TEST(Fp8Blocks, EveryElementTakesItsBlocksScale) {
  Random random;
  const int64_t sizes[][2] = {{128, 128}, {256, 384}, {1, 1}, {130, 257}, {300, 127}};
  for (const auto& [rows, cols] : sizes) {
    const int64_t across = (cols + 127) / 128, down = (rows + 127) / 128;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * cols));
    for (uint8_t& c : codes) {
      do c = static_cast<uint8_t>(random.bits());
      while ((c & 0x7F) == 0x7F);
    }
    std::vector<float> scales(static_cast<size_t>(across * down));
    for (float& s : scales) s = static_cast<float>(random.uniform(1e-4, 2e-4));
    std::vector<float> out(codes.size());
    const int64_t middle = rows / 2;
    fp8_blocks_to_f32(codes.data(), scales.data(), cols, 0, middle, out.data());
    fp8_blocks_to_f32(codes.data(), scales.data(), cols, middle, rows, out.data() + middle * cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float code = f8e4m3_to_f32(codes[r * cols + c]);
        const float scale = scales[r / 128 * across + c / 128];
        ASSERT_EQ(out[r * cols + c], static_cast<float>(static_cast<double>(code) * scale)) << r << " " << c;
      }
    }
  }
}

TEST(Fp8Blocks, GoldenModelHasTheSpreadOfItsArchitecture) {
  // down_proj of layer 0 has standard deviation 0.01875 in the bf16 model; as FP8 the magnitudes are of that
  // size only if the scale multiplies.
  auto file = SafetensorsFile::open(test::golden_model_dir("tiny-fp8") + "/model-00001-of-00003.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::string name = "model.language_model.layers.0.mlp.down_proj.weight";
  const TensorInfo *codes = file->find(name), *scales = file->find(name + "_scale_inv");
  ASSERT_NE(codes, nullptr);
  ASSERT_NE(scales, nullptr);
  ASSERT_EQ(codes->dtype, DType::kF8E4M3);
  const int64_t rows = codes->shape[0], cols = codes->shape[1];
  ASSERT_EQ(scales->shape, (std::vector<int64_t>{rows / 128, cols / 128}));
  std::vector<uint8_t> code_bytes(codes->bytes);
  std::vector<float> scale_values(scales->bytes / 4), w(codes->bytes);
  ASSERT_TRUE(file->read(*codes, 0, codes->bytes, code_bytes.data()).ok());
  ASSERT_TRUE(file->read(*scales, 0, scales->bytes, scale_values.data()).ok());
  fp8_blocks_to_f32(code_bytes.data(), scale_values.data(), cols, 0, rows, w.data());
  double square = 0;
  for (const float x : w) square += static_cast<double>(x) * x;
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(w.size())), 0.01875, 0.01);
}

}  // namespace
}  // namespace firesteel
