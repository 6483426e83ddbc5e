// What the tests of models on CUDA share.
#pragma once

#include <gtest/gtest.h>

#include "ops/cuda/cuda_ops.h"

namespace firesteel::test {

/// The backend, or null where no GPU is.
inline std::unique_ptr<Ops> try_cuda_ops() {
  auto ops = make_cuda_ops(0);
  return ops.ok() ? std::move(ops).value() : nullptr;
}

}  // namespace firesteel::test

/// Skips the test where no GPU is.
#define NEEDS_GPU() \
  if (firesteel::test::try_cuda_ops() == nullptr) GTEST_SKIP() << "no GPU that this build has code for"
