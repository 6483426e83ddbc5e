// The text of a reply told apart: reasoning, answer, tool calls. Characters in, events out, the same however
// the text is sliced. One per reply; not thread-safe. Stop strings and blanks at the borders are the business
// of reply_stream.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/argument_stream.h"
#include "text/tool_calls.h"

namespace firesteel {

class ReplyEvents {
 public:
  virtual ~ReplyEvents() = default;
  virtual void reasoning(std::string_view text) = 0;
  virtual void content(std::string_view text) = 0;
  /// `from_reasoning`: the call ends a think block; what is held back of the reasoning ends before it.
  /// `followed`: call_begun() announced it, and all its arguments were passed on.
  virtual void call(ToolCall call, bool from_reasoning, bool followed) = 0;
  // Only where calls are followed as they are written. A begun call that is cut or turns out to be text has
  // no call().
  virtual void call_begun(const std::string& name) { (void)name; }
  virtual void call_arguments(std::string_view json) { (void)json; }
  /// A think block of this reply was closed.
  virtual void think_closed() = 0;
};

class ReplyParser {
 public:
  /// `tools` null: call markup is text. `fresh`: the reply begins a text of its own, so that it may open a
  /// think block or be nothing but a call. `follow_calls`: those of the answer are told as they are written.
  ReplyParser(bool in_think, bool fresh, std::shared_ptr<const ToolSet> tools, bool follow_calls,
              ReplyEvents& events);

  void push(std::string_view text);
  /// The end of the text. `cut`: by the token limit, so that nothing may be repaired or guessed.
  void finish(bool cut);

  /// Reasoning is being read; also while a closing tag has begun but is not certain.
  bool in_think() const { return in_think_; }
  bool inside_call() const { return scanner_.has_value() || bare_json_ || !waiting_.empty(); }

 private:
  enum class Tag { kNone, kPartial, kThink, kThinkEnd, kCall };
  enum class Ending { kOpen, kNatural, kCut };
  /// Complete calls in the think block; they count only if nothing but calls and blanks follows.
  struct Waiting {
    std::string text;  // the blanks before it and its markup
    ToolCall call;
  };

  void read(Ending ending);
  bool read_tag(size_t& at, bool last);
  bool read_call(size_t& at, Ending ending);
  void end_call(size_t& at, Ending ending);
  void follow(std::string_view text, bool whole);
  bool read_bare_json(size_t& at, Ending ending);
  void take_call(ToolCall call);
  void give_up(size_t& at, size_t known);
  Tag tag_at(std::string_view text) const;
  void say(std::string_view text);
  void drop_waiting();

  const std::shared_ptr<const ToolSet> tools_;
  const bool follow_calls_;
  ReplyEvents& events_;
  std::string held_;  // not decided yet
  bool in_think_;
  bool answer_empty_;  // nothing visible so far: a think block may still open, a bare call may still begin
  std::optional<ToolCallScanner> scanner_;  // follows the opener that held_ begins with
  std::optional<ArgumentStream> followed_;  // goes with the scanner, where the call is followed
  size_t searched_ = 0;                     // of the scanner's text: holds no </think>
  bool bare_json_ = false;                  // held_ begins like a call without an envelope
  std::vector<Waiting> waiting_;
  std::string waiting_blanks_;  // behind the last of waiting_
  bool close_waits_ = false;    // the block was closed behind waiting_
};

}  // namespace firesteel
