// A libnccl.so.2 for tests: the functions that comm/nccl.h names, for ranks that share one GPU, which NCCL
// itself refuses before 2.30. Ranks are threads of one process or processes of one machine. What callers must
// cope with is as in NCCL: groups form in the background, gathers are issued by another thread (into a
// recording as well), and an abort ends what runs at once but returns only when no recorded graph holds the
// group.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "comm/nccl.h"
#include "control.h"
#include "gpu/driver.h"
#include "ops/cuda/modules.h"
#include "shared.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using firesteel::NcclConfig;
using firesteel::NcclId;
using firesteel::NcclResult;
using namespace firesteel::standin;
namespace gpu = firesteel::gpu;

extern "C" {
__attribute__((visibility("default"))) Control firesteel_nccl_standin;
}

/// The one function of `base` that is needed here.
void firesteel::result_without_value(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  std::abort();
}

namespace {

constexpr NcclResult kCudaError = 1, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6;
Control& control_block = firesteel_nccl_standin;

struct CuUserObject;
/// Functions of the driver that the program itself does not use.
struct More {
  gpu::CuResult (*get_context)(gpu::CuContext*);
  gpu::CuResult (*get_device)(gpu::CuDevice*);
  gpu::CuResult (*host_register)(void*, size_t, unsigned);
  gpu::CuResult (*host_address)(gpu::CuPtr*, void*, unsigned);
  gpu::CuResult (*capture_info)(gpu::CuStream, int*, uint64_t*, gpu::CuGraph*, const void**, size_t*);
  gpu::CuResult (*object_create)(CuUserObject**, void*, void (*)(void*), unsigned, unsigned);
  gpu::CuResult (*object_retain)(gpu::CuGraph, CuUserObject*, unsigned, unsigned);
  bool whole = false;
};

const More& more() {
  static const More table = [] {
    More m{};
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto get = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    m.whole = library != nullptr && get(m.get_context, "cuCtxGetCurrent") &&
              get(m.get_device, "cuCtxGetDevice") && get(m.host_register, "cuMemHostRegister_v2") &&
              get(m.host_address, "cuMemHostGetDevicePointer_v2") &&
              get(m.capture_info, "cuStreamGetCaptureInfo_v2") &&
              get(m.object_create, "cuUserObjectCreate") && get(m.object_retain, "cuGraphRetainUserObject");
    return m;
  }();
  return table;
}

}  // namespace

struct firesteel::NcclCommOpaque {
  const gpu::Driver* driver = nullptr;
  std::string name;
  int rank = 0, ranks = 0;
  gpu::CuContext context = nullptr;
  gpu::CuDevice device = 0;
  gpu::CuModule module = nullptr;
  gpu::CuFunction gather = nullptr;
  Shared* shared = nullptr;
  gpu::CuPtr shared_on_gpu = 0;
  std::atomic<NcclResult> state{firesteel::kNcclInProgress};
  std::atomic<bool> given_up{false}, formed{false};
  std::atomic<int> graphs{0};
  std::thread worker;

  RankState& mine() { return shared->ranks[rank]; }
  NcclResult join();
  NcclResult take_gpu();
};

namespace {

using Comm = firesteel::NcclCommOpaque;

std::atomic_ref<uint32_t> word(uint32_t& value) { return std::atomic_ref<uint32_t>(value); }

}  // namespace

NcclResult Comm::take_gpu() {
  if (driver->context_set(context) != 0) return kCudaError;
  const std::span<const gpu::EmbeddedModule> modules = firesteel::embedded_modules();
  if (modules.empty()) return kSystemError;
  int major = 0, minor = 0;
  driver->device_attribute(&major, gpu::kAttrMajor, device);
  driver->device_attribute(&minor, gpu::kAttrMinor, device);
  for (const gpu::EmbeddedImage& image : modules[0].images)
    if (module == nullptr && (image.arch == 0 || image.arch == 10 * major + minor))
      driver->module_load(&module, image.bytes.data(), 0, nullptr, nullptr);
  int registers = 0;
  if (module == nullptr || driver->module_function(&gather, module, "standin_gather") != 0 ||
      driver->function_get(&registers, gpu::kFuncRegisters, gather) != 0)  // loads its code now
    return kCudaError;
  constexpr unsigned kPortable = 1, kMapped = 2;
  if (more().host_register(shared, sizeof(Shared), kPortable | kMapped) != 0 ||
      more().host_address(&shared_on_gpu, shared, 0) != 0)
    return kCudaError;
  return 0;
}

NcclResult Comm::join() {
  if (control_block.refuse_rank == rank) return kSystemError;
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kSystemError;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kSystemError;
  shared = static_cast<Shared*>(memory);
  if (const NcclResult code = take_gpu(); code != 0) return code;
  const auto wish = [&](uint32_t turn) { return control_block.rank == rank && turn != 0 ? turn : kNever; };
  mine().stall_at = wish(control_block.stall_at);
  mine().fail_at = wish(control_block.fail_at);
  word(mine().joined).store(1);
  for (int r = 0; r < ranks; ++r)
    while (word(shared->ranks[r].joined).load() == 0) {
      if (given_up) return kSystemError;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  shm_unlink(name.c_str());
  formed = true;
  ++control_block.formed;
  return 0;
}

EXPORTED NcclResult ncclGetVersion(int* version) {
  *version = control_block.version;
  return 0;
}

EXPORTED NcclResult ncclGetUniqueId(NcclId* id) {
  static std::atomic<int> count{0};
  std::snprintf(id->bytes, sizeof id->bytes, "/fs-standin-%d-%d", static_cast<int>(getpid()), ++count);
  return 0;
}

EXPORTED NcclResult ncclCommInitRankConfig(Comm** out, int ranks, NcclId id, int rank, NcclConfig* config) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks || config->magic != 0xcafebeef ||
      config->blocking != 0)
    return kInvalidArgument;
  const auto driver = gpu::load_driver();
  if (!driver.ok() || !more().whole) return kCudaError;
  auto comm = std::make_unique<Comm>();
  comm->driver = *driver;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->name = id.bytes;
  if (more().get_context(&comm->context) != 0 || more().get_device(&comm->device) != 0) return kCudaError;
  *out = comm.release();
  (*out)->worker = std::thread([c = *out] { c->state = c->join(); });
  return firesteel::kNcclInProgress;
}

EXPORTED NcclResult ncclCommGetAsyncError(Comm* comm, NcclResult* state) {
  *state = comm->state;
  if (*state == 0 && word(comm->mine().posted).load() + 1 >= comm->mine().fail_at) *state = kRemoteError;
  return 0;
}

EXPORTED NcclResult ncclCommCuDevice(Comm* comm, int* device) {
  *device = comm->device;
  return 0;
}

EXPORTED NcclResult ncclAllGather(const void* part, void* all, size_t count, int type, Comm* comm,
                                  gpu::CuStream stream) {
  if (type != firesteel::kNcclFloat32 || comm->state != 0) return kInvalidArgument;
  ++control_block.gathers;
  comm->worker.join();
  comm->state = firesteel::kNcclInProgress;
  comm->worker = std::thread([=] {
    const auto issue = [&]() -> gpu::CuResult {
      if (const auto code = comm->driver->context_set(comm->context); code != 0) return code;
      int capturing = 0;
      uint64_t capture = 0;
      gpu::CuGraph graph = nullptr;
      if (const auto code = more().capture_info(stream, &capturing, &capture, &graph, nullptr, nullptr);
          code != 0)
        return code;
      if (capturing != 0) {
        CuUserObject* object = nullptr;
        ++comm->graphs;
        constexpr unsigned kNoSync = 1, kMove = 1;
        const auto dies = [](void* c) { --static_cast<Comm*>(c)->graphs; };
        if (const auto code = more().object_create(&object, comm, dies, 1, kNoSync); code != 0) return code;
        if (const auto code = more().object_retain(graph, object, 1, kMove); code != 0) return code;
      }
      GatherParams params{reinterpret_cast<Shared*>(comm->shared_on_gpu),
                          static_cast<const uint32_t*>(part),
                          static_cast<uint32_t*>(all),
                          count,
                          static_cast<uint32_t>(comm->rank),
                          static_cast<uint32_t>(comm->ranks)};
      void* arguments[] = {&params};
      const gpu::LaunchConfig config{1, 1, 1, 1024, 1, 1, 0, stream, nullptr, 0};
      return comm->driver->launch(&config, comm->gather, arguments, nullptr);
    };
    comm->state = issue() == 0 ? 0 : kCudaError;
  });
  return firesteel::kNcclInProgress;
}

EXPORTED NcclResult ncclCommAbort(Comm* comm) {
  if (comm->formed) ++control_block.aborted;
  comm->given_up = true;
  if (comm->shared != nullptr) word(comm->mine().aborted).store(1);
  comm->worker.join();
  const auto start = std::chrono::steady_clock::now();
  while (comm->graphs != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) continue;
    std::fprintf(stderr, "stand-in: %d recorded graphs still hold the group\n", comm->graphs.load());
    std::abort();  // NCCL would wait for ever
  }
  shm_unlink(comm->name.c_str());
  delete comm;  // the shared memory stays: gathers on the GPU may still look at it
  return 0;
}

EXPORTED const char* ncclGetErrorString(NcclResult code) {
  return code == kRemoteError ? "remote process exited or there was a network error" : "the stand-in failed";
}

EXPORTED const char* ncclGetLastError(Comm*) { return "said by the stand-in\nand more"; }
