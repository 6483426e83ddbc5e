// Recognises one tool call in a reply as it is written.
//
//   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>
// with blanks between the parts; also a JSON object or <function=NAME><parameter=K>V</parameter></function>
// as the body, and a lost <arg_key>. An opener that no call follows is text: models quote the tag.
//
// A scanner belongs to one reply; not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/tool_schema.h"

namespace firesteel {

struct ToolCall {
  std::string name;       // as offered; as written when it was not offered
  std::string arguments;  // one JSON object, compact, non-ASCII raw, keys in the order written
  std::string markup;     // what the model wrote, from <tool_call> to </tool_call>
};

/// A call as the template must be given it to show its markup again: every argument a text.
struct WrittenCall {
  std::string name;
  nlohmann::ordered_json arguments;
};
/// nullopt: the template would write another markup (blanks between the parts, a repeated key, another body).
std::optional<WrittenCall> written_call(std::string_view markup);

inline constexpr std::string_view kToolCallOpen = "<tool_call>";
inline constexpr std::string_view kToolCallClose = "</tool_call>";

/// A call from a JSON object with a name ("name", "tool" or "function") and its arguments ("arguments",
/// "args" or "parameters": an object, or one as JSON text). With `offered_only` both must be there and the
/// tool be offered: the rule for an object that no envelope marks as a call.
std::optional<ToolCall> call_from_json(const ToolSet& tools, std::string_view body, bool offered_only);

/// Follows a text that begins with kToolCallOpen.
class ToolCallScanner {
 public:
  explicit ToolCallScanner(const ToolSet& tools) : tools_(&tools) {}

  enum class State {
    kOpen,  // more text is needed
    kCall,  // a call, which ends at end()
    kText,  // no call begins here; known after the first end() bytes
  };
  /// `text` is all there is so far, from the opener on: what was passed before, and more behind it. Reads
  /// each byte a bounded number of times over all calls.
  State advance(std::string_view text);
  size_t end() const { return at_; }
  const ToolCall& call() const { return call_; }

  /// The reply ended by the model's will with the scanner still open: the call if only its closing tag is
  /// missing, the tool is offered and all required arguments are there.
  std::optional<ToolCall> repaired(std::string_view text);

  // The call so far, for who follows it (argument_stream.h).
  struct Argument {
    std::string key;
    size_t begin, end;  // of the value in the text
  };
  /// A name, and then keys and values in tags or the end: the model's own form.
  bool has_keys() const { return has_keys_; }
  const std::string& name() const { return name_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  /// The argument that is being written, as far as its value is certain: the bytes behind may begin its end.
  std::optional<Argument> open_value(std::string_view text) const;

  /// The rest of the text is inside an argument that does not end: no other call can begin in it.
  bool inside_value() const {
    return step_ == Step::kValue || step_ == Step::kParameter || step_ == Step::kJson;
  }

 private:
  enum class Step {
    kHead,  // blanks, then a name, `{` or <function=
    kName,
    kAfterName,       // blanks, then <arg_key>, </tool_call>, or a key that lost its opener
    kKey,             // up to </arg_key>
    kBeforeValue,     // blanks, then <arg_value>
    kValue,           // up to </arg_value>
    kAfterValue,      // blanks, then <arg_key>, </tool_call>, or a key that lost its opener
    kLostKey,         // one word, then </arg_key>
    kJson,            // up to the brace that closes the object
    kFunctionName,    // up to >
    kAfterParameter,  // blanks, then <parameter= or </function>
    kParameterName,   // up to >
    kParameter,       // up to </parameter>
    kBeforeClose,     // blanks, then </tool_call>
    kDone,
    kFailed,
  };
  enum class Match { kYes, kNo, kMaybe };

  bool step(std::string_view text);  // false: more text is needed
  bool fail();
  bool blanks(std::string_view text);
  Match match(std::string_view text, std::string_view tag) const;
  bool take_until(std::string_view text, std::string_view tag);
  bool json_body(std::string_view text);
  std::optional<ToolCall> build(std::string_view text) const;

  const ToolSet* tools_;
  Step step_ = Step::kHead;
  size_t at_ = kToolCallOpen.size();  // read so far
  size_t begin_ = 0;                  // of the part that is being read
  std::string name_, key_;
  std::vector<Argument> arguments_;
  bool has_keys_ = false, json_ = false;
  size_t json_begin_ = 0, json_end_ = 0;
  int json_depth_ = 0;
  bool json_string_ = false, json_escape_ = false;
  ToolCall call_;
};

}  // namespace firesteel
