// The output items of one response, built from the pieces of a reply, and the events of a stream that tell of
// them. One place makes both, so that the final object holds the items that were sent. Used on its exchange's
// sequence only.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/reply.h"

namespace firesteel::api {

class ResponseOutput {
 public:
  /// `events`: where the bytes of events are appended, null when the reply is not streamed. `custom`: names
  /// of custom tools; must outlive this.
  ResponseOutput(std::string* events, const std::set<std::string>* custom)
      : events_(events), custom_(custom) {}

  void reasoning(std::string_view text) { append(Kind::kReasoning, text, ""); }
  /// `scores`: log-probabilities of the tokens that begin in `text`, as the text of a JSON list without brackets.
  void content(std::string_view text, const std::string& scores) { append(Kind::kMessage, text, scores); }
  void call(const ReplyCall& call);
  /// Ends the open item; `complete` is false when the reply was cut in it.
  void close(bool complete);

  /// One event with the next sequence number; `fields` is text that continues the object, ",…".
  void event(std::string_view type, std::string_view fields);

  /// The closed items as text of a JSON list.
  std::string items() const { return items_ + "]"; }
  /// Text of all closed messages.
  const std::string& text() const { return text_; }
  const std::vector<std::string>& ids() const { return ids_; }

 private:
  enum class Kind { kNone, kReasoning, kMessage };

  void append(Kind kind, std::string_view text, const std::string& scores);
  void open(Kind kind);
  /// ,"item_id":…,"output_index":… and, for items with parts, ,"content_index":0
  std::string place(bool part) const;
  std::string part(std::string_view text) const;
  std::string item(std::string_view status, bool with_content) const;
  std::string call_item(const ReplyCall& call, const std::string* input, std::string_view status,
                        bool with_content) const;
  void add(const std::string& item);

  std::string* const events_;
  const std::set<std::string>* const custom_;
  int64_t sequence_ = 0;
  Kind kind_ = Kind::kNone;  // of the open item
  std::string id_, open_text_, open_scores_;
  std::string items_ = "[", text_;
  std::vector<std::string> ids_;
};

/// The text that a custom tool is given, out of the arguments that the model wrote for its function.
std::string custom_input(const std::string& arguments);

}  // namespace firesteel::api
