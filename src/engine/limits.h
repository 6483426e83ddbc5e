// The checks that every Engine makes before it takes a request.
#pragma once

#include "engine/engine.h"

namespace firesteel {

/// kInvalidArgument for ids outside the vocabulary or settings out of range, kContextLength for a request
/// that can never fit the window.
Status check_request(const GenerationRequest& request, const EngineInfo& info);

}  // namespace firesteel
