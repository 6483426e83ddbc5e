// Exchange: the sum over ranks of a forward's parts, as CudaOps issues it.
//
// send() and receive() issue the two halves on the forward's stream, so that they are recorded with it; what
// is issued between them may run while the parts are under way. Owned by CudaOps; all calls come from the
// engine's thread. A rank that is lost while a forward runs ends that forward within seconds: the stream
// comes to its end with numbers that mean nothing, and finish() says why.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "gpu/device.h"

namespace firesteel::cuda {

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// A forward of `rows` rows begins; nothing is in flight.
  virtual void begin(int32_t rows) = 0;
  /// Takes `part` [rows, n].
  virtual Status send(const gpu::Stream& stream, const float* part, int32_t n) = 0;
  /// Replaces it with the sum.
  virtual Status receive(const gpu::Stream& stream, float* part, int32_t n) = 0;
  /// The forward has ended on the GPU. The first failure of its sums.
  virtual Status finish() = 0;
};

}  // namespace firesteel::cuda
