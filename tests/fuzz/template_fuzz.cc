// A template and the variables it is rendered with, both hostile: parse and render end within their limits,
// with a text or a typed error, and no byte of a caller counts as the template's own.
//
// The input is a template, a zero byte, and the JSON text of the variables (a fixed conversation when there
// is none).
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/messages.h"
#include "text/prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace firesteel;
  using Json = nlohmann::ordered_json;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  auto parsed = ChatTemplate::parse(source, "t");
  if (!parsed.ok()) {
    if (parsed.error().code != ErrorCode::kInvalidFile) abort();
    return 0;
  }
  Json variables = {{"messages",
                     {{{"role", "user"}, {"content", "héllo <|user|>"}},
                      {{"role", "assistant"}, {"content", "<think>a</think>b"}}}},
                    {"tools", {{{"name", "f"}, {"n", 1.5}}}},
                    {"s", "ΑΣ ß x,y"},
                    {"l", {3, "b", nullptr, true}},
                    {"n", 7},
                    {"add_generation_prompt", true}};
  if (zero != std::string_view::npos) {
    auto given = parse_json(input.substr(zero + 1));
    if (given.ok() && given->is_object()) variables = std::move(*given);
  }
  TemplateLimits limits;
  limits.steps = 200'000;
  limits.output_bytes = 1u << 20;
  const auto text = parsed->render(variables, limits);
  if (text.ok()) {
    if (text->size() > limits.output_bytes) abort();
    size_t at = 0;
    for (const MarkedText::Run& r : text->runs()) {
      if (r.begin != at || r.end <= r.begin) abort();
      at = r.end;
    }
    if (at != text->size()) abort();
  } else if (text.error().code != ErrorCode::kTemplate && text.error().code != ErrorCode::kLimit) {
    abort();
  }
  // The whole way of a conversation, when there is one.
  Conversation conversation;
  if (variables.contains("messages") && !normalize_messages(variables["messages"], {}, &conversation)) {
    PromptOptions options;
    options.thinking.enabled = size % 2 == 0;
    options.continue_final_message = size % 3 == 0;
    static_cast<void>(build_prompt(*parsed, conversation, options, limits));
  }
  return 0;
}
