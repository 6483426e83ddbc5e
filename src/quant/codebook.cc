#include "quant/codebook.h"

#include <array>

#include "base/check.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

using Table = std::array<uint16_t, 65536>;

/// The hash picks sign and low 12 bits of two halves whose exponents stay in [-3, 0]; their sum is
/// near-Gaussian. The fp32 sum of two such halves is exact, so narrowing it is the one rounding of an fp16
/// addition.
uint16_t sum_of_halves(uint32_t product) {
  const uint32_t x = (product & 0x8FFF8FFF) ^ 0x3B603B60;
  return f32_to_f16(f16_to_f32(static_cast<uint16_t>(x)) + f16_to_f32(static_cast<uint16_t>(x >> 16)));
}

/// An affine function of the sum of the product's bytes, one fp16 fused multiply-add: in fp32 both the
/// product (22 bits) and the sum are exact, so again only the narrowing rounds.
uint16_t byte_sum(uint32_t product) {
  const uint32_t sum = (product & 0xFF) + (product >> 8 & 0xFF) + (product >> 16 & 0xFF) + (product >> 24);
  const float scale = f16_to_f32(0x1EEE), bias = f16_to_f32(0xC931);
  return f32_to_f16(static_cast<float>(1024 + sum) * scale + bias);
}

Table make_table(Codebook codebook) {
  Table table;
  for (uint32_t s = 0; s < table.size(); ++s) {
    switch (codebook) {
      case Codebook::k3Inst:
        table[s] = sum_of_halves(s * 89226354u + 64248484u);
        break;
      case Codebook::kMcg:
        table[s] = sum_of_halves(s * 0xCBAC1FEDu);
        break;
      case Codebook::kMul1:
        table[s] = byte_sum(s * 0x83DCD12Du);
        break;
    }
  }
  return table;
}

}  // namespace

std::span<const uint16_t, 65536> codebook_table(Codebook codebook) {
  static const std::array<Table, 3> kTables = {make_table(Codebook::k3Inst), make_table(Codebook::kMcg),
                                               make_table(Codebook::kMul1)};
  CHECK(static_cast<size_t>(codebook) < kTables.size());
  return kTables[static_cast<size_t>(codebook)];
}

}  // namespace firesteel
