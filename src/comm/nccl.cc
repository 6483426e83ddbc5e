#include "comm/nccl.h"

#include <dlfcn.h>

namespace firesteel {

namespace {

constexpr int kOldest = 21800;  // calls that do not block, and configurations of 2.17

Error unavailable(std::string what) { return {ErrorCode::kUnavailable, std::move(what)}; }

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Result<Nccl> load_nccl_from(const char* library_name) {
  void* const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // never closed: it has threads
  if (library == nullptr) return unavailable(std::string(library_name) + " cannot be opened");
  Nccl nccl;
#define FS_NCCL_RESOLVE(result, name, symbol, params)                        \
  nccl.name = reinterpret_cast<decltype(nccl.name)>(dlsym(library, symbol)); \
  if (nccl.name == nullptr) return unavailable(std::string(library_name) + " lacks " + symbol);
  FS_NCCL_FUNCTIONS(FS_NCCL_RESOLVE)
#undef FS_NCCL_RESOLVE
  if (const NcclResult code = nccl.get_version(&nccl.version); code != 0)
    return unavailable(std::string(library_name) + " does not start: " + nccl.error_string(code));
  if (nccl.version < kOldest)
    return unavailable(std::string(library_name) + " is NCCL " + nccl_version_text(nccl.version) + "; " +
                       nccl_version_text(kOldest) + " or later is needed");
  return nccl;
}

Result<const Nccl*> load_nccl() {
  static const Result<Nccl> loaded = load_nccl_from("libnccl.so.2");
  if (!loaded.ok()) return loaded.error();
  return &loaded.value();
}

}  // namespace firesteel
