// Random weights on the CUDA backend.
#include <cmath>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/random_source.h"
#include "tensor/dtype.h"

namespace firesteel::cuda {

Result<Matrix> CudaOps::random_matrix(const MatrixSpec& spec, const RandomWeights& weights, std::byte* dst) {
  RETURN_IF_ERROR(device_->make_current());
  const MatrixFormat kept = loaded_spec(spec).format;
  const bool f32 = kept == MatrixFormat::kF32, exl3 = kept == MatrixFormat::kExl3;
  // What the layout pads, or what is decoded while loading, goes the way of a checkpoint.
  if (spec.keep == MatrixKeep::kDecoded || spec.n % kTileN != 0 ||
      (f32 ? spec.k % 4 : spec.k % kGroupK) != 0 || weights.first_row % kTileN != 0 ||
      weights.first_column % kGroupK != 0) {
    RandomSource source(spec, weights);
    return load_matrix(spec, source, dst);
  }
  const PackedLayout at = packed_layout(spec);
  const size_t row_bytes = f32 ? size_t{4} * static_cast<size_t>(spec.k) : packed_tile_bytes(spec);
  const int32_t rows = f32 ? spec.n : spec.n / kTileN;
  const int32_t groups = f32 ? spec.k / 4 : spec.k / kGroupK;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(weights.full_k));
  RandomFillParams p{};
  p.data = reinterpret_cast<uint8_t*>(dst);
  p.row_pieces = static_cast<int32_t>(row_bytes / 16);
  p.group_pieces = p.row_pieces / groups;
  p.pieces = int64_t{rows} * p.row_pieces;
  p.seed = random_bits(weights.seed, 1);
  p.tile0 = f32 ? weights.first_row : weights.first_row / kTileN;
  p.group0 = f32 ? weights.first_column / 4 : weights.first_column / kGroupK;
  p.span = 1.7320508f * deviation;
  const auto bf16 = [](float value, int shift) { return uint32_t{f32_to_bf16(std::ldexp(value, shift))}; };
  switch (kept) {
    case MatrixFormat::kExl3:
      p.kind = 0;
      break;
    case MatrixFormat::kF32:
      p.kind = 1;
      break;
    case MatrixFormat::kBf16:
      p.kind = 2;
      break;
    case MatrixFormat::kFp8Block:
      p.kind = 3;
      break;
    case MatrixFormat::kQ4: {
      // Codes 0 to 15 have the deviation 4.61 about 7.5. As pack_q4_row lays scales down.
      const float scale = deviation / 4.61f;
      const uint32_t offset = bf16(-7.5f * scale, -kNarrowShift) << 16;
      p.kind = 4;
      p.code_pieces = 32;
      p.scales[0] = bf16(scale, kQ4LowShift) | offset;
      p.scales[1] = bf16(scale, kQ4HighShift) | offset;
      break;
    }
    case MatrixFormat::kFp8Rows:
      p.kind = 5;
      p.code_pieces = 64;
      p.scales[0] = bf16(deviation / 96.0f, kFp8ScaleShift) * 0x10001u;
      p.scales[1] = p.scales[0];
      break;
  }
  constexpr int64_t kMostBlocks = 4096;
  run(kernels_.random_fill,
      {{static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (p.pieces + 255) / 256))}, 256}, p);
  // Signs and scales are those of the first matrix of these sides: there are tens of thousands.
  RandomSource source(spec, weights);
  const auto put = [&](MatrixPart part, int64_t count, size_t bytes, size_t offset) -> Status {
    std::vector<std::byte>& values = random_parts_[{static_cast<int>(part), spec.n, spec.k}];
    if (values.empty()) {
      values.resize(bytes);
      RETURN_IF_ERROR(source.read_rows(part, 0, count, values.data()));
    }
    return device_->to_device(stream_, dst + offset, values.data(), bytes);
  };
  if (exl3) {
    RETURN_IF_ERROR(put(MatrixPart::kSuh, spec.k, size_t{2} * static_cast<size_t>(spec.k), at.suh));
    RETURN_IF_ERROR(put(MatrixPart::kSvh, spec.n, size_t{2} * static_cast<size_t>(spec.n), at.svh));
  } else if (kept == MatrixFormat::kFp8Block) {
    const int64_t blocks = (spec.n + 127) / 128;
    RETURN_IF_ERROR(
        put(MatrixPart::kScale, blocks, 4 * static_cast<size_t>(blocks * ((spec.k + 127) / 128)), at.scale));
  }
  if (!status_.ok()) return finish().error();
  return Matrix{loaded_spec(spec), dst};
}

}  // namespace firesteel::cuda
