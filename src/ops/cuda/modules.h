// The GPU code of this build; empty when it was built without nvcc.
#pragma once

#include <span>

#include "gpu/embedded.h"

namespace firesteel {
std::span<const gpu::EmbeddedModule> embedded_modules();
}  // namespace firesteel
