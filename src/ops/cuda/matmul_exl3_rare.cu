// Products with EXL3 weights of the rates and the codebook that no known checkpoint uses at speed: the prompt
// kernel alone, which has the same bits for any number of rows.
#include "ops/cuda/matmul.cuh"

namespace firesteel::cuda {

#define FS_RARE(CODE, NAME, BITS) \
  FS_KERNEL(matmul_exl3_##NAME##_##BITS##_many) { matmul_many<Exl3Weights<BITS, CODE>>(p); }
#define FS_RARE4(CODE, NAME) \
  FS_RARE(CODE, NAME, 1) FS_RARE(CODE, NAME, 2) FS_RARE(CODE, NAME, 7) FS_RARE(CODE, NAME, 8)
FS_RARE4(kCodeMcg, mcg)
FS_RARE4(kCodeMul1, mul1)
FS_RARE4(kCode3Inst, 3inst)
FS_RARE(kCode3Inst, 3inst, 3)
FS_RARE(kCode3Inst, 3inst, 4)
FS_RARE(kCode3Inst, 3inst, 5)
FS_RARE(kCode3Inst, 3inst, 6)

}  // namespace firesteel::cuda
