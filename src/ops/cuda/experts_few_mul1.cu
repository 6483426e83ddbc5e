// The experts of few rows: codebook mul1.
#include "ops/cuda/experts_few.cuh"

namespace firesteel::cuda {

FS_EXPERT_KERNELS(mul1_3, Exl3Weights<3, kCodeMul1>)
FS_EXPERT_KERNELS(mul1_4, Exl3Weights<4, kCodeMul1>)
FS_EXPERT_KERNELS(mul1_5, Exl3Weights<5, kCodeMul1>)
FS_EXPERT_KERNELS(mul1_6, Exl3Weights<6, kCodeMul1>)

}  // namespace firesteel::cuda
