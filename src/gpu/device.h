// One GPU: its context, memory, streams, events, modules, typed launches and graphs.
//
// A Device owns the primary context of one GPU; everything made from it must be destroyed before it. One
// thread uses a Device (current() must have been called on that thread; open() does it for the caller). Sizes
// are bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "gpu/driver.h"
#include "gpu/embedded.h"

namespace firesteel::gpu {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  std::array<uint8_t, 16> uuid{};  // no two GPUs (or parts of one, where it is cut into several) share it
  int arch = 0;                    // compute capability × 10: 90, 121
  int multiprocessors = 0;
  int clock_khz = 0;         // maximum of the multiprocessors
  int shared_per_block = 0;  // opt-in maximum
  size_t l2_bytes = 0;
  size_t memory_bytes = 0;
  bool integrated = false;  // memory shared with the host (DGX Spark)
  int driver_version = 0;
};

class Device;

/// A queue of device work. Move-only.
class Stream {
 public:
  Stream() = default;
  Stream(Stream&& o) noexcept : driver_(o.driver_), handle_(std::exchange(o.handle_, nullptr)) {}
  Stream& operator=(Stream&& o) noexcept;
  ~Stream();
  CuStream handle() const { return handle_; }
  Status synchronize() const;

 private:
  friend class Device;
  const Driver* driver_ = nullptr;
  CuStream handle_ = nullptr;
};

/// A point in a stream. Move-only. elapsed_ms needs two timed events that have completed.
class Event {
 public:
  Event() = default;
  Event(Event&& o) noexcept : driver_(o.driver_), handle_(std::exchange(o.handle_, nullptr)) {}
  Event& operator=(Event&& o) noexcept;
  ~Event();
  Status record(const Stream& stream) const;
  Status wait_on(const Stream& stream) const;  // work issued on `stream` from now on runs after this event
  Status synchronize() const;
  Result<float> elapsed_ms(const Event& end) const;

 private:
  friend class Device;
  const Driver* driver_ = nullptr;
  CuEvent handle_ = nullptr;
};

/// Device memory, or page-locked host memory. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept;
  ~Buffer();
  /// Device memory: an address for kernels only. Pinned memory: an ordinary address.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  friend class Device;
  const Driver* driver_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool pinned_ = false;
};

/// A loaded image. Move-only; functions taken from it live as long as it does.
class Module {
 public:
  Module() = default;
  Module(Module&& o) noexcept : driver_(o.driver_), handle_(std::exchange(o.handle_, nullptr)) {}
  Module& operator=(Module&& o) noexcept;
  ~Module();
  Result<CuFunction> function(const char* name) const;

 private:
  friend class Device;
  const Driver* driver_ = nullptr;
  CuModule handle_ = nullptr;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchShape {
  Dim3 grid;
  unsigned threads = 1;
  unsigned shared = 0;  // dynamic shared memory
};

/// A kernel whose one parameter is the struct P, passed by value: the same header declares P for host and
/// device.
template <typename P>
struct Kernel {
  CuFunction function = nullptr;
  const char* name = "";
};

/// A captured sequence of launches. Move-only.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& o) noexcept : driver_(o.driver_), handle_(std::exchange(o.handle_, nullptr)) {}
  Graph& operator=(Graph&& o) noexcept;
  ~Graph();
  bool valid() const { return handle_ != nullptr; }
  Status replay(const Stream& stream) const;

 private:
  friend class Device;
  const Driver* driver_ = nullptr;
  CuGraphExec handle_ = nullptr;
};

class Device {
 public:
  /// GPUs that the driver shows. kUnavailable without a driver.
  static Result<int> count();
  /// GPU number `ordinal` of those the driver shows. kUnavailable without driver or GPU, kInvalidArgument for
  /// a number out of range.
  static Result<std::unique_ptr<Device>> open(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  Status make_current() const;
  struct Memory {
    size_t free = 0, total = 0;
  };
  Result<Memory> memory() const;

  Result<Stream> stream() const;
  Result<Event> event(bool timed) const;
  Result<Buffer> allocate(size_t bytes, std::string_view what) const;
  Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) const;
  /// The cubin for this GPU, or the PTX text (compiled by the driver now).
  Result<Module> load(const EmbeddedModule& module) const;
  /// A kernel by name, allowed `shared` bytes of dynamic shared memory.
  template <typename P>
  Result<Kernel<P>> kernel(const Module& module, const char* name, int shared = 0) const {
    ASSIGN_OR_RETURN(CuFunction function, prepare(module, name, shared));
    return Kernel<P>{function, name};
  }

  template <typename P>
  Status launch(const Stream& stream, const Kernel<P>& kernel, const LaunchShape& shape,
                const P& params) const {
    return launch_raw(stream, kernel.function, kernel.name, shape, &params);
  }

  // Asynchronous on `stream`; host memory must stay until the stream has passed.
  Status to_device(const Stream& stream, void* dst, const void* host, size_t bytes) const;
  Status to_host(const Stream& stream, void* host, const void* src, size_t bytes) const;
  Status on_device(const Stream& stream, void* dst, const void* src, size_t bytes) const;
  Status fill(const Stream& stream, void* dst, uint8_t value, size_t bytes) const;

  /// Work issued on `stream` (and on streams that wait for it) between begin and end is recorded, not run. An
  /// op that fails in between surfaces at capture_end.
  Status capture_begin(const Stream& stream) const;
  Result<Graph> capture_end(const Stream& stream) const;

  /// Whether a kernel may be brought in while the one before it ends (compute capability 9.0 and later; on by
  /// default): every kernel must then begin with griddepcontrol.wait.
  void set_overlap(bool on) { overlap_ = on; }

  const Driver& driver() const { return *driver_; }

 private:
  Device() = default;
  Result<CuFunction> prepare(const Module& module, const char* name, int shared) const;
  Status launch_raw(const Stream& stream, CuFunction function, const char* name, const LaunchShape& shape,
                    const void* params) const;
  Status check(CuResult code, std::string_view what) const;

  const Driver* driver_ = nullptr;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  DeviceInfo info_;
  bool overlap_ = true;
};

}  // namespace firesteel::gpu
