// Products with weights narrowed to 4 bits.
#include "ops/cuda/matmul.cuh"
#include "ops/cuda/matmul_ring.cuh"

namespace firesteel::cuda {

FS_KERNEL(matmul_q4_few1) { matmul_few<Q4Weights, 1, 8, 4, 1, 8>(p); }
FS_KERNEL_NARROW(matmul_q4_few1_two) { matmul_few<Q4Weights, 2, 4, 2, 1, 8>(p); }
FS_KERNEL(matmul_q4_ring) { matmul_ring<Q4Weights, 4>(p); }
FS_KERNEL_WIDE(matmul_q4_few4) { matmul_few<Q4Weights, 2, 4, 2, 4, 8>(p); }
FS_KERNEL_WIDE(matmul_q4_wide) { matmul_wide<Q4Weights, 2, true>(p); }
FS_KERNEL(matmul_q4_many) { matmul_many<Q4Weights>(p); }

}  // namespace firesteel::cuda
