// Products with fp8 weights.
#include "ops/cuda/matmul.cuh"

namespace firesteel::cuda {

FS_KERNEL(matmul_fp8_few1) { matmul_few<Fp8Weights, 1, 8, 4, 1, 8>(p); }
FS_KERNEL_WIDE(matmul_fp8_few4) { matmul_few<Fp8Weights, 2, 4, 2, 4, 8>(p); }
FS_KERNEL_WIDE(matmul_fp8_wide) { matmul_wide<Fp8Weights, 2>(p); }
FS_KERNEL(matmul_fp8_many) { matmul_many<Fp8Weights>(p); }

}  // namespace firesteel::cuda
