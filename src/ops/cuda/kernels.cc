#include "ops/cuda/kernels.h"

#include <string>
#include <string_view>

#include "ops/cuda/modules.h"

namespace firesteel::cuda {

namespace {

/// Finds kernels by file and name in the embedded modules, loading each module once.
class Loader {
 public:
  Loader(const gpu::Device& device, std::vector<gpu::Module>& modules) : device_(device), modules_(modules) {}

  Status open(std::string_view file) {
    for (const gpu::EmbeddedModule& m : embedded_modules()) {
      if (m.name != file) continue;
      ASSIGN_OR_RETURN(gpu::Module module, device_.load(m));
      modules_.push_back(std::move(module));
      return {};
    }
    return Error{ErrorCode::kUnsupported, "this build has no GPU code: build it where nvcc is found"};
  }

  /// A kernel of the file opened last. The name must outlive the kernel (a literal).
  template <typename P>
  Status get(const char* name, gpu::Kernel<P>& kernel, unsigned shared = 0) {
    ASSIGN_OR_RETURN(kernel, device_.kernel<P>(modules_.back(), name, static_cast<int>(shared)));
    return {};
  }

 private:
  const gpu::Device& device_;
  std::vector<gpu::Module>& modules_;
};

constexpr unsigned kManyShared = 4 * kRowsPerTile * kGroupK * 2;        // stages of x
constexpr unsigned kManyExl3Shared = kRowsPerTile * (kBlockN + 4) * 4;  // the Hadamard tile is larger

Status load_dense(Loader& loader, const char* file, const char* few1, const char* few4, const char* many,
                  const char* wide, unsigned group_bytes, MatmulKernels& k) {
  k.few1_shared = 8 * 1 * 512;
  k.few4_shared = 8 * 2 * 4 * 512;
  k.many_shared = kManyShared;
  k.large_rows = kWideRows;
  k.large_channels = kBlockN;
  k.large_shared = kWideStages * (8 * group_bytes + kWideRows * kGroupK * 2);
  RETURN_IF_ERROR(loader.open(file));
  RETURN_IF_ERROR(loader.get(wide, k.large, k.large_shared));
  RETURN_IF_ERROR(loader.get(few1, k.few1, k.few1_shared));
  RETURN_IF_ERROR(loader.get(few4, k.few4, k.few4_shared));
  return loader.get(many, k.many, k.many_shared);
}

/// From the file opened last.
Status load_two_tiles(Loader& loader, const char* name, MatmulKernels& k) {
  k.few1_two_shared = 8 * 2 * 512;
  return loader.get(name, k.few1_two, k.few1_two_shared);
}

/// From the file opened last.
Status load_ring(Loader& loader, const char* name, int32_t groups, unsigned group_bytes, MatmulKernels& k) {
  k.ring_groups = groups;
  k.ring_chunk = static_cast<unsigned>(groups) * group_bytes;
  return loader.get(name, k.ring, kRingMostShared);
}

struct Exl3Names {
  int codebook, bits;
  const char *file, *few1, *few4, *many, *rows, *gate_up, *down;
};
#define FS_TUNED(CODE, NAME, BITS)                                                          \
  {                                                                                         \
    CODE, BITS, "matmul_exl3_" #NAME "_" #BITS, "matmul_exl3_" #NAME "_" #BITS "_few1",     \
        "matmul_exl3_" #NAME "_" #BITS "_few4", "matmul_exl3_" #NAME "_" #BITS "_many",     \
        "matmul_exl3_" #NAME "_" #BITS "_rows", "experts_exl3_" #NAME "_" #BITS "_gate_up", \
        "experts_exl3_" #NAME "_" #BITS "_down"                                             \
  }
#define FS_RARE(CODE, NAME, BITS)                                                                      \
  {                                                                                                    \
    CODE, BITS, "matmul_exl3_rare", nullptr, nullptr, "matmul_exl3_" #NAME "_" #BITS "_many", nullptr, \
        nullptr, nullptr                                                                               \
  }
constexpr Exl3Names kExl3[] = {
    FS_TUNED(1, mcg, 3),  FS_TUNED(1, mcg, 4),  FS_TUNED(1, mcg, 5),  FS_TUNED(1, mcg, 6),
    FS_TUNED(2, mul1, 3), FS_TUNED(2, mul1, 4), FS_TUNED(2, mul1, 5), FS_TUNED(2, mul1, 6),
    FS_RARE(0, 3inst, 1), FS_RARE(0, 3inst, 2), FS_RARE(0, 3inst, 3), FS_RARE(0, 3inst, 4),
    FS_RARE(0, 3inst, 5), FS_RARE(0, 3inst, 6), FS_RARE(0, 3inst, 7), FS_RARE(0, 3inst, 8),
    FS_RARE(1, mcg, 1),   FS_RARE(1, mcg, 2),   FS_RARE(1, mcg, 7),   FS_RARE(1, mcg, 8),
    FS_RARE(2, mul1, 1),  FS_RARE(2, mul1, 2),  FS_RARE(2, mul1, 7),  FS_RARE(2, mul1, 8),
};
#undef FS_TUNED
#undef FS_RARE

Status load_exl3(Loader& loader, Kernels& kernels) {
  std::string_view open;
  for (const Exl3Names& n : kExl3) {
    if (open != n.file) {
      RETURN_IF_ERROR(loader.open(n.file));
      open = n.file;
    }
    MatmulKernels& k = kernels.exl3[static_cast<size_t>(n.codebook)][static_cast<size_t>(n.bits)];
    // The Hadamard tile of 8 or 32 rows of 132 floats, or 8 fragments a row tile.
    k.few1_shared = 8 * (kBlockN + 4) * 4;
    k.few4_shared = 32 * (kBlockN + 4) * 4;
    k.many_shared = kManyExl3Shared;
    if (n.few1 != nullptr) {
      RETURN_IF_ERROR(loader.get(n.few1, k.few1, k.few1_shared));
      RETURN_IF_ERROR(loader.get(n.few4, k.few4, k.few4_shared));
      k.large_rows = kExl3Rows;
      k.large_channels = 2 * kBlockN;
      k.large_shared = kExl3RowsShared;
      RETURN_IF_ERROR(loader.get(n.rows, k.large, k.large_shared));
    }
    RETURN_IF_ERROR(loader.get(n.many, k.many, k.many_shared));
  }
  open = {};
  for (const Exl3Names& n : kExl3) {
    if (n.gate_up == nullptr) continue;
    const std::string_view file = n.codebook == 1 ? "experts_few_mcg" : "experts_few_mul1";
    if (open != file) {
      RETURN_IF_ERROR(loader.open(file));
      open = file;
    }
    MatmulKernels& k = kernels.exl3[static_cast<size_t>(n.codebook)][static_cast<size_t>(n.bits)];
    RETURN_IF_ERROR(loader.get(n.gate_up, k.gate_up));
    RETURN_IF_ERROR(loader.get(n.down, k.down));
  }
  return {};
}

}  // namespace

Result<Kernels> load_kernels(const gpu::Device& device) {
  Kernels k;
  Loader loader(device, k.modules);
  RETURN_IF_ERROR(load_dense(loader, "matmul_bf16", "matmul_bf16_few1", "matmul_bf16_few4",
                             "matmul_bf16_many", "matmul_bf16_wide", 2048, k.bf16));
  RETURN_IF_ERROR(load_ring(loader, "matmul_bf16_ring", 1, 2048, k.bf16));
  RETURN_IF_ERROR(load_dense(loader, "matmul_fp8", "matmul_fp8_few1", "matmul_fp8_few4", "matmul_fp8_many",
                             "matmul_fp8_wide", 1024, k.fp8));
  RETURN_IF_ERROR(load_dense(loader, "matmul_fp8_rows", "matmul_fp8_rows_few1", "matmul_fp8_rows_few4",
                             "matmul_fp8_rows_many", "matmul_fp8_rows_wide", kFp8RowsGroupBytes, k.fp8_rows));
  RETURN_IF_ERROR(load_two_tiles(loader, "matmul_fp8_rows_few1_two", k.fp8_rows));
  RETURN_IF_ERROR(load_dense(loader, "matmul_q4", "matmul_q4_few1", "matmul_q4_few4", "matmul_q4_many",
                             "matmul_q4_wide", kQ4GroupBytes, k.q4));
  RETURN_IF_ERROR(load_two_tiles(loader, "matmul_q4_few1_two", k.q4));
  RETURN_IF_ERROR(load_ring(loader, "matmul_q4_ring", 4, kQ4GroupBytes, k.q4));
  RETURN_IF_ERROR(load_exl3(loader, k));
  RETURN_IF_ERROR(loader.open("matvec_f32"));
  RETURN_IF_ERROR(loader.get("matvec_f32", k.matvec_f32));
  RETURN_IF_ERROR(loader.open("elementwise"));
  RETURN_IF_ERROR(loader.get("embed", k.embed));
  RETURN_IF_ERROR(loader.get("mtp_input", k.mtp_input));
  RETURN_IF_ERROR(loader.get("pad_rows", k.pad_rows));
  RETURN_IF_ERROR(loader.get("rms_norm", k.rms_norm));
  RETURN_IF_ERROR(loader.get("head_input", k.head_input));
  RETURN_IF_ERROR(loader.get("gather", k.gather));
  RETURN_IF_ERROR(loader.get("add", k.add));
  RETURN_IF_ERROR(loader.get("convert", k.convert));
  RETURN_IF_ERROR(loader.get("glu", k.glu));
  RETURN_IF_ERROR(loader.open("exchange"));
  RETURN_IF_ERROR(loader.get("exchange_send", k.exchange_send));
  RETURN_IF_ERROR(loader.get("exchange_wait", k.exchange_wait));
  RETURN_IF_ERROR(loader.get("exchange_take", k.exchange_take));
  RETURN_IF_ERROR(loader.get("exchange_sum", k.exchange_sum));
  RETURN_IF_ERROR(loader.open("random"));
  RETURN_IF_ERROR(loader.get("random_fill", k.random_fill));
  RETURN_IF_ERROR(loader.open("hyper"));
  RETURN_IF_ERROR(loader.get("hyper_mix", k.hyper_mix));
  RETURN_IF_ERROR(loader.get("hyper_finish_4k", k.hyper_finish_4k));
  RETURN_IF_ERROR(loader.get("hyper_finish_8k", k.hyper_finish_8k));
  RETURN_IF_ERROR(loader.get("hyper_finish_any", k.hyper_finish_any));
  RETURN_IF_ERROR(loader.get("hyper_post", k.hyper_post));
  RETURN_IF_ERROR(loader.open("hyper_many"));
  RETURN_IF_ERROR(loader.get("hyper_many", k.hyper_many));
  RETURN_IF_ERROR(loader.open("router"));
  RETURN_IF_ERROR(loader.get("router_few", k.router_few));
  RETURN_IF_ERROR(loader.get("router_pick_320", k.router_pick_320));
  RETURN_IF_ERROR(loader.get("router_pick_1024", k.router_pick_1024));
  RETURN_IF_ERROR(loader.open("experts"));
  RETURN_IF_ERROR(loader.get("group_pairs", k.group_pairs));
  RETURN_IF_ERROR(loader.get("rotate", k.rotate));
  RETURN_IF_ERROR(loader.get("expert_act", k.expert_act));
  RETURN_IF_ERROR(loader.get("combine", k.combine));
  RETURN_IF_ERROR(loader.get("combine_4", k.combine_4));
  RETURN_IF_ERROR(loader.get("exl3_finish", k.exl3_finish));
  RETURN_IF_ERROR(loader.open("experts_begin"));
  RETURN_IF_ERROR(loader.get("experts_begin", k.experts_begin));
  RETURN_IF_ERROR(loader.open("kda_prompt"));
  RETURN_IF_ERROR(loader.get("kda_prepare", k.kda_prepare));
  RETURN_IF_ERROR(loader.get("kda_out", k.kda_out));
  RETURN_IF_ERROR(loader.open("kda_recur"));
  RETURN_IF_ERROR(loader.get("kda_recur", k.kda_recur));
  RETURN_IF_ERROR(loader.open("kda_few"));
  RETURN_IF_ERROR(loader.get("kda_few", k.kda_few));
  RETURN_IF_ERROR(loader.open("index"));
  RETURN_IF_ERROR(loader.get("latent_append", k.latent_append));
  RETURN_IF_ERROR(loader.get("pool_append", k.pool_append));
  RETURN_IF_ERROR(loader.get("pool_score", k.pool_score));
  RETURN_IF_ERROR(loader.get("pool_pick", k.pool_pick));
  RETURN_IF_ERROR(loader.get("pool_pick_again", k.pool_pick_again));
  RETURN_IF_ERROR(loader.get("pool_pick_large", k.pool_pick_large));
  RETURN_IF_ERROR(loader.open("plain"));
  RETURN_IF_ERROR(loader.get("pool_score_plain", k.pool_score_plain));
  RETURN_IF_ERROR(loader.get("attend_plain", k.attend_plain));
  RETURN_IF_ERROR(loader.open("attention"));
  RETURN_IF_ERROR(loader.get("absorb_few", k.absorb_few));
  RETURN_IF_ERROR(loader.get("absorb_many", k.absorb_many));
  RETURN_IF_ERROR(loader.get("expand_few", k.expand_few));
  RETURN_IF_ERROR(loader.get("expand_many", k.expand_many));
  RETURN_IF_ERROR(loader.open("attend"));
  RETURN_IF_ERROR(loader.get("attend_chunk", k.attend_chunk, kAttendShared));
  RETURN_IF_ERROR(loader.get("attend_chunk_fp8", k.attend_chunk_fp8, kAttendShared));
  RETURN_IF_ERROR(loader.get("attend_row", k.attend_row, kAttendShared));
  RETURN_IF_ERROR(loader.get("attend_row_fp8", k.attend_row_fp8, kAttendShared));
  RETURN_IF_ERROR(loader.get("attend_merge", k.attend_merge));
  RETURN_IF_ERROR(loader.open("draw"));
  RETURN_IF_ERROR(loader.get("draw_best", k.draw_best));
  RETURN_IF_ERROR(loader.get("draw_weigh", k.draw_weigh));
  RETURN_IF_ERROR(loader.get("draw_cut", k.draw_cut));
  RETURN_IF_ERROR(loader.get("draw_finish", k.draw_finish));
  return k;
}

}  // namespace firesteel::cuda
