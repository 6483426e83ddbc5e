// CHECK: aborts on a broken invariant of our own. No request, file or peer may be able to reach one; what
// comes from outside is reported through Result (base/result.h).
#pragma once

namespace firesteel {
[[noreturn]] void check_failed(const char* file, int line, const char* what);
}

#define CHECK(cond)                                         \
  do {                                                      \
    if (!(cond)) [[unlikely]]                               \
      ::firesteel::check_failed(__FILE__, __LINE__, #cond); \
  } while (false)
