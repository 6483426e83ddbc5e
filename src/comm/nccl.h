// NCCL, loaded at run time.
//
// The program never links against NCCL: load_nccl() opens libnccl.so.2 and resolves the functions below once.
// The declarations are our own (NCCL keeps its C ABI, and takes the configuration of an older header), so
// that the program builds and runs where NCCL is not installed. The table lives as long as the process; any
// thread may use it.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace firesteel {

using NcclResult = int32_t;  // 0 = success
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclFloat32 = 7;
struct NcclCommOpaque;
using NcclComm = NcclCommOpaque*;
struct NcclId {
  char bytes[128] = {};
};
/// ncclConfig_t as of 2.17. Calls that may wait return kNcclInProgress instead (blocking = 0).
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21700;
  int32_t blocking = 0;
  int32_t cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;  // NCCL's choice
  const char* network = nullptr;
};
static_assert(sizeof(NcclConfig) == 40);

// X(result, function, symbol in the library, parameters)
#define FS_NCCL_FUNCTIONS(X)                                                                     \
  X(NcclResult, get_version, "ncclGetVersion", (int*))                                           \
  X(NcclResult, get_id, "ncclGetUniqueId", (NcclId*))                                            \
  X(NcclResult, init_rank, "ncclCommInitRankConfig", (NcclComm*, int, NcclId, int, NcclConfig*)) \
  X(NcclResult, async_error, "ncclCommGetAsyncError", (NcclComm, NcclResult*))                   \
  X(NcclResult, device, "ncclCommCuDevice", (NcclComm, int*))                                    \
  X(NcclResult, all_gather, "ncclAllGather", (const void*, void*, size_t, int, NcclComm, void*)) \
  X(NcclResult, abort, "ncclCommAbort", (NcclComm))                                              \
  X(const char*, error_string, "ncclGetErrorString", (NcclResult))                               \
  X(const char*, last_error, "ncclGetLastError", (NcclComm))

struct Nccl {
#define FS_NCCL_DECLARE(result, name, symbol, params) result(*name) params = nullptr;
  FS_NCCL_FUNCTIONS(FS_NCCL_DECLARE)
#undef FS_NCCL_DECLARE
  int version = 0;  // 22809 = 2.28.9
};

/// "2.28.9"
std::string nccl_version_text(int version);

/// The library. kUnavailable in one line when it or a symbol is missing, or it is too old. The outcome of the
/// first call stands for the process.
Result<const Nccl*> load_nccl();

/// The same with the library's name given, never cached: for tests.
Result<Nccl> load_nccl_from(const char* library);

}  // namespace firesteel
