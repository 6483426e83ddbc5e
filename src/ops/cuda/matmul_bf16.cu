// Products with bf16 weights.
#include "ops/cuda/matmul.cuh"
#include "ops/cuda/matmul_ring.cuh"

namespace firesteel::cuda {

FS_KERNEL(matmul_bf16_few1) { matmul_few<Bf16Weights, 1, 8, 4, 1, 8>(p); }
FS_KERNEL(matmul_bf16_ring) { matmul_ring<Bf16Weights, 1>(p); }
FS_KERNEL_WIDE(matmul_bf16_few4) { matmul_few<Bf16Weights, 2, 4, 2, 4, 8>(p); }
FS_KERNEL_WIDE(matmul_bf16_wide) { matmul_wide<Bf16Weights, 4>(p); }
FS_KERNEL(matmul_bf16_many) { matmul_many<Bf16Weights>(p); }

}  // namespace firesteel::cuda
