// A script: what a ScriptedEngine answers instead of a model. JSON lines, the first that fits a prompt is
// used:
//
//   {"when": "weather", "reply": "I look.</think><tool_call>…</tool_call>", "cut": "byte", "delay_ms": 20}
//
// What a line is compared with is read back from the prompt's ids, so that it is exactly what a model would
// have seen: the turn tokens in them are the template's own and cannot be forged by a caller's text.
// docs/scripted.md describes the fields. Immutable after parse(); reply() from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/scripted_engine.h"
#include "text/tokenizer.h"

namespace firesteel {

/// What of a prompt a script's lines look at.
struct PromptEnd {
  std::string user;  // text of the last user turn; the whole prompt's when it has none (/v1/completions)
  std::optional<std::string> result;  // the tool results that wait for an answer; none: the user does
};

class Script {
 public:
  /// `path` is named in errors, with the number of the line: kInvalidFile for what is no script line,
  /// kNotFound for a script without one. `end_ids`: the tokens that end a reply, the first that exists is
  /// written behind each.
  static Result<Script> parse(std::string_view text, const std::string& path,
                              std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> end_ids);

  PromptEnd read(const std::vector<int32_t>& prompt) const;
  /// The reply of the first line that fits, which is named in the log. None fits: an empty reply that fails
  /// with kUnsupported.
  ScriptedReply reply(const std::vector<int32_t>& prompt) const;

 private:
  struct Line {
    size_t number = 0;  // in the file, from 1
    std::string when;
    std::optional<std::string> result;
    ScriptedReply reply;
  };
  struct Reader;  // of one line

  Script() = default;

  std::string path_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t user_ = -1, observation_ = -1;  // turn tokens, -1: the tokenizer has none
  std::vector<int32_t> turns_;            // all of them
  std::vector<Line> lines_;
};

}  // namespace firesteel
