#include "api/responses_request.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

// Fields that mean here what they mean in a chat request.
constexpr const char* kShared[] = {
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_in_reasoning",
    "include_stop_str_in_output",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "draft",
    "priority",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "thinking",
    "thinking_budget",
    "thinking_token_budget",
    "thinking_budget_tokens",
    "include_reasoning",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "skip_special_tokens",
    "cache_salt",
};

constexpr const char* kIncludable[] = {
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
};

constexpr size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

class Translator {
 public:
  Translator(Json body, ResponseStore& store, size_t max_earlier_bytes)
      : body_(std::move(body)), in_(body_), store_(store), max_earlier_bytes_(max_earlier_bytes) {}

  std::variant<ResponsesRequest, ApiError> run() {
    refuse_absent_parts();
    read_switches();
    read_include();
    check_metadata();
    for (const char* name : kShared) {
      if (const Json* v = in_.find(name)) out_.chat[name] = *v;
    }
    read_limit();
    read_reasoning();
    read_text();
    read_responses_tools(in_, &out_.tools);
    if (!out_.tools.offered.empty()) out_.chat["tools"] = std::move(out_.tools.offered);
    if (!out_.tools.choice.is_null()) out_.chat["tool_choice"] = std::move(out_.tools.choice);
    if (in_.ok()) repeat_settings();
    if (in_.ok()) read_conversation();
    if (!in_.ok()) return *in_.error();
    return std::move(out_);
  }

 private:
  void refuse_absent_parts() {
    for (const char* name : {"conversation", "prompt", "context_management"}) {
      const Json* v = in_.find(name);
      if (v != nullptr && !(v->is_structured() && v->empty())) {
        in_.fail(unsupported_parameter(name, std::string(name) + " is not supported by this server"));
      }
    }
    bool background = false;
    in_.boolean("background", &background);
    if (background) {
      in_.fail(unsupported_parameter("background", "background responses are not supported by this server"));
    }
  }

  void read_switches() {
    in_.boolean("store", &out_.store);
    std::string truncation = "disabled";
    in_.string("truncation", &truncation);
    if (truncation != "disabled" && truncation != "auto") {
      in_.fail_value("truncation", "truncation must be auto or disabled");
    }
    out_.truncate = truncation == "auto";
  }

  void read_include() {
    const Json* list = in_.find("include");
    bool logprobs = false;
    if (list != nullptr && !list->is_array()) {
      return in_.fail_value("include", "include must be a list of strings, or null");
    }
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const Json& entry = (*list)[i];
      const auto known = std::find_if(std::begin(kIncludable), std::end(kIncludable),
                                      [&](const char* name) { return entry == name; });
      if (known == std::end(kIncludable)) {
        return in_.fail_value("include", "include[" + std::to_string(i) + "] is not known");
      }
      logprobs = logprobs || entry == "message.output_text.logprobs";
    }
    int64_t top = 0;
    in_.integer("top_logprobs", 0, 20, &top);
    if (logprobs || top > 0) out_.chat["logprobs"] = true;
    if (top > 0) out_.chat["top_logprobs"] = top;
  }

  void check_metadata() {
    const Json* metadata = in_.find("metadata");
    if (metadata == nullptr) return;
    bool good = metadata->is_object() && metadata->size() <= kMaxMetadata;
    for (auto it = metadata->begin(); good && it != metadata->end(); ++it) {
      good = it->is_string() && characters(it.key()) <= kMaxMetadataKey &&
             characters(it->get_ref<const std::string&>()) <= kMaxMetadataValue;
    }
    if (!good) {
      in_.fail_value("metadata",
                     "metadata may hold 16 strings of at most 512 characters, under keys of at most 64");
    }
  }

  void read_limit() {
    int64_t limit = 0;
    in_.integer("max_output_tokens", 1, INT64_MAX, &limit);
    if (limit > 0) out_.chat["max_tokens"] = limit;
  }

  void read_reasoning() {
    const Json* reasoning = in_.find("reasoning");
    if (reasoning == nullptr) return;
    if (!reasoning->is_object()) return in_.fail_value("reasoning", "reasoning must be an object or null");
    if (const Json* effort = find_field(*reasoning, "effort")) out_.chat["reasoning_effort"] = *effort;
  }

  void read_text() {
    const Json* text = in_.find("text");
    if (text == nullptr) return;
    if (!text->is_object()) return in_.fail_value("text", "text must be an object or null");
    const Json* format = find_field(*text, "format");
    if (format == nullptr) return;
    const std::string type = find_string(*format, "type");
    if (type != "text" && type != "json_object" && type != "json_schema") {
      return in_.fail_value("text.format", "text.format.type must be text, json_object or json_schema");
    }
    Json& out = out_.chat["response_format"];
    out["type"] = type;
    if (type != "json_schema") return;
    if (find_field(*format, "schema") == nullptr) {
      return in_.fail({400, "invalid_request_error", "missing_required_parameter", "text.format.schema",
                       "text.format.schema is required: a JSON schema"});
    }
    for (const char* name : {"name", "description", "schema", "strict"}) {
      if (const Json* v = find_field(*format, name)) out["json_schema"][name] = *v;
    }
  }

  // What clients read back. temperature and top_p are added when their defaults are known.
  void repeat_settings() {
    Json& out = out_.settings;
    const auto repeat = [&](const char* name, Json otherwise) {
      const Json* v = in_.find(name);
      out[name] = v != nullptr ? *v : std::move(otherwise);
    };
    repeat("instructions", nullptr);
    repeat("metadata", Json::object());
    repeat("previous_response_id", nullptr);
    repeat("max_output_tokens", nullptr);
    repeat("parallel_tool_calls", true);
    repeat("tool_choice", "auto");
    repeat("tools", Json::array());
    repeat("top_logprobs", 0);
    out["reasoning"]["effort"] = nullptr;
    out["reasoning"]["summary"] = nullptr;
    if (const Json* v = in_.find("reasoning")) out["reasoning"].update(*v);
    out["text"]["format"]["type"] = "text";
    if (const Json* v = in_.find("text")) {
      if (find_field(*v, "format") != nullptr) out["text"] = Json::object();
      for (auto it = v->begin(); it != v->end(); ++it) {
        if (!it->is_null()) out["text"][it.key()] = *it;
      }
    }
    out["truncation"] = out_.truncate ? "auto" : "disabled";
    out["store"] = out_.store;
    out["background"] = false;
    for (const char* name : {"service_tier", "user", "safety_identifier", "prompt_cache_key"}) {
      if (const std::string v = find_string(body_, name); !v.empty()) out[name] = v;
    }
  }

  void read_conversation() {
    std::string instructions;
    in_.string("instructions", &instructions);
    std::string previous;
    in_.string("previous_response_id", &previous);
    if (!in_.ok()) return;
    if (!instructions.empty()) out_.items.instructions(instructions);
    if (!previous.empty()) continue_from(previous);
    Json own = own_items(!previous.empty());
    if (!in_.ok()) return;
    if (out_.store) out_.input = dump_json(own);
    for (size_t i = 0; i < own.size(); ++i) out_.items.add(std::move(own[i]), static_cast<int32_t>(i));
    Json messages = out_.items.finish();
    if (out_.items.error()) return in_.fail(*out_.items.error());
    if (const std::string note = out_.items.note(); !note.empty()) LOG_INFO("responses: {}", note);
    if (messages.empty()) {
      return in_.fail_value("input", "input holds nothing to answer: it needs at least one message");
    }
    out_.chat["messages"] = std::move(messages);
  }

  // The newest turns that fit the budget; fewer than all only where the request allows to drop the oldest.
  void continue_from(const std::string& id) {
    const auto found = store_.find(id);
    if (found == nullptr) {
      return in_.fail(
          {400, "invalid_request_error", "previous_response_not_found", "previous_response_id",
           "no response of this id is stored here; responses are kept in memory, the newest only"});
    }
    size_t first = found->turns.size(), bytes = 0;
    for (; first > 0; --first) {
      const ResponseTurn& turn = *found->turns[first - 1];
      bytes += turn.input.size() + turn.output.size();
      if (bytes > max_earlier_bytes_) break;
    }
    if (first > 0 && !out_.truncate) return fail_budget("previous_response_id");
    earlier_bytes_ = std::min(bytes, max_earlier_bytes_);
    out_.turns.assign(found->turns.begin() + static_cast<ptrdiff_t>(first), found->turns.end());
    for (const auto& turn : out_.turns) {
      for (const std::string* text : {&turn->input, &turn->output}) {
        Result<Json> items = parse_json(*text);
        if (!items.ok()) return in_.fail(from_error({ErrorCode::kInternal, items.error().message}));
        for (Json& item : *items) out_.items.add(std::move(item), ItemTranslator::kEarlier);
      }
    }
  }

  // The items that the request adds; references replaced by what they refer to.
  Json own_items(bool continues) {
    Json* input = body_.contains("input") && !body_["input"].is_null() ? &body_["input"] : nullptr;
    Json out = Json::array();
    if (input == nullptr) {
      if (!continues) {
        in_.fail({400, "invalid_request_error", "missing_required_parameter", "input",
                  "input is required: a string or a list of items"});
      }
    } else if (input->is_string()) {
      const bool says_nothing = continues && input->get_ref<const std::string&>().empty();
      if (!says_nothing)
        out.push_back({{"type", "message"}, {"role", "user"}, {"content", std::move(*input)}});
    } else if (input->is_array()) {
      if (input->empty() && !continues) in_.fail_value("input", "input must hold at least one item");
      if (input->size() > kMaxTurns)
        in_.fail_value("input", "input may hold at most " + std::to_string(kMaxTurns) + " items");
      if (!in_.ok()) return out;
      out = std::move(*input);
      for (size_t i = 0; i < out.size() && in_.ok(); ++i) {
        if (is_item_reference(out[i])) resolve(&out[i], "input[" + std::to_string(i) + "]");
      }
    } else {
      in_.fail_value("input", "input must be a string or a list of items");
    }
    return out;
  }

  void resolve(Json* item, const std::string& where) {
    const std::string id = find_string(*item, "id");
    const auto found = id.empty() ? nullptr : store_.find_item(id);
    if (found == nullptr) {
      return in_.fail_value(where + ".id", "no item of this id is stored here: send the item itself");
    }
    const std::string& output = found->turns.back()->output;
    earlier_bytes_ += output.size();
    if (earlier_bytes_ > max_earlier_bytes_) return fail_budget("input");
    Result<Json> items = parse_json(output);
    if (!items.ok()) return in_.fail(from_error({ErrorCode::kInternal, items.error().message}));
    for (Json& stored : *items) {
      if (find_string(stored, "id") == id) *item = std::move(stored);
    }
  }

  void fail_budget(const char* param) {
    in_.fail_value(param, "the stored items that this request continues or refers to hold more than " +
                              std::to_string(max_earlier_bytes_ >> 20) + " MiB");
  }

  Json body_;
  FieldReader in_;
  ResponseStore& store_;
  const size_t max_earlier_bytes_;
  ResponsesRequest out_;
  size_t earlier_bytes_ = 0;
};

void replace_all(std::string* text, const std::string& from, const std::string& to) {
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size())) {
    text->replace(at, from.size(), to);
  }
}

}  // namespace

std::variant<ResponsesRequest, ApiError> translate_responses_request(Json body, ResponseStore& store,
                                                                     size_t max_earlier_bytes) {
  return Translator(std::move(body), store, max_earlier_bytes).run();
}

ApiError ResponsesRequest::translate(ApiError error) const {
  const std::string from = error.param;
  if (from.empty()) return error;
  std::string to = from;
  if (from.starts_with("messages")) {
    to = items.source_of(from);
  } else if (from.starts_with("tools[")) {
    const size_t close = from.find(']');
    const size_t index = static_cast<size_t>(std::strtoull(from.c_str() + 6, nullptr, 10));
    if (close != std::string::npos && index < tools.sources.size()) {
      to = "tools[" + std::to_string(tools.sources[index]) + from.substr(close);
    }
    replace_all(&to, "].function", "]");
  } else if (from.starts_with("response_format.json_schema")) {
    to = "text.format" + from.substr(std::string_view("response_format.json_schema").size());
  } else if (from.starts_with("response_format")) {
    to = "text.format" + from.substr(std::string_view("response_format").size());
  } else if (from == "max_tokens") {
    to = "max_output_tokens";
  } else if (from == "reasoning_effort") {
    to = "reasoning.effort";
  } else if (from == "logprobs") {
    to = "include";
  }
  if (to != from) replace_all(&error.message, from, to);
  error.param = std::move(to);
  return error;
}

}  // namespace firesteel::api
