#include "app/version.h"

#include <cstdio>

#include "app/commands.h"
#include "commit.h"

namespace firesteel {

const char* program_version() { return FIRESTEEL_VERSION; }
const char* program_commit() { return FIRESTEEL_COMMIT; }
const char* program_architecture() {
#if defined(__aarch64__)
  return "aarch64";
#else
  return "x86-64";
#endif
}

int run_version() {
  std::printf("firesteel %s (%s, %s)\n", program_version(), program_commit(), program_architecture());
  return 0;
}

}  // namespace firesteel
