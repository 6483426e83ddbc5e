// The experts of few rows: codebook mcg.
#include "ops/cuda/experts_few.cuh"

namespace firesteel::cuda {

FS_EXPERT_KERNELS(mcg_3, Exl3Weights<3, kCodeMcg>)
FS_EXPERT_KERNELS(mcg_4, Exl3Weights<4, kCodeMcg>)
FS_EXPERT_KERNELS(mcg_5, Exl3Weights<5, kCodeMcg>)
FS_EXPERT_KERNELS(mcg_6, Exl3Weights<6, kCodeMcg>)

}  // namespace firesteel::cuda
