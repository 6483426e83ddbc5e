#include <cstdio>

#include "app/commands.h"

namespace firesteel {

int run_version() {
#if defined(__aarch64__)
  const char* machine = "aarch64";
#else
  const char* machine = "x86-64";
#endif
  std::printf("firesteel %s (%s, %s)\n", FIRESTEEL_VERSION, FIRESTEEL_COMMIT, machine);
  return 0;
}

}  // namespace firesteel
