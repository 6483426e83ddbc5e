// A model of a published shape with random weights, so that speed can be measured without a checkpoint.
//
// Only headers are written: a config and one safetensors file whose data is a hole. Everything that plans and
// maps works on it as on a checkpoint; the loader makes the weights up (ops/random_source.h). Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "model/model.h"

namespace firesteel {

struct SyntheticShape {
  std::string name;    // "glm-5.3-flash"
  int32_t layers = 0;  // its first so many layers
};
/// "glm-5.3-flash" or "glm-5.3-flash:layers=N". kInvalidArgument says which names exist.
Result<SyntheticShape> parse_synthetic(std::string_view text);

/// Routed experts EXL3 mcg at 4 bits, everything else bf16, no MTP layer. The folder that holds the headers
/// while they are read is removed before this returns.
Result<ModelFiles> open_synthetic(const SyntheticShape& shape, const Placement& placement, DenseFormat dense);

}  // namespace firesteel
