#include "api/responses_output.h"

#include "api/responses_items.h"
#include "base/json.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(text, false, &out);
  return out;
}

std::string member(const char* name, std::string_view text) {
  std::string out = ",\"";
  out.append(name).append("\":");
  append_json_string(text, false, &out);
  return out;
}

}  // namespace

std::string custom_input(const std::string& arguments) {
  const Result<Json> parsed = parse_json(arguments);
  if (!parsed.ok() || !parsed->is_object()) return arguments;
  if (const Json* input = find_field(*parsed, kCustomInput)) {
    return input->is_string() ? input->get<std::string>() : dump_json(*input);
  }
  // Models give the one argument another name at times.
  const bool one_text = parsed->size() == 1 && parsed->begin()->is_string();
  if (one_text) return parsed->begin()->get<std::string>();
  return parsed->empty() ? "" : arguments;
}

void ResponseOutput::event(std::string_view type, std::string_view fields) {
  if (events_ == nullptr) return;
  events_->append("event: ").append(type).append("\ndata: {\"type\":\"").append(type);
  events_->append("\",\"sequence_number\":").append(std::to_string(sequence_++));
  events_->append(fields).append("}\n\n");
}

std::string ResponseOutput::place(bool part) const {
  std::string out = member("item_id", id_);
  out.append(",\"output_index\":").append(std::to_string(ids_.size()));
  if (part) out.append(",\"content_index\":0");
  return out;
}

std::string ResponseOutput::part(std::string_view text) const {
  if (kind_ == Kind::kReasoning) return "{\"type\":\"reasoning_text\"" + member("text", text) + "}";
  return "{\"type\":\"output_text\"" + member("text", text) + ",\"annotations\":[],\"logprobs\":[" + (text.empty() ? "" : open_scores_) + "]}";
}

std::string ResponseOutput::item(std::string_view status, bool with_content) const {
  std::string out = "{\"id\":" + json_text(id_);
  out += kind_ == Kind::kReasoning ? ",\"type\":\"reasoning\",\"summary\":[]"
                                   : ",\"type\":\"message\",\"role\":\"assistant\"";
  out += member("status", status);
  out += ",\"content\":[";
  if (with_content) out += part(open_text_);
  return out + "]}";
}

void ResponseOutput::append(Kind kind, std::string_view text, const std::string& scores) {
  if (text.empty()) return;
  if (kind_ != kind) open(kind);
  open_text_.append(text);
  if (!scores.empty()) open_scores_ += (open_scores_.empty() ? "" : ",") + scores;
  if (events_ == nullptr) return;
  if (kind == Kind::kReasoning) {
    event("response.reasoning_text.delta", place(true) + member("delta", text));
  } else {
    event("response.output_text.delta", place(true) + member("delta", text) + ",\"logprobs\":[" + scores + "]");
  }
}

void ResponseOutput::open(Kind kind) {
  close(true);
  kind_ = kind;
  id_ = http::random_id(kind == Kind::kReasoning ? "rs_" : "msg_");
  if (events_ == nullptr) return;
  event("response.output_item.added",
        ",\"output_index\":" + std::to_string(ids_.size()) + ",\"item\":" + item("in_progress", false));
  event("response.content_part.added", place(true) + ",\"part\":" + part(""));
}

void ResponseOutput::close(bool complete) {
  if (kind_ == Kind::kNone) return;
  const std::string done = item(complete ? "completed" : "incomplete", true);
  if (events_ != nullptr) {
    if (kind_ == Kind::kReasoning) {
      event("response.reasoning_text.done", place(true) + member("text", open_text_));
    } else {
      event("response.output_text.done", place(true) + member("text", open_text_) + ",\"logprobs\":[" + open_scores_ + "]");
    }
    event("response.content_part.done", place(true) + ",\"part\":" + part(open_text_));
  }
  if (kind_ == Kind::kMessage) text_ += open_text_;
  add(done);
  kind_ = Kind::kNone;
  open_text_.clear();
  open_scores_.clear();
}

void ResponseOutput::call(const ReplyCall& call) {
  close(true);
  const bool custom = custom_->count(call.name) > 0;
  const std::string input = custom ? custom_input(call.arguments) : "";
  const std::string* const text = custom ? &input : nullptr;
  id_ = http::random_id(custom ? "ctc_" : "fc_");
  event("response.output_item.added", ",\"output_index\":" + std::to_string(ids_.size()) +
                                          ",\"item\":" + call_item(call, text, "in_progress", false));
  const std::string where = place(false);
  if (custom) {
    event("response.custom_tool_call_input.delta", where + member("delta", input));
    event("response.custom_tool_call_input.done", where + member("input", input));
  } else {
    event("response.function_call_arguments.delta", where + member("delta", call.arguments));
    event("response.function_call_arguments.done",
          where + member("name", call.name) + member("arguments", call.arguments));
  }
  add(call_item(call, text, "completed", true));
}

std::string ResponseOutput::call_item(const ReplyCall& call, const std::string* input,
                                      std::string_view status, bool with_content) const {
  std::string out = "{\"id\":" + json_text(id_);
  out += input != nullptr ? ",\"type\":\"custom_tool_call\"" : ",\"type\":\"function_call\"";
  out += member("call_id", call.id) + member("name", call.name);
  const std::string& written = input != nullptr ? *input : call.arguments;
  out += member(input != nullptr ? "input" : "arguments", with_content ? written : std::string());
  return out + member("status", status) + "}";
}

void ResponseOutput::add(const std::string& item) {
  event("response.output_item.done",
        ",\"output_index\":" + std::to_string(ids_.size()) + ",\"item\":" + item);
  if (!ids_.empty()) items_ += ",";
  items_ += item;
  ids_.push_back(id_);
}

}  // namespace firesteel::api
