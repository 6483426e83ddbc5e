#include "gpu/driver.h"

#include <dlfcn.h>

#include <string>

namespace firesteel::gpu {

namespace {

constexpr CuResult kOutOfMemory = 2;

template <typename F>
bool resolve(void* library, const char* symbol, F& function) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace

Error driver_error(const Driver& driver, CuResult code, std::string_view what) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name != nullptr) driver.error_name(code, &name);
  if (driver.error_string != nullptr) driver.error_string(code, &text);
  std::string message = "cuda: " + std::string(what) + ": ";
  message += name != nullptr ? name : "error " + std::to_string(code);
  if (text != nullptr) message += " (" + std::string(text) + ")";
  return Error{code == kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal, std::move(message)};
}

Result<Driver> load_driver_from(const char* library_name) {
  void* library =
      dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // never closed: the driver stays for the process
  if (library == nullptr) {
    return Error{ErrorCode::kUnavailable, std::string("no NVIDIA driver here (") + library_name +
                                              " cannot be opened): install the driver, or use --device cpu"};
  }
  Driver driver;
#define FS_CUDA_RESOLVE(name, symbol, params)                                                            \
  if (!resolve(library, symbol, driver.name)) {                                                          \
    return Error{ErrorCode::kUnavailable,                                                                \
                 std::string("the NVIDIA driver lacks ") + symbol + ": update it, or use --device cpu"}; \
  }
  FS_CUDA_FUNCTIONS(FS_CUDA_RESOLVE)
#undef FS_CUDA_RESOLVE
  int devices = 0;
  CuResult code = driver.init(0);
  if (code == 0) code = driver.driver_version(&driver.version);
  if (code == 0) code = driver.device_count(&devices);
  if (code != 0) {
    Error error = driver_error(driver, code, "the driver does not start");
    error.code = ErrorCode::kUnavailable;
    return error;
  }
  if (devices == 0) {
    return Error{ErrorCode::kUnavailable, "the NVIDIA driver sees no GPU: use --device cpu"};
  }
  return driver;
}

Result<const Driver*> load_driver() {
  static const Result<Driver> loaded = load_driver_from("libcuda.so.1");
  if (!loaded.ok()) return loaded.error();
  return &loaded.value();
}

}  // namespace firesteel::gpu
