// Every kernel of the backend, resolved once when the backend is made. Owned by CudaOps; one thread.
#pragma once

#include <array>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"
#include "ops/cuda/params.h"

namespace firesteel::cuda {

/// The product kernels of one format (matmul.cuh). `few1` and `few4` are absent for rare EXL3 kinds.
struct MatmulKernels {
  gpu::Kernel<MatmulParams> few1, few4, many, wide;  // wide: not EXL3
  gpu::Kernel<MatmulParams> few1_two;  // narrowed only: as few1 with two tiles of channels a warp
  unsigned few1_two_shared = 0;
  unsigned few1_shared = 0, few4_shared = 0, many_shared = 0, wide_shared = 0;
};

struct Kernels {
  std::vector<gpu::Module> modules;
  MatmulKernels bf16, fp8, fp8_rows, q4;
  std::array<std::array<MatmulKernels, 9>, 3> exl3;  // [codebook][bits]
  gpu::Kernel<MatvecF32Params> matvec_f32;
  gpu::Kernel<EmbedParams> embed, mtp_input;
  gpu::Kernel<HyperFinishParams> hyper_finish, hyper_finish_4k, hyper_finish_8k;
  gpu::Kernel<HyperPostParams> hyper_post;
  gpu::Kernel<RmsParams> rms_norm;
  gpu::Kernel<HeadInputParams> head_input;
  gpu::Kernel<GatherParams> gather;
  gpu::Kernel<AddParams> add;
  gpu::Kernel<ConvertParams> convert;
  gpu::Kernel<GluParams> glu;
  gpu::Kernel<RouterParams> router_pick_320, router_pick_1024;
  gpu::Kernel<PadParams> pad_rows;
  gpu::Kernel<GroupParams> group_pairs;
  gpu::Kernel<RotateParams> rotate;
  gpu::Kernel<GroupRotateParams> group_and_rotate;
  gpu::Kernel<ExpertActParams> expert_act;
  gpu::Kernel<CombineParams> combine;
  gpu::Kernel<FinishParams> exl3_finish;
  gpu::Kernel<KdaParams> kda_prepare, kda_recur, kda_out;
  gpu::Kernel<AppendParams> latent_append;
  gpu::Kernel<PoolAppendParams> pool_append;
  gpu::Kernel<PoolScoreParams> pool_score, pool_score_plain;
  gpu::Kernel<PoolPickParams> pool_pick;
  gpu::Kernel<AbsorbParams> absorb_few, absorb_many, expand_few, expand_many;
  gpu::Kernel<AttentionParams> attend, attend_merge;
  gpu::Kernel<PlainAttentionParams> attend_plain;
};

inline constexpr unsigned kAttendShared = 2 * 32 * 520 * 2 + 32 * 33 * 4 + 32 * 40 * 2 + 32 * 4 + 128 * 8;
inline constexpr int kAttendChunk = 128;

Result<Kernels> load_kernels(const gpu::Device& device);

}  // namespace firesteel::cuda
