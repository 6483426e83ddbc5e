#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace firesteel {

void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "firesteel: broken invariant at %s:%d: %s\n", file, line, what);
  std::abort();
}

void result_without_value(const Error& error) {
  std::fprintf(stderr, "firesteel: value() of a failed Result: %s\n", error.message.c_str());
  std::abort();
}

}  // namespace firesteel
