// Parameters of the kernels of exchange.cu.
#pragma once

#include <cstdint>

namespace firesteel::cuda {

struct ExchangeFlagParams {  // host memory
  uint32_t* flag;
  uint32_t value;
};

struct ExchangeSumParams {
  const float* all;  // [ranks, count]
  float* part;       // [count]
  int64_t count;
  int32_t ranks;  // 2 or 4
  uint32_t value;
  uint32_t* progress;  // host memory; becomes `value`
};

}  // namespace firesteel::cuda
