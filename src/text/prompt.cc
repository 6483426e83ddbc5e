#include "text/prompt.h"

#include <algorithm>
#include <array>

#include "text/thinking_markup.h"

namespace firesteel {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";

Json template_variables(const Conversation& conversation, const PromptOptions& options, const Json& messages,
                        bool add_generation_prompt) {
  Json v = options.variables.is_object() ? options.variables : Json::object();
  v["messages"] = messages;
  v["tools"] =
      conversation.tools.is_array() && !conversation.tools.empty() ? conversation.tools : Json(nullptr);
  v["add_generation_prompt"] = add_generation_prompt;
  v["reasoning_effort"] = effort_name(options.thinking.effort);
  v["clear_thinking"] = options.thinking.clear_thinking;
  // For templates with a switch of their own; the published one has none.
  v["enable_thinking"] = options.thinking.enabled;
  v["thinking"] = options.thinking.enabled;
  return v;
}

bool is_blank(std::string_view s) { return s.find_first_not_of(kWhiteSpace) == std::string_view::npos; }

/// What the template shows last of an assistant turn: its text behind a closed think block, without white
/// space around.
std::string_view visible_tail(const Json& message) {
  const Json& content = message["content"];
  if (!content.is_string()) return {};
  std::string_view text = content.get_ref<const std::string&>();
  constexpr std::string_view kClose = "</think>";
  if (const size_t close = text.rfind(kClose);
      close != std::string_view::npos && !message.contains("reasoning_content"))
    text.remove_prefix(close + kClose.size());
  while (!text.empty() && kWhiteSpace.find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  while (!text.empty() && kWhiteSpace.find(text.front()) != std::string_view::npos) text.remove_prefix(1);
  return text;
}

/// Drops what a template writes behind the last message (an end token, a line end): the reply continues the
/// text itself.
MarkedText cut_after(const MarkedText& text, std::string_view tail) {
  if (tail.empty()) return text;
  const size_t at = text.bytes().rfind(tail);
  if (at == std::string::npos || !text.all_trusted(at + tail.size(), text.size())) return text;
  return text.substr(0, at + tail.size());
}

}  // namespace

const char* effort_name(Effort effort) {
  switch (effort) {
    case Effort::kLow:
      return "low";
    case Effort::kHigh:
      return "high";
    case Effort::kMax:
      return "max";
  }
  return "max";
}

bool ends_in_think(const MarkedText& text) { return open_turn(text).think_open; }

Result<Prompt> build_prompt(const ChatTemplate& chat_template, const Conversation& conversation,
                            const PromptOptions& options, const TemplateLimits& limits) {
  Json messages = conversation.messages;
  bool generate = options.add_generation_prompt;
  std::string reasoning;  // an open think block of the client's
  bool continues_reasoning = false;
  std::string tail;
  if (options.continue_final_message) {
    if (messages.empty() || messages.back()["role"] != "assistant")
      return Error{ErrorCode::kInvalidArgument,
                   "continue_final_message needs an assistant message at the end"};
    const Json& last = messages.back();
    const bool says_nothing = last["content"].is_string() &&
                              is_blank(last["content"].get_ref<const std::string&>()) &&
                              !last.contains("tool_calls");
    generate = says_nothing;
    if (says_nothing) {
      if (const auto r = last.find("reasoning_content"); r != last.end() && r->is_string()) {
        // The template always closes the block, so it is opened here.
        reasoning = r->get<std::string>();
        continues_reasoning = !reasoning.empty();
      }
      messages.erase(messages.size() - 1);
    } else if (!last.contains("tool_calls")) {
      tail = visible_tail(last);
    }
  }

  const Json variables = template_variables(conversation, options, messages, generate);
  ASSIGN_OR_RETURN(MarkedText text, chat_template.render(variables, limits));
  if (options.trust_caller_markup) text = MarkedText::trusted(text.bytes());
  text = cut_after(text, tail);
  if (!options.thinking.enabled) text = without_effort_line(text);
  if (continues_reasoning) {
    if (!ends_in_think(text)) text.append("<think>", true);
    text.append(reasoning, options.trust_caller_markup);
  } else if (generate && !options.thinking.enabled) {
    close_think(&text);
  }
  Prompt prompt;
  prompt.in_think = ends_in_think(text);
  prompt.text = std::move(text);
  return prompt;
}

PromptTraits probe_template(const ChatTemplate& chat_template) {
  PromptTraits traits;
  const auto render = [&](Json messages) {
    Conversation c;
    c.messages = std::move(messages);
    auto prompt = build_prompt(chat_template, c, {});
    return prompt.ok() ? std::move(prompt->text) : MarkedText();
  };
  const auto message = [](const char* role, Json content) {
    return Json{{"role", role}, {"content", std::move(content)}};
  };
  const std::string marker = "probe of a late system message";
  const MarkedText late = render(Json::array(
      {message("user", "a"), message("assistant", "b"), message("system", marker), message("user", "c")}));
  traits.late_system = late.bytes().find(marker) != std::string::npos;
  const MarkedText image = render(Json::array({message("user", Json::array({Json{{"type", "image"}}}))}));
  traits.images = find_trusted(image, "<|image|>", 0) != std::string::npos;
  traits.opens_think = ends_in_think(render(Json::array({message("user", "a")})));
  return traits;
}

}  // namespace firesteel
