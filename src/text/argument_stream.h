// The arguments of a call that is still being written, as JSON text piece by piece. Joined, the pieces of a
// call that becomes whole are ToolCall::arguments, but for a key that the model wrote twice: it is there
// twice.
//
// Only calls in the model's own form (keys and values in tags) to an offered tool are followed: what else may
// become a call is known as one only at its end. One per call; not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/tool_calls.h"

namespace firesteel {

class ArgumentStream {
 public:
  explicit ArgumentStream(const ToolSet& tools) : tools_(&tools) {}

  /// After the scanner advanced over `text` and found no end of it, or (`whole`) a call. Appends what became
  /// certain.
  void advance(const ToolCallScanner& scanner, std::string_view text, bool whole, std::string* out);

  /// A call has begun, to the tool name().
  bool begun() const { return tool_ >= 0; }
  const std::string& name() const { return tools_->name(tool_); }

 private:
  void begin_value(std::string_view key, std::string* out);
  void add_text(std::string_view value, size_t until, std::string* out);

  const ToolSet* tools_;
  int tool_ = -1;
  size_t values_ = 0;      // that are out whole
  bool in_text_ = false;   // a text is out in part:
  size_t text_bytes_ = 0;  // so much of it
};

}  // namespace firesteel
