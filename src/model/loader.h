// Reads a mapped model's weights into a backend's memory.
#pragma once

#include "model/model.h"
#include "model/weights.h"

namespace firesteel {

/// Loads everything in `files.weights` into one arena of `ops`, exactly as large as measure_memory() says.
/// Planes are left unset. Errors name the tensor and the file.
Result<Weights> load_weights(const ModelFiles& files, Ops& ops, const LoadProgress& progress);

}  // namespace firesteel
