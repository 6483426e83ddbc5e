// A short name for what a model directory holds, for ranks to compare.
#pragma once

#include <string>

#include "base/result.h"
#include "model/checkpoint.h"

namespace firesteel {

/// 16 hexadecimal digits over the config, every tensor's name, type, shape and size, and the bytes at evenly
/// spread places of each file: enough to tell two checkpoints apart, without reading all of one.
Result<std::string> model_fingerprint(const Checkpoint& checkpoint);

}  // namespace firesteel
