// The tasks of `check tools`: a request each, and what a right reply to it is. They ask for nothing that a
// small model could not do. Constant data and pure functions.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/tool_reply.h"

namespace firesteel {

struct ToolTask {
  std::string name;
  nlohmann::ordered_json body;  // a chat request without model and stream
  /// What is wrong with a reply, "" for a right one.
  std::function<std::string(const ToolReply&)> judge;
  bool optional = false;  // a server may say that it does not do this
};

std::vector<ToolTask> tool_tasks();

}  // namespace firesteel
