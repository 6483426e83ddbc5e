// A client's `messages` made ready for the chat template: roles merged, legacy forms converted, argument
// texts parsed, what cannot be shown left out. Everything a client replays from one of our replies is
// accepted.
//
// Pure functions, any thread; nothing is kept between calls. The caller owns all arguments and results.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace firesteel {

/// Messages and calls in them that one conversation may hold: each costs the template tens of microseconds.
inline constexpr size_t kMaxTurns = 20'000;

/// Why a request is refused, with the field it is about: the error object of the HTTP contract.
struct Refusal {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;   // one line, says what to do
  std::string param;     // "messages[3].content[1].image_url", or "" when no field is to blame
  std::string api_code;  // "invalid_value", "missing_required_parameter", "unsupported_media", …
};

struct MessageOptions {
  /// Pictures and clips are kept as parts and listed in Conversation::media; false refuses them
  /// (unsupported_media), but for those in tool results, in whose place the model is told that it cannot see:
  /// an agent that took a screenshot goes on.
  bool media = false;
  /// The template drops or refuses a system message that is not the first (PromptTraits::late_system is
  /// false): show it as a user message.
  bool late_system_as_user = false;
  /// The last message stays open: an assistant turn at the end is kept even when it is empty, and an
  /// unfinished
  /// `<think>` at the start of its text is read as its reasoning.
  bool continue_final_message = false;
};

/// One picture or clip, in the order in which the template shows them.
struct MediaPart {
  enum class Kind { kImage, kVideo };
  Kind kind = Kind::kImage;
  size_t message = 0;  // index into Conversation::messages, whose content is then a list of parts
  size_t part = 0;     // index into that content; the part is {"type":"image"} or {"type":"video"}
  std::string url;     // as the client wrote it: a data: or https: URL
  std::string param;   // where it stood in the request: "messages[3].content[1].image_url"
};

/// What the template is given. `messages` holds only roles system, user, assistant, tool, and of each message
/// only role, content (a string, never null; a list when the turn has media or is a structured tool result),
/// reasoning_content (a string), tool_calls (a non-empty list of {"id","type","function":{"name","arguments":
/// object}}) and, for tool, tool_call_id and name.
struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;  // array or null, filled by the caller; reaches the template unchanged
  std::vector<MediaPart> media;
  std::vector<std::string> notes;  // one line each for the log: what was left out, never with a caller's text
};

/// Reads `messages` (the value of the request's field) into `out->messages`, `media` and `notes`. nullopt is
/// success. Tool results are not sorted here: the template does that.
std::optional<Refusal> normalize_messages(const nlohmann::ordered_json& messages,
                                          const MessageOptions& options, Conversation* out);

/// The arguments of a call as a client sent them: an object as it is; JSON text of an object parsed; "",
/// blanks, null and "null" are {}. nullopt: cannot be shown to the template.
std::optional<nlohmann::ordered_json> read_call_arguments(const nlohmann::ordered_json& arguments);

}  // namespace firesteel
