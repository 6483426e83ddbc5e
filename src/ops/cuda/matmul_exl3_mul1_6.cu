// Products with EXL3 weights: codebook mul1, 6 bits.
#include "ops/cuda/matmul.cuh"

namespace firesteel::cuda {

using Weights = Exl3Weights<6, kCodeMul1>;
FS_KERNEL_NARROW(matmul_exl3_mul1_6_few1) { matmul_few<Weights, 1, 8, 2, 1, 8>(p); }
FS_KERNEL_WIDE(matmul_exl3_mul1_6_few4) { matmul_few<Weights, 1, 8, 2, 4, 8>(p); }
FS_KERNEL(matmul_exl3_mul1_6_many) { matmul_many<Weights>(p); }
FS_KERNEL(matmul_exl3_mul1_6_rows) { matmul_exl3_rows<Weights>(p); }

}  // namespace firesteel::cuda
