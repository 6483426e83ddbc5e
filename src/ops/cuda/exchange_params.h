// Parameters of the kernels of exchange.cu.
#pragma once

#include <cstdint>

namespace firesteel::cuda {

struct ExchangeSendParams {
  const float* part;  // [count]
  float* host;        // [count] in host memory
  int64_t count;
  uint32_t* arrived;  // blocks that have ended: zero before and after
  uint32_t* flag;     // host memory; becomes `value`
  uint32_t value;
};

struct ExchangeWaitParams {
  uint32_t* flag;  // host memory
};

struct ExchangeTakeParams {
  const float* host;  // [count] in host memory
  float* part;        // [count]
  int64_t count;
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
