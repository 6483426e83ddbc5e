#include "app/machine.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace firesteel {
namespace {

std::optional<uint64_t> read_number(const char* path) {
  std::ifstream in(path);
  uint64_t v = 0;
  if (in >> v) return v;
  return std::nullopt;
}

uint64_t mem_available() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (in >> key >> kib >> unit)
    if (key == "MemAvailable:") return kib * 1024;
  return 0;
}

}  // namespace

uint64_t usable_memory() {
  uint64_t free = mem_available();
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (limit && used) free = std::min(free, *limit > *used ? *limit - *used : 0);
  const uint64_t reserve = std::max<uint64_t>(free / 16, 512ull << 20);
  return free > reserve ? free - reserve : 0;
}

}  // namespace firesteel
