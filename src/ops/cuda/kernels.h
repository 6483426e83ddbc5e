// Every kernel of the backend, resolved once when the backend is made. Owned by CudaOps; one thread.
#pragma once

#include <array>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"
#include "ops/cuda/draw_params.h"
#include "ops/cuda/exchange_params.h"
#include "ops/cuda/layer_params.h"

namespace firesteel::cuda {

/// The product kernels of one format (matmul.cuh). Rare EXL3 kinds have `many` only.
struct MatmulKernels {
  gpu::Kernel<MatmulParams> few1, few4, many, large;
  gpu::Kernel<ExpertFewParams> gate_up, down;  // EXL3 only
  unsigned few1_shared = 0, few4_shared = 0, many_shared = 0, large_shared = 0;
  int32_t large_rows = 0, large_channels = 0;  // of a block of `large`
  gpu::Kernel<MatmulParams> few1_two;          // narrowed only: as few1 with two tiles of channels a warp
  unsigned few1_two_shared = 0;
  gpu::Kernel<MatmulParams> ring;  // bf16 and 4 bits: dense products of up to eight rows (matmul_ring.cuh)
  unsigned ring_chunk = 0;         // bytes that a warp copies at once
  int32_t ring_groups = 0;         // in that many groups
};

struct Kernels {
  std::vector<gpu::Module> modules;
  MatmulKernels bf16, fp8, fp8_rows, q4;
  std::array<std::array<MatmulKernels, 9>, 3> exl3;  // [codebook][bits]
  gpu::Kernel<MatvecF32Params> matvec_f32;
  gpu::Kernel<EmbedParams> embed, mtp_input;
  gpu::Kernel<HyperMixParams> hyper_mix;
  gpu::Kernel<HyperFinishParams> hyper_finish_any, hyper_finish_4k, hyper_finish_8k;
  gpu::Kernel<HyperManyParams> hyper_many;
  gpu::Kernel<HyperPostParams> hyper_post;
  gpu::Kernel<RmsParams> rms_norm;
  gpu::Kernel<HeadInputParams> head_input;
  gpu::Kernel<GatherParams> gather;
  gpu::Kernel<AddParams> add;
  gpu::Kernel<ConvertParams> convert;
  gpu::Kernel<RandomFillParams> random_fill;
  gpu::Kernel<ExchangeSendParams> exchange_send;
  gpu::Kernel<ExchangeWaitParams> exchange_wait;
  gpu::Kernel<ExchangeTakeParams> exchange_take;
  gpu::Kernel<ExchangeSumParams> exchange_sum;
  gpu::Kernel<GluParams> glu;
  gpu::Kernel<RouterFewParams> router_few;
  gpu::Kernel<RouterParams> router_pick_320, router_pick_1024;
  gpu::Kernel<PadParams> pad_rows;
  gpu::Kernel<GroupParams> group_pairs;
  gpu::Kernel<RotateParams> rotate;
  gpu::Kernel<ExpertsBeginParams> experts_begin;
  gpu::Kernel<ExpertActParams> expert_act;
  gpu::Kernel<CombineParams> combine, combine_4;
  gpu::Kernel<FinishParams> exl3_finish;
  gpu::Kernel<KdaParams> kda_prepare, kda_recur, kda_out, kda_few;
  gpu::Kernel<AppendParams> latent_append;
  gpu::Kernel<PoolAppendParams> pool_append;
  gpu::Kernel<PoolScoreParams> pool_score, pool_score_plain;
  gpu::Kernel<PoolPickParams> pool_pick, pool_pick_again, pool_pick_large;
  gpu::Kernel<AbsorbParams> absorb_few, absorb_many, expand_few, expand_many;
  gpu::Kernel<AttentionParams> attend_chunk, attend_chunk_fp8, attend_row, attend_row_fp8, attend_merge;
  gpu::Kernel<PlainAttentionParams> attend_plain;
  gpu::Kernel<DrawParams> draw_best, draw_weigh, draw_cut, draw_finish;
};

inline constexpr int kAttendChunk = 128;

Result<Kernels> load_kernels(const gpu::Device& device);

}  // namespace firesteel::cuda
