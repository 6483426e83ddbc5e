// What the tests of models on CUDA share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cuda/cuda_ops.h"
#include "support/golden.h"

namespace firesteel::test {

/// The backend, or null where no GPU is.
inline std::unique_ptr<Ops> try_cuda_ops() {
  auto ops = make_cuda_ops(0);
  return ops.ok() ? std::move(ops).value() : nullptr;
}

inline std::string model_dir(const std::string& name) {
  return name == "demo" ? source_dir() + "/models/demo" : golden_model_dir(name);
}

inline std::vector<int32_t> prompt_of(const std::string& name, size_t count) {
  std::vector<int32_t> ids;
  const std::vector<int32_t> golden = Golden::of(name == "demo" ? "tiny" : name).ints("input_ids");
  while (ids.size() < count) ids.insert(ids.end(), golden.begin(), golden.end());
  ids.resize(count);
  return ids;
}

inline std::string test_name(const char* name) {
  std::string out = name;
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace firesteel::test

/// Skips the test where no GPU is.
#define NEEDS_GPU() \
  if (firesteel::test::try_cuda_ops() == nullptr) GTEST_SKIP() << "no GPU that this build has code for"
