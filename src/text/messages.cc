#include "text/messages.h"

#include <algorithm>

#include "base/json.h"
#include "text/messages_calls.h"

namespace firesteel {

namespace {

using Json = nlohmann::ordered_json;

Refusal refuse(std::string param, std::string message, const char* api_code = "invalid_value",
               ErrorCode code = ErrorCode::kInvalidArgument) {
  return Refusal{code, std::move(message), std::move(param), api_code};
}

std::string index_path(const std::string& path, size_t i) { return path + "[" + std::to_string(i) + "]"; }

const Json* member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

/// The string member `name`, or null when it is absent or no string.
const std::string* text_member(const Json& object, const char* name) {
  const Json* v = member(object, name);
  return v != nullptr && v->is_string() ? &v->get_ref<const std::string&>() : nullptr;
}

// What a template without pictures writes in place of one.
constexpr char kImageReminder[] =
    "<reminder>You are unable to process this image because you don't have multi-modal input ability. "
    "Try different methods.</reminder>";
constexpr char kVideoReminder[] =
    "<reminder>You are unable to process this video because you don't have multi-modal input ability. "
    "Try different methods.</reminder>";

/// A list that the template reads as a structured tool result: references to tools, or outputs with their own
/// ids.
bool is_structured_result(const Json& content) {
  if (!content.is_array() || content.empty() || !content[0].is_object()) return false;
  const std::string* type = text_member(content[0], "type");
  return (type != nullptr && *type == "tool_reference") || content[0].contains("output");
}

class Normalizer {
 public:
  Normalizer(const MessageOptions& options, Conversation* out) : options_(options), out_(out) {}

  std::optional<Refusal> run(const Json& messages) {
    if (!messages.is_array()) return refuse("messages", "messages must be a list");
    if (messages.empty()) return refuse("messages", "messages must not be empty");
    if (messages.size() > kMaxTurns) return too_many();
    for (size_t i = 0; i < messages.size(); ++i) {
      path_ = index_path("messages", i);
      is_last_ = i + 1 == messages.size();
      if (auto r = add(messages[i])) return r;
      if (shown_ > kMaxTurns) return too_many();
    }
    drop_calls();
    drop_empty_turns();
    merge_leading_system();
    collect_media();
    return std::nullopt;
  }

 private:
  enum class Media { kRefused, kTaken, kInResult };

  /// A message on its way: what the template gets, and what is only known until the end.
  struct Turn {
    Json message;
    std::vector<CallState> calls;
    std::vector<std::string> media_urls, media_paths;  // of the media parts of a list content, in order
    bool is_structured = false;                        // a tool result that the template takes apart
    bool keep_empty = false;
  };

  static std::optional<Refusal> too_many() {
    return refuse("messages", "a conversation may hold at most " + std::to_string(kMaxTurns) +
                                  " messages, calls and parts of results");
  }

  std::optional<Refusal> add(const Json& m) {
    ++shown_;
    if (!m.is_object()) return refuse(path_, "a message must be an object");
    const std::string* role = text_member(m, "role");
    if (role == nullptr)
      return refuse(path_ + ".role", "a message needs a role", "missing_required_parameter");
    if (*role == "system" || *role == "developer") return add_system(m);
    if (*role == "user") return add_user(m);
    if (*role == "assistant") return add_assistant(m);
    if (*role == "tool" || *role == "function") return add_result(m);
    return refuse(path_ + ".role", "role must be system, developer, user, assistant, tool or function");
  }

  std::optional<Refusal> add_system(const Json& m) {
    Turn t;
    // A system message behind the first turn is shown as a user's where the template has no place for it.
    const bool leading = std::all_of(turns_.begin(), turns_.end(),
                                     [](const Turn& other) { return other.message["role"] == "system"; });
    t.message["role"] = leading || !options_.late_system_as_user ? "system" : "user";
    if (auto r = read_content(m, /*required=*/true, Media::kRefused, &t)) return r;
    turns_.push_back(std::move(t));
    return std::nullopt;
  }

  std::optional<Refusal> add_user(const Json& m) {
    Turn t;
    t.message["role"] = "user";
    t.keep_empty = true;
    if (auto r = read_content(m, /*required=*/true, Media::kTaken, &t)) return r;
    turns_.push_back(std::move(t));
    return std::nullopt;
  }

  std::optional<Refusal> add_assistant(const Json& m) {
    Turn t;
    t.message["role"] = "assistant";
    if (auto r = read_content(m, /*required=*/false, Media::kTaken, &t)) return r;
    if (const std::string* refusal = text_member(m, "refusal");
        refusal != nullptr && t.message["content"].is_string())
      t.message["content"] = t.message["content"].get_ref<const std::string&>() + *refusal;
    for (const char* name : {"reasoning_content", "reasoning"}) {
      const Json* r = member(m, name);
      if (r == nullptr || r->is_null()) continue;
      if (!r->is_string()) return refuse(path_ + "." + name, std::string(name) + " must be a string or null");
      t.message["reasoning_content"] = *r;
      break;
    }
    if (auto r = read_calls(m, &t)) return r;
    if (options_.continue_final_message && is_last_) {
      t.keep_empty = true;
      open_reasoning(&t);
    }
    turns_.push_back(std::move(t));
    return std::nullopt;
  }

  /// A text that begins an unfinished think block is the reasoning that the reply is to continue.
  static void open_reasoning(Turn* t) {
    constexpr std::string_view kOpen = "<think>", kClose = "</think>";
    if (t->message.contains("reasoning_content") || !t->message["content"].is_string()) return;
    const std::string& text = t->message["content"].get_ref<const std::string&>();
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos || text.compare(begin, kOpen.size(), kOpen) != 0) return;
    if (text.find(kClose) != std::string::npos) return;
    std::string reasoning = text.substr(begin + kOpen.size());
    t->message["content"] = "";
    t->message["reasoning_content"] = std::move(reasoning);
  }

  std::optional<Refusal> add_result(const Json& m) {
    Turn t;
    t.message["role"] = "tool";
    t.keep_empty = true;
    if (const Json* content = member(m, "content"); content != nullptr && is_structured_result(*content)) {
      if (auto r = read_structured_result(*content, &t)) return r;
    } else if (auto r = read_content(m, /*required=*/false, Media::kInResult, &t)) {
      return r;
    }
    for (const char* name : {"tool_call_id", "name"}) {
      const Json* v = member(m, name);
      if (v == nullptr || v->is_null()) continue;
      if (!v->is_string()) return refuse(path_ + "." + name, std::string(name) + " must be a string");
      t.message[name] = *v;
    }
    turns_.push_back(std::move(t));
    return std::nullopt;
  }

  std::optional<Refusal> read_structured_result(const Json& content, Turn* t) {
    t->is_structured = true;
    shown_ += content.size();
    Json out = Json::array();
    const bool outputs = content[0].contains("output");
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string path = index_path(path_ + ".content", i);
      if (!content[i].is_object()) return refuse(path, "the parts of this tool result must be objects");
      Json entry = content[i];
      if (outputs) {
        Json& output = entry["output"];
        if (output.is_null()) output = "";
        if (output.is_array()) {
          Turn inner;
          const Media media = options_.media ? Media::kRefused : Media::kInResult;
          if (auto r = read_parts(output, path + ".output", media, &inner)) return r;
          output = inner.message["content"];
        }
        if (!output.is_string())
          return refuse(path + ".output", "output must be a string or a list of text parts");
      }
      out.push_back(std::move(entry));
    }
    t->message["content"] = std::move(out);
    return std::nullopt;
  }

  std::optional<Refusal> read_content(const Json& m, bool required, Media media, Turn* t) {
    const std::string path = path_ + ".content";
    const Json* content = member(m, "content");
    if (content == nullptr || content->is_null()) {
      if (required && content == nullptr)
        return refuse(path, "content is required", "missing_required_parameter");
      if (required) return refuse(path, "content must be a string or a list of parts");
      t->message["content"] = "";
      return std::nullopt;
    }
    if (content->is_string()) {
      t->message["content"] = *content;
      return std::nullopt;
    }
    if (content->is_array()) return read_parts(*content, path, media, t);
    return refuse(path, "content must be a string or a list of parts");
  }

  /// Text parts are joined with nothing between; only a turn with media keeps its list.
  std::optional<Refusal> read_parts(const Json& parts, const std::string& path, Media media, Turn* t) {
    Json list = Json::array();
    std::string text;
    const auto flush = [&] {
      if (!text.empty()) list.push_back(Json{{"type", "text"}, {"text", std::exchange(text, {})}});
    };
    for (size_t i = 0; i < parts.size(); ++i) {
      const Json& part = parts[i];
      const std::string part_path = index_path(path, i);
      if (part.is_string()) {
        text += part.get_ref<const std::string&>();
        continue;
      }
      if (!part.is_object()) return refuse(part_path, "a content part must be an object");
      const std::string* type = text_member(part, "type");
      if (type == nullptr)
        return refuse(part_path + ".type", "a content part needs a type", "missing_required_parameter");
      if (*type == "text" || *type == "input_text" || *type == "output_text" || *type == "refusal") {
        const char* name = *type == "refusal" ? "refusal" : "text";
        const std::string* s = text_member(part, name);
        if (s == nullptr) return refuse(part_path + "." + name, "a text part needs its text as a string");
        text += *s;
        continue;
      }
      const bool image = *type == "image_url" || *type == "image" || *type == "input_image";
      const bool video = *type == "video_url" || *type == "video" || *type == "input_video";
      if (!image && !video) {
        const bool known = *type == "input_audio" || *type == "audio" || *type == "audio_url" ||
                           *type == "file" || *type == "input_file";
        if (known)
          return refuse(part_path, "audio and files are not supported", "unsupported_media",
                        ErrorCode::kUnsupported);
        return refuse(part_path + ".type", "unknown type of a content part");
      }
      if (media == Media::kInResult && !options_.media) {
        text += image ? kImageReminder : kVideoReminder;
        continue;
      }
      if (media == Media::kRefused || !options_.media)
        return refuse(part_path,
                      media == Media::kRefused
                          ? "pictures and clips belong into user messages and tool results"
                          : "this server does not read pictures or clips",
                      "unsupported_media", ErrorCode::kUnsupported);
      const char* field = image ? "image_url" : "video_url";
      const std::string* url = media_url(part, *type, field);
      if (url == nullptr)
        return refuse(part_path + "." + field,
                      std::string(field) + " must be a string or an object with a url");
      flush();
      list.push_back(Json{{"type", image ? "image" : "video"}});
      t->media_urls.push_back(*url);
      t->media_paths.push_back(part_path + "." + field);
    }
    if (t->media_urls.empty()) {
      t->message["content"] = std::move(text);
    } else {
      flush();
      t->message["content"] = std::move(list);
    }
    return std::nullopt;
  }

  /// {"image_url": URL}, {"image_url": {"url": URL}}, and the same under the part's own type.
  static const std::string* media_url(const Json& part, const std::string& type, const char* field) {
    for (const std::string& name : {std::string(field), type}) {
      const Json* v = member(part, name.c_str());
      if (v == nullptr) continue;
      if (v->is_string()) return &v->get_ref<const std::string&>();
      if (v->is_object()) return text_member(*v, "url");
    }
    return nullptr;
  }

  std::optional<Refusal> read_calls(const Json& m, Turn* t) {
    if (const Json* calls = member(m, "tool_calls"); calls != nullptr && !calls->is_null()) {
      if (!calls->is_array()) return refuse(path_ + ".tool_calls", "tool_calls must be a list");
      shown_ += calls->size();
      if (shown_ > kMaxTurns) return too_many();
      for (const Json& call : *calls) t->calls.push_back(read_call(call));
    }
    // The legacy form of one call.
    if (const Json* call = member(m, "function_call");
        call != nullptr && !call->is_null() && t->calls.empty()) {
      if (!call->is_object()) return refuse(path_ + ".function_call", "function_call must be an object");
      t->calls.push_back(read_call(Json{{"type", "function"}, {"function", *call}}));
    }
    return std::nullopt;
  }

  // After all messages are read.

  /// Leaves out the calls that cannot be shown, each with its result.
  void drop_calls() {
    std::vector<bool> keep(turns_.size(), true);
    for (size_t i = 0; i < turns_.size(); ++i) {
      Turn& t = turns_[i];
      if (t.calls.empty()) continue;
      std::vector<ResultRef> results;
      // Results of this turn stand before the next assistant turn.
      for (size_t r = i + 1; r < turns_.size() && turns_[r].message["role"] != "assistant"; ++r) {
        if (turns_[r].message["role"] != "tool") continue;
        if (turns_[r].is_structured) {
          keep[r] = drop_outputs(t.calls, &turns_[r]);
          continue;
        }
        const std::string* id = text_member(turns_[r].message, "tool_call_id");
        results.push_back({r, id == nullptr ? "" : *id});
      }
      for (const size_t dropped : results_of_bad_calls(t.calls, results)) keep[dropped] = false;
      Json calls = Json::array();
      for (CallState& call : t.calls) {
        if (call.usable) {
          calls.push_back(std::move(call.call));
        } else {
          out_->notes.push_back("a tool call was left out of the prompt with its result: " + call.why);
        }
      }
      if (!calls.empty()) t.message["tool_calls"] = std::move(calls);
    }
    erase_turns(keep);
  }

  /// Takes the outputs that answer unusable calls from a structured result. False: nothing is left.
  static bool drop_outputs(const std::vector<CallState>& calls, Turn* result) {
    Json kept = Json::array();
    for (Json& entry : result->message["content"]) {
      const std::string* id = entry.contains("output") ? text_member(entry, "tool_call_id") : nullptr;
      const auto it = std::find_if(calls.begin(), calls.end(),
                                   [&](const CallState& c) { return id != nullptr && c.id == *id; });
      if (it == calls.end() || it->usable || it->id.empty()) kept.push_back(std::move(entry));
    }
    result->message["content"] = std::move(kept);
    return !result->message["content"].empty();
  }

  void erase_turns(const std::vector<bool>& keep) {
    std::vector<Turn> kept;
    for (size_t i = 0; i < turns_.size(); ++i)
      if (keep[i]) kept.push_back(std::move(turns_[i]));
    turns_ = std::move(kept);
  }

  /// An assistant turn without calls, text and reasoning says nothing; nor does one that lost all its calls
  /// and has no text.
  void drop_empty_turns() {
    std::vector<bool> keep(turns_.size(), true);
    for (size_t i = 0; i < turns_.size(); ++i) {
      const Turn& t = turns_[i];
      const Json& content = t.message["content"];
      if (t.keep_empty || !content.is_string() || t.message.contains("tool_calls")) continue;
      if (t.message["role"] != "assistant") continue;
      const bool blank =
          content.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
      const std::string* reasoning = text_member(t.message, "reasoning_content");
      const bool thought = reasoning != nullptr && !reasoning->empty() && t.calls.empty();
      keep[i] = !blank || thought;
    }
    erase_turns(keep);
  }

  void merge_leading_system() {
    size_t count = 0;
    while (count < turns_.size() && turns_[count].message["role"] == "system") ++count;
    if (count < 2) return;
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      const std::string& part = turns_[i].message["content"].get_ref<const std::string&>();
      if (!text.empty() && !part.empty()) text += "\n\n";
      text += part;
    }
    turns_[0].message["content"] = std::move(text);
    turns_.erase(turns_.begin() + 1, turns_.begin() + static_cast<ptrdiff_t>(count));
  }

  void collect_media() {
    out_->messages = Json::array();
    for (Turn& t : turns_) {
      size_t next = 0;
      const Json& content = t.message["content"];
      for (size_t p = 0; next < t.media_urls.size() && p < content.size(); ++p) {
        const std::string& type = content[p]["type"].get_ref<const std::string&>();
        if (type == "text") continue;
        const auto kind = type == "image" ? MediaPart::Kind::kImage : MediaPart::Kind::kVideo;
        out_->media.push_back({kind, out_->messages.size(), p, t.media_urls[next], t.media_paths[next]});
        ++next;
      }
      out_->messages.push_back(std::move(t.message));
    }
  }

  const MessageOptions& options_;
  Conversation* out_;
  std::string path_;
  bool is_last_ = false;
  size_t shown_ = 0;  // messages, calls and parts of structured results so far
  std::vector<Turn> turns_;
};

}  // namespace

std::optional<Refusal> normalize_messages(const Json& messages, const MessageOptions& options,
                                          Conversation* out) {
  out->messages = Json::array();
  out->media.clear();
  out->notes.clear();
  return Normalizer(options, out).run(messages);
}

}  // namespace firesteel
