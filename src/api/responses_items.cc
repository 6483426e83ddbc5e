#include "api/responses_items.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace firesteel::api {
namespace {

std::string at(const char* list, int64_t index) {
  std::string out = list;
  out.append("[").append(std::to_string(index)).append("]");
  return out;
}

// The field of the request that an item of this index is.
std::string name_of(int32_t item) {
  if (item == ItemTranslator::kEarlier) return "previous_response_id";
  if (item == ItemTranslator::kInstructions) return "instructions";
  return at("input", item);
}

// "[12]" at the start of `text` as 12, taken off; nullopt when there is none.
std::optional<size_t> take_index(std::string_view* text) {
  if (!text->starts_with("[")) return std::nullopt;
  size_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data() + 1, end, value);
  if (error != std::errc() || stop == end || *stop != ']') return std::nullopt;
  text->remove_prefix(static_cast<size_t>(stop + 1 - text->data()));
  return value;
}

Json moved(Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? Json() : std::move(*it);
}

// The text of a reasoning item's content; what is encrypted cannot be read here.
std::optional<std::string> reasoning_text(const Json& item) {
  const Json* content = find_field(item, "content");
  std::string text;
  if (content == nullptr) return text;
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return std::nullopt;
  for (const Json& part : *content) text += find_string(part, "text");
  return text;
}

}  // namespace

bool is_item_reference(const Json& item) {
  const std::string type = find_string(item, "type");
  if (type == "item_reference") return true;
  return find_field(item, "type") == nullptr && find_field(item, "role") == nullptr &&
         find_field(item, "id") != nullptr;
}

void ItemTranslator::instructions(const std::string& text) {
  push({{"role", "system"}, {"content", text}}, Origin{kInstructions, "content", {}});
}

void ItemTranslator::add(Json item, int32_t index) {
  if (error_) return;
  if (!item.is_object()) return fail(name_of(index), "an item must be an object");
  const Json* type_field = find_field(item, "type");
  if (type_field != nullptr && !type_field->is_string()) {
    return fail(name_of(index) + ".type", "an item's type must be a string");
  }
  const std::string type = find_string(item, "type");
  if (type.empty() || type == "message") {
    message(std::move(item), index);
  } else if (type == "reasoning") {
    reasoning(item, index);
  } else if (type == "function_call") {
    Json arguments = moved(item, "arguments");
    call(item, std::move(arguments), index);
  } else if (type == "custom_tool_call") {
    Json arguments = Json::object();
    arguments[kCustomInput] = moved(item, "input");
    if (arguments[kCustomInput].is_null()) arguments[kCustomInput] = "";
    call(item, std::move(arguments), index);
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    output(std::move(item), index);
  } else if (unknown_++ == 0) {
    first_unknown_ = type;
  }
}

void ItemTranslator::message(Json item, int32_t index) {
  const std::string role = find_string(item, "role");
  const std::string where = name_of(index);
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return fail(where + ".role", "a message's role must be user, assistant, system or developer");
  }
  Json content = moved(item, "content");
  if (!check_parts(content, where + ".content")) return;
  if (role != "assistant") {
    close_reply();
    Origin origin{index, "content", {}};
    for (size_t i = 0; content.is_array() && i < content.size(); ++i) {
      origin.parts.push_back({index, static_cast<int32_t>(i)});
    }
    return push({{"role", role}, {"content", std::move(content)}}, std::move(origin));
  }
  if (!content.is_null() && !content.is_string() && !content.is_array()) {
    return fail(where + ".content", "content must be a string or a list of parts");
  }
  // Two messages in a row are two replies; behind a call it is the same reply that goes on.
  if (last_ == Last::kMessage) close_reply();
  Json& parts = reply(index)["content"];
  if (content.is_string()) {
    parts.push_back({{"type", "text"}, {"text", std::move(content)}});
    reply_origin_.parts.push_back({index, -1});
  }
  for (size_t i = 0; content.is_array() && i < content.size(); ++i) {
    parts.push_back(std::move(content[i]));
    reply_origin_.parts.push_back({index, static_cast<int32_t>(i)});
  }
  last_ = Last::kMessage;
}

void ItemTranslator::reasoning(const Json& item, int32_t index) {
  const auto text = reasoning_text(item);
  if (!text) return fail(name_of(index) + ".content", "content must be a list of parts, or null");
  if (text->empty()) return;
  if (last_ == Last::kMessage || last_ == Last::kCall) close_reply();
  Json& so_far = reply(index)["reasoning_content"];
  if (so_far.is_null()) so_far = "";
  so_far.get_ref<std::string&>() += *text;
  last_ = Last::kReasoning;
}

void ItemTranslator::call(const Json& item, Json arguments, int32_t index) {
  const std::string call_id = find_string(item, "call_id");
  const std::string name = find_string(item, "name");
  if (name.empty()) return fail(name_of(index) + ".name", "a call needs the name of its tool");
  reply(index)["tool_calls"].push_back({{"id", call_id.empty() ? find_string(item, "id") : call_id},
                                        {"type", "function"},
                                        {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  last_ = Last::kCall;
}

void ItemTranslator::output(Json item, int32_t index) {
  close_reply();
  Json value = moved(item, "output");
  const std::string where = name_of(index) + ".output";
  if (!value.is_null() && !value.is_string() && !value.is_array()) {
    return fail(where, "output must be a string or a list of parts");
  }
  if (!check_parts(value, where)) return;
  Origin origin{index, "output", {}};
  for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
    origin.parts.push_back({index, static_cast<int32_t>(i)});
  }
  push({{"role", "tool"}, {"tool_call_id", find_string(item, "call_id")}, {"content", std::move(value)}},
       std::move(origin));
}

Json& ItemTranslator::reply(int32_t index) {
  if (reply_.is_null()) {
    reply_ = {{"role", "assistant"}, {"content", Json::array()}};
    reply_origin_ = Origin{index, "content", {}};
  }
  return reply_;
}

void ItemTranslator::close_reply() {
  if (!reply_.is_null()) push(std::exchange(reply_, Json()), std::exchange(reply_origin_, Origin()));
  last_ = Last::kNothing;
}

void ItemTranslator::push(Json message, Origin origin) {
  messages_.push_back(std::move(message));
  origins_.push_back(std::move(origin));
}

// The kinds of parts are the chat request's business, except what only this API has.
bool ItemTranslator::check_parts(const Json& content, const std::string& where) {
  if (!content.is_array()) return true;
  for (size_t i = 0; i < content.size(); ++i) {
    if (find_field(content[i], "file_id") == nullptr) continue;
    error_ = unsupported_parameter(where + "[" + std::to_string(i) + "].file_id",
                                   "files are not kept here: send a picture as image_url");
    return false;
  }
  return true;
}

Json ItemTranslator::finish() {
  close_reply();
  return std::move(messages_);
}

std::string ItemTranslator::source_of(const std::string& param) const {
  std::string_view rest = param;
  rest.remove_prefix(std::min(rest.size(), std::string_view("messages").size()));
  const auto message = take_index(&rest);
  if (!message || *message >= origins_.size()) return "input";
  const Origin& origin = origins_[*message];
  std::string out = name_of(origin.item);
  if (origin.item < 0) return out;
  if (!rest.starts_with(".content")) return out + std::string(rest);
  rest.remove_prefix(std::string_view(".content").size());
  const auto part = take_index(&rest);
  if (part && *part < origin.parts.size()) {
    const Place& place = origin.parts[*part];
    out = name_of(place.item);
    if (place.item < 0) return out;
    out.append(".").append(origin.content);
    if (place.part >= 0) out += at("", place.part);
  } else {
    out.append(".").append(origin.content);
  }
  return out + std::string(rest);
}

std::string ItemTranslator::note() const {
  if (unknown_ == 0) return "";
  std::string out = std::to_string(unknown_) + " items of kinds that are not known here were left out";
  // A caller's text does not belong into the log unless it can only be the name of a kind.
  const bool word = first_unknown_.size() <= 64 &&
                    first_unknown_.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
  return word ? out + ", the first a " + first_unknown_ : out;
}

void ItemTranslator::fail(std::string param, std::string message) {
  if (!error_) error_ = invalid_value(std::move(param), std::move(message));
}

}  // namespace firesteel::api
