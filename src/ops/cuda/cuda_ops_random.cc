// Random weights on the CUDA backend.
#include <cmath>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/random_source.h"

namespace firesteel::cuda {

Result<Matrix> CudaOps::random_matrix(const MatrixSpec& spec, const RandomWeights& weights, std::byte* dst) {
  RETURN_IF_ERROR(device_->make_current());
  const bool f32 = spec.format == MatrixFormat::kF32, exl3 = spec.format == MatrixFormat::kExl3;
  // What the layout pads, or what is decoded while loading, goes the way of a checkpoint.
  if (spec.decode || spec.n % kTileN != 0 || (f32 ? spec.k % 4 : spec.k % kGroupK) != 0 ||
      weights.first_row % kTileN != 0 || weights.first_column % kGroupK != 0) {
    RandomSource source(spec, weights);
    return load_matrix(spec, source, dst);
  }
  const PackedLayout at = packed_layout(spec);
  const size_t row_bytes = f32 ? size_t{4} * static_cast<size_t>(spec.k) : packed_tile_bytes(spec);
  const int32_t rows = f32 ? spec.n : spec.n / kTileN;
  const int32_t groups = f32 ? spec.k / 4 : spec.k / kGroupK;
  RandomFillParams p{};
  p.data = reinterpret_cast<uint8_t*>(dst);
  p.row_pieces = static_cast<int32_t>(row_bytes / 16);
  p.group_pieces = p.row_pieces / groups;
  p.pieces = int64_t{rows} * p.row_pieces;
  p.seed = random_bits(weights.seed, 1);
  p.kind = exl3 ? 0 : f32 ? 1 : spec.format == MatrixFormat::kBf16 ? 2 : 3;
  p.tile0 = f32 ? weights.first_row : weights.first_row / kTileN;
  p.group0 = f32 ? weights.first_column / 4 : weights.first_column / kGroupK;
  p.span = 1.7320508f / std::sqrt(static_cast<float>(weights.full_k));
  constexpr int64_t kMostBlocks = 4096;
  run(kernels_.random_fill, {{static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (p.pieces + 255) / 256))}, 256},
      p);
  RandomSource source(spec, weights);
  const auto put = [&](MatrixPart part, int64_t count, size_t bytes, size_t offset) -> Status {
    RETURN_IF_ERROR(stream_.synchronize());  // the staging memory is free again
    RETURN_IF_ERROR(source.read_rows(part, 0, count, staging_.data()));
    return device_->to_device(stream_, dst + offset, staging_.data(), bytes);
  };
  if (exl3) {
    RETURN_IF_ERROR(put(MatrixPart::kSuh, spec.k, size_t{2} * static_cast<size_t>(spec.k), at.suh));
    RETURN_IF_ERROR(put(MatrixPart::kSvh, spec.n, size_t{2} * static_cast<size_t>(spec.n), at.svh));
  } else if (spec.format == MatrixFormat::kFp8Block) {
    const int64_t blocks = (spec.n + 127) / 128;
    RETURN_IF_ERROR(put(MatrixPart::kScale, blocks, 4 * static_cast<size_t>(blocks * ((spec.k + 127) / 128)),
                        at.scale));
  }
  RETURN_IF_ERROR(finish());
  return Matrix{spec, dst};
}

}  // namespace firesteel::cuda
