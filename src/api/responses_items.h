// The items of a Responses conversation as messages of a chat request. Pure, any thread; one translator
// serves one request.
//
// Items that a reply is made of (reasoning, message, calls) and that follow each other become one assistant
// message, the one that a chat client would send back for the same reply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/errors.h"
#include "api/field_reader.h"

namespace firesteel::api {

/// The argument that holds the text of a `custom` tool's call, whose function has no other.
inline constexpr char kCustomInput[] = "input";

class ItemTranslator {
 public:
  /// Indexes of what is not in the request's `input`: earlier turns, the instructions.
  static constexpr int32_t kEarlier = -1, kInstructions = -2;

  /// `instructions`, before all items.
  void instructions(const std::string& text);
  /// The next item; `index`: where it stands in `input`. Does nothing once there is an error.
  void add(Json item, int32_t index);
  /// After the last item: what the chat request's `messages` is.
  Json finish();
  const std::optional<ApiError>& error() const { return error_; }

  /// A field of `messages` ("messages[2].content[0].type") as the field of the request that it came from.
  std::string source_of(const std::string& param) const;
  /// What to log of items of kinds that are not known here, which are left out; "" when there were none.
  std::string note() const;

 private:
  struct Place {
    int32_t item = kEarlier, part = -1;
  };
  /// Where a message and the parts of its content came from.
  struct Origin {
    int32_t item = kEarlier;
    const char* content = "content";  // the item's name for it
    std::vector<Place> parts;         // empty: content is the item's own
  };

  void message(Json item, int32_t index);
  void reasoning(const Json& item, int32_t index);
  void call(const Json& item, Json arguments, int32_t index);
  void output(Json item, int32_t index);
  /// The assistant message under construction, opened if there is none.
  Json& reply(int32_t index);
  void close_reply();
  void push(Json message, Origin origin);
  bool check_parts(const Json& content, const std::string& where);
  void fail(std::string param, std::string message);

  enum class Last { kNothing, kReasoning, kMessage, kCall };  // of the reply under construction

  Json messages_ = Json::array();
  std::vector<Origin> origins_;
  Json reply_;  // null: none
  Origin reply_origin_;
  Last last_ = Last::kNothing;
  size_t unknown_ = 0;
  std::string first_unknown_;
  std::optional<ApiError> error_;
};

/// True for {"type":"item_reference","id":…}, whose type may be left out.
bool is_item_reference(const Json& item);

}  // namespace firesteel::api
