// The CUDA backend of the op table: hand-written kernels launched through the driver.
//
// Activations are bf16, partial sums, mixing weights and recurrent state fp32, KV latents and pooled keys
// bf16 or FP8 rows (KvFormat). One thread (the engine's) owns a CudaOps. Launch failures stick: the first is
// reported by finish(), later ops do nothing. Limits beyond the op table's: KDA heads up to 128 wide; index
// keys up to 128 wide; at most 1024 experts. What lies beyond is kUnsupported from finish(). Latents of other
// than 512, keys of other than 128 values and odd numbers of heads take slow kernels.
#pragma once

#include <memory>

#include "base/result.h"
#include "comm/nccl_choice.h"
#include "ops/ops.h"

namespace firesteel {

/// GPUs of this machine; 0 without a driver.
int cuda_device_count();

/// The backend on GPU number `ordinal`. kUnavailable without a driver or GPU, kUnsupported when this build
/// has no code for it.
Result<std::unique_ptr<Ops>> make_cuda_ops(int ordinal, KvFormat kv = KvFormat::kWide,
                                           ExchangeChoice exchange = ExchangeChoice::kAuto);

/// As make_cuda_ops, for programs that time or capture: also hands out the device and the stream that ops are
/// issued on (both owned by the Ops).
namespace gpu {
class Device;
class Stream;
}  // namespace gpu
struct CudaOpsParts {
  std::unique_ptr<Ops> ops;
  gpu::Device* device = nullptr;
  const gpu::Stream* stream = nullptr;
};
Result<CudaOpsParts> make_cuda_ops_parts(int ordinal, KvFormat kv = KvFormat::kWide,
                                         ExchangeChoice exchange = ExchangeChoice::kAuto);
/// How prompts add their experts, the same bits either way: where they are computed, each waiting for the one
/// before (`on`; the default on a GPU that shares the machine's memory: half the bytes of the down products),
/// or in a launch of their own. Returns how it was. For tests and benches; `ops` is the CUDA backend.
bool set_experts_in_order(Ops& ops, bool on);

}  // namespace firesteel
