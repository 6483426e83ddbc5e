// The CUDA driver, loaded at run time.
//
// The program never links against CUDA: load_driver() opens libcuda.so.1 and resolves the functions below
// once. The declarations are our own (the driver's C ABI is stable), so that this folder builds where no CUDA
// toolkit is installed and for arm64 from x86-64. The table lives as long as the process; any thread may use
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace firesteel::gpu {

using CuResult = int32_t;  // 0 = success
using CuDevice = int32_t;
using CuPtr = uint64_t;
struct CuContextOpaque;
struct CuModuleOpaque;
struct CuFunctionOpaque;
struct CuStreamOpaque;
struct CuEventOpaque;
struct CuGraphOpaque;
struct CuGraphExecOpaque;
using CuContext = CuContextOpaque*;
using CuModule = CuModuleOpaque*;
using CuFunction = CuFunctionOpaque*;
using CuStream = CuStreamOpaque*;
using CuEvent = CuEventOpaque*;
using CuGraph = CuGraphOpaque*;
using CuGraphExec = CuGraphExecOpaque*;

// Values of the driver's enums that we use.
inline constexpr int kAttrMaxSharedPerBlockOptin = 97, kAttrMultiprocessors = 16, kAttrClockKhz = 13,
                     kAttrMemoryClockKhz = 36, kAttrBusWidth = 37, kAttrL2Bytes = 38, kAttrIntegrated = 18,
                     kAttrMajor = 75, kAttrMinor = 76;
struct LaunchAttribute {  // CUlaunchAttribute: an id and 64 bytes of value
  int32_t id = 0;
  char pad[4] = {};
  union {
    char bytes[64];
    int32_t value;
  };
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  CuStream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
inline constexpr int kLaunchProgrammaticSerialization = 6;

inline constexpr int kFuncMaxDynamicShared = 8, kFuncCarveout = 9;
inline constexpr int kFuncLocalBytes = 3, kFuncRegisters = 4;

// X(function, symbol in the library, parameters)
#define FS_CUDA_FUNCTIONS(X)                                                                       \
  X(init, "cuInit", (unsigned))                                                                    \
  X(driver_version, "cuDriverGetVersion", (int*))                                                  \
  X(error_string, "cuGetErrorString", (CuResult, const char**))                                    \
  X(error_name, "cuGetErrorName", (CuResult, const char**))                                        \
  X(device_count, "cuDeviceGetCount", (int*))                                                      \
  X(device_get, "cuDeviceGet", (CuDevice*, int))                                                   \
  X(device_name, "cuDeviceGetName", (char*, int, CuDevice))                                        \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, CuDevice))                               \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t*, CuDevice))                                     \
  X(device_uuid, "cuDeviceGetUuid_v2", (void*, CuDevice)) /* 16 bytes */                           \
  X(context_retain, "cuDevicePrimaryCtxRetain", (CuContext*, CuDevice))                            \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (CuDevice))                                   \
  X(context_set, "cuCtxSetCurrent", (CuContext))                                                   \
  X(context_sync, "cuCtxSynchronize", ())                                                          \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                                            \
  X(memory_alloc, "cuMemAlloc_v2", (CuPtr*, size_t))                                               \
  X(memory_free, "cuMemFree_v2", (CuPtr))                                                          \
  X(host_alloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                      \
  X(host_free, "cuMemFreeHost", (void*))                                                           \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (CuPtr, const void*, size_t, CuStream))                \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, CuPtr, size_t, CuStream))                        \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", (CuPtr, CuPtr, size_t, CuStream))                      \
  X(fill8, "cuMemsetD8Async", (CuPtr, unsigned char, size_t, CuStream))                            \
  X(stream_create, "cuStreamCreate", (CuStream*, unsigned))                                        \
  X(stream_destroy, "cuStreamDestroy_v2", (CuStream))                                              \
  X(stream_sync, "cuStreamSynchronize", (CuStream))                                                \
  X(stream_wait, "cuStreamWaitEvent", (CuStream, CuEvent, unsigned))                               \
  X(event_create, "cuEventCreate", (CuEvent*, unsigned))                                           \
  X(event_destroy, "cuEventDestroy_v2", (CuEvent))                                                 \
  X(event_record, "cuEventRecord", (CuEvent, CuStream))                                            \
  X(event_sync, "cuEventSynchronize", (CuEvent))                                                   \
  X(event_elapsed, "cuEventElapsedTime", (float*, CuEvent, CuEvent))                               \
  X(module_load, "cuModuleLoadDataEx", (CuModule*, const void*, unsigned, int*, void**))           \
  X(module_unload, "cuModuleUnload", (CuModule))                                                   \
  X(module_function, "cuModuleGetFunction", (CuFunction*, CuModule, const char*))                  \
  X(function_set, "cuFuncSetAttribute", (CuFunction, int, int))                                    \
  X(function_get, "cuFuncGetAttribute", (int*, int, CuFunction))                                   \
  X(launch, "cuLaunchKernelEx", (const LaunchConfig*, CuFunction, void**, void**))                 \
  X(capture_begin, "cuStreamBeginCapture_v2", (CuStream, int))                                     \
  X(capture_end, "cuStreamEndCapture", (CuStream, CuGraph*))                                       \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (CuGraphExec*, CuGraph, unsigned long long)) \
  X(graph_launch, "cuGraphLaunch", (CuGraphExec, CuStream))                                        \
  X(graph_exec_destroy, "cuGraphExecDestroy", (CuGraphExec))                                       \
  X(graph_destroy, "cuGraphDestroy", (CuGraph))

struct Driver {
#define FS_CUDA_DECLARE(name, symbol, params) CuResult(*name) params = nullptr;
  FS_CUDA_FUNCTIONS(FS_CUDA_DECLARE)
#undef FS_CUDA_DECLARE
  int version = 0;  // 13000 = CUDA 13.0
};

/// The driver, initialised. kUnavailable in one line when the library, a symbol or a device is missing. The
/// outcome of the first call stands for the process.
Result<const Driver*> load_driver();

/// The same with the library's name given, never cached: for tests of the failure messages.
Result<Driver> load_driver_from(const char* library);

/// An Error of a failed driver call: "cuda: WHAT: NAME (text)".
Error driver_error(const Driver& driver, CuResult code, std::string_view what);

}  // namespace firesteel::gpu
