#include "gpu/device.h"

#include "base/check.h"

namespace firesteel::gpu {

namespace {

Status status_of(const Driver& driver, CuResult code, std::string_view what) {
  if (code == 0) return {};
  return driver_error(driver, code, what);
}

CuPtr address(const void* p) { return reinterpret_cast<CuPtr>(p); }

/// Swaps two handles that are owned together with their driver table.
template <typename T>
void swap_handles(T& a, T& b, const Driver*& da, const Driver*& db) {
  std::swap(a, b);
  std::swap(da, db);
}

}  // namespace

Stream& Stream::operator=(Stream&& o) noexcept {
  swap_handles(handle_, o.handle_, driver_, o.driver_);
  return *this;
}
Stream::~Stream() {
  if (handle_ != nullptr) driver_->stream_destroy(handle_);
}
Status Stream::synchronize() const {
  return status_of(*driver_, driver_->stream_sync(handle_), "device work");
}

Event& Event::operator=(Event&& o) noexcept {
  swap_handles(handle_, o.handle_, driver_, o.driver_);
  return *this;
}
Event::~Event() {
  if (handle_ != nullptr) driver_->event_destroy(handle_);
}
Status Event::record(const Stream& stream) const {
  return status_of(*driver_, driver_->event_record(handle_, stream.handle()), "event record");
}
Status Event::wait_on(const Stream& stream) const {
  return status_of(*driver_, driver_->stream_wait(stream.handle(), handle_, 0), "event wait");
}
Status Event::synchronize() const { return status_of(*driver_, driver_->event_sync(handle_), "device work"); }
Result<float> Event::elapsed_ms(const Event& end) const {
  float ms = 0;
  RETURN_IF_ERROR(status_of(*driver_, driver_->event_elapsed(&ms, handle_, end.handle_), "event time"));
  return ms;
}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  swap_handles(data_, o.data_, driver_, o.driver_);
  std::swap(size_, o.size_);
  std::swap(pinned_, o.pinned_);
  return *this;
}
Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (pinned_) {
    driver_->host_free(data_);
  } else {
    driver_->memory_free(address(data_));
  }
}

Module& Module::operator=(Module&& o) noexcept {
  swap_handles(handle_, o.handle_, driver_, o.driver_);
  return *this;
}
Module::~Module() {
  if (handle_ != nullptr) driver_->module_unload(handle_);
}
Result<CuFunction> Module::function(const char* name) const {
  CuFunction function = nullptr;
  RETURN_IF_ERROR(status_of(*driver_, driver_->module_function(&function, handle_, name), name));
  return function;
}

Graph& Graph::operator=(Graph&& o) noexcept {
  swap_handles(handle_, o.handle_, driver_, o.driver_);
  return *this;
}
Graph::~Graph() {
  if (handle_ != nullptr) driver_->graph_exec_destroy(handle_);
}
Status Graph::replay(const Stream& stream) const {
  return status_of(*driver_, driver_->graph_launch(handle_, stream.handle()), "graph launch");
}

Result<int> Device::count() {
  ASSIGN_OR_RETURN(const Driver* driver, load_driver());
  int count = 0;
  RETURN_IF_ERROR(status_of(*driver, driver->device_count(&count), "device count"));
  return count;
}

Result<std::unique_ptr<Device>> Device::open(int ordinal) {
  ASSIGN_OR_RETURN(const Driver* driver, load_driver());
  ASSIGN_OR_RETURN(const int count, Device::count());
  if (ordinal < 0 || ordinal >= count) {
    return Error{ErrorCode::kInvalidArgument, "there is no GPU " + std::to_string(ordinal) +
                                                  ": the driver shows " + std::to_string(count)};
  }
  std::unique_ptr<Device> device(new Device());
  device->driver_ = driver;
  RETURN_IF_ERROR(device->check(driver->device_get(&device->device_, ordinal), "device"));
  DeviceInfo& info = device->info_;
  char name[256] = {};
  RETURN_IF_ERROR(device->check(driver->device_name(name, sizeof name - 1, device->device_), "device name"));
  info.ordinal = ordinal;
  info.name = name;
  RETURN_IF_ERROR(device->check(driver->device_uuid(info.uuid.data(), device->device_), "device UUID"));
  info.driver_version = driver->version;
  int major = 0, minor = 0, l2 = 0, integrated = 0;
  const std::pair<int, int*> wanted[] = {{kAttrMajor, &major},
                                         {kAttrMinor, &minor},
                                         {kAttrMultiprocessors, &info.multiprocessors},
                                         {kAttrClockKhz, &info.clock_khz},
                                         {kAttrMaxSharedPerBlockOptin, &info.shared_per_block},
                                         {kAttrL2Bytes, &l2},
                                         {kAttrIntegrated, &integrated}};
  for (const auto& [attribute, value] : wanted) {
    RETURN_IF_ERROR(
        device->check(driver->device_attribute(value, attribute, device->device_), "device attribute"));
  }
  info.arch = major * 10 + minor;
  info.l2_bytes = static_cast<size_t>(l2);
  info.integrated = integrated != 0;
  RETURN_IF_ERROR(device->check(driver->device_memory(&info.memory_bytes, device->device_), "device memory"));
  RETURN_IF_ERROR(
      device->check(driver->context_retain(&device->context_, device->device_), "device context"));
  RETURN_IF_ERROR(device->make_current());
  return device;
}

Device::~Device() {
  if (context_ != nullptr) driver_->context_release(device_);
}

Status Device::check(CuResult code, std::string_view what) const { return status_of(*driver_, code, what); }

Status Device::make_current() const { return check(driver_->context_set(context_), "device context"); }

Result<Device::Memory> Device::memory() const {
  Memory m;
  RETURN_IF_ERROR(check(driver_->memory_info(&m.free, &m.total), "device memory"));
  return m;
}

Result<Stream> Device::stream() const {
  Stream stream;
  stream.driver_ = driver_;
  constexpr unsigned kNonBlocking = 1;
  RETURN_IF_ERROR(check(driver_->stream_create(&stream.handle_, kNonBlocking), "stream"));
  return stream;
}

Result<Event> Device::event(bool timed) const {
  Event event;
  event.driver_ = driver_;
  constexpr unsigned kNoTiming = 2;
  RETURN_IF_ERROR(check(driver_->event_create(&event.handle_, timed ? 0 : kNoTiming), "event"));
  return event;
}

Result<Buffer> Device::allocate(size_t bytes, std::string_view what) const {
  Buffer buffer;
  buffer.driver_ = driver_;
  CuPtr p = 0;
  const CuResult code = driver_->memory_alloc(&p, bytes == 0 ? 1 : bytes);
  if (code != 0) {
    return driver_error(*driver_, code,
                        std::string(what) + ", " + std::to_string(bytes >> 20) + " MiB of GPU memory");
  }
  buffer.data_ = reinterpret_cast<std::byte*>(p);
  buffer.size_ = bytes;
  return buffer;
}

Result<Buffer> Device::allocate_pinned(size_t bytes, std::string_view what) const {
  Buffer buffer;
  buffer.driver_ = driver_;
  buffer.pinned_ = true;
  void* p = nullptr;
  const CuResult code = driver_->host_alloc(&p, bytes == 0 ? 1 : bytes, 0);
  if (code != 0) {
    return driver_error(
        *driver_, code,
        std::string(what) + ", " + std::to_string(bytes >> 20) + " MiB of page-locked memory");
  }
  buffer.data_ = static_cast<std::byte*>(p);
  buffer.size_ = bytes;
  return buffer;
}

Result<Module> Device::load(const EmbeddedModule& embedded) const {
  const EmbeddedImage* chosen = nullptr;
  for (const EmbeddedImage& image : embedded.images) {
    if (image.arch == info_.arch) chosen = &image;
    if (image.arch == 0 && chosen == nullptr) chosen = &image;
  }
  if (chosen == nullptr) {
    return Error{ErrorCode::kUnsupported, "this build has no GPU code for " + info_.name};
  }
  Module module;
  module.driver_ = driver_;
  // A PTX image is text and must end in a zero: the embedding adds one.
  const CuResult code = driver_->module_load(&module.handle_, chosen->bytes.data(), 0, nullptr, nullptr);
  if (code != 0) return driver_error(*driver_, code, "GPU code " + std::string(embedded.name));
  return module;
}

Result<CuFunction> Device::prepare(const Module& module, const char* name, int shared) const {
  ASSIGN_OR_RETURN(CuFunction function, module.function(name));
  // Asking about a function loads its code now: the driver would otherwise do it at the first launch, and
  // wait for everything that runs, kernels that wait for another rank among it.
  int registers = 0;
  RETURN_IF_ERROR(check(driver_->function_get(&registers, kFuncRegisters, function), name));
  constexpr int kDefaultShared = 48 << 10;
  if (shared > kDefaultShared) {
    RETURN_IF_ERROR(check(driver_->function_set(function, kFuncMaxDynamicShared, shared), name));
  }
  return function;
}

Status Device::launch_raw(const Stream& stream, CuFunction function, const char* name,
                          const LaunchShape& shape, const void* params) const {
  void* arguments[] = {const_cast<void*>(params)};
  LaunchAttribute overlap;
  overlap.id = kLaunchProgrammaticSerialization;
  overlap.value = 1;
  const bool overlaps = overlap_ && info_.arch >= 90;
  const LaunchConfig config{shape.grid.x, shape.grid.y,    shape.grid.z, shape.threads,     1, 1,
                            shape.shared, stream.handle(), &overlap,     overlaps ? 1u : 0u};
  const CuResult code = driver_->launch(&config, function, arguments, nullptr);
  if (code != 0) return driver_error(*driver_, code, std::string("launch of ") + name);
  return {};
}

Status Device::to_device(const Stream& stream, void* dst, const void* host, size_t bytes) const {
  return check(driver_->copy_to_device(address(dst), host, bytes, stream.handle()), "copy to the device");
}
Status Device::to_host(const Stream& stream, void* host, const void* src, size_t bytes) const {
  return check(driver_->copy_to_host(host, address(src), bytes, stream.handle()), "copy from the device");
}
Status Device::on_device(const Stream& stream, void* dst, const void* src, size_t bytes) const {
  return check(driver_->copy_on_device(address(dst), address(src), bytes, stream.handle()),
               "copy on the device");
}
Status Device::fill(const Stream& stream, void* dst, uint8_t value, size_t bytes) const {
  return check(driver_->fill8(address(dst), value, bytes, stream.handle()), "fill");
}

Status Device::capture_begin(const Stream& stream) const {
  constexpr int kThreadLocal = 1;
  return check(driver_->capture_begin(stream.handle(), kThreadLocal), "graph capture");
}

Result<Graph> Device::capture_end(const Stream& stream) const {
  CuGraph graph = nullptr;
  RETURN_IF_ERROR(check(driver_->capture_end(stream.handle(), &graph), "graph capture"));
  Graph exec;
  exec.driver_ = driver_;
  const CuResult code = driver_->graph_instantiate(&exec.handle_, graph, 0);
  driver_->graph_destroy(graph);
  RETURN_IF_ERROR(check(code, "graph"));
  return exec;
}

}  // namespace firesteel::gpu
