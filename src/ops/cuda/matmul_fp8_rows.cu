// Products with weights narrowed to FP8, a scale per row.
#include "ops/cuda/matmul.cuh"

namespace firesteel::cuda {

FS_KERNEL(matmul_fp8_rows_few1) { matmul_few<Fp8RowsWeights, 1, 8, 4, 1, 8>(p); }
FS_KERNEL_NARROW(matmul_fp8_rows_few1_two) { matmul_few<Fp8RowsWeights, 2, 4, 2, 1, 8>(p); }
FS_KERNEL_WIDE(matmul_fp8_rows_few4) { matmul_few<Fp8RowsWeights, 2, 4, 2, 4, 8>(p); }
FS_KERNEL_WIDE(matmul_fp8_rows_wide) { matmul_wide<Fp8RowsWeights, 2>(p); }
FS_KERNEL(matmul_fp8_rows_many) { matmul_many<Fp8RowsWeights>(p); }

}  // namespace firesteel::cuda
