// Bodies of chat requests, up to the internal request: every input is a request or a typed refusal whose own
// JSON is valid; nothing crashes, hangs or recurses without bound.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "api/chat_request.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace firesteel;
  using namespace firesteel::api;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ChatDefaults defaults;
  const auto refused = [](const ApiError& e) {
    if (e.status < 400 || e.status > 599 || e.message.empty() || e.type.empty() || e.code.empty()) abort();
    for (const ErrorFormat format : {ErrorFormat::kOpenAi, ErrorFormat::kAnthropic}) {
      if (!parse_json(error_body(e, format, "req_1")).ok()) abort();
    }
  };
  auto body = parse_body(text);
  if (const auto* e = std::get_if<ApiError>(&body)) {
    refused(*e);
    return 0;
  }
  const auto parsed = parse_chat_request(std::get<Json>(body), defaults);
  if (const auto* e = std::get_if<ApiError>(&parsed)) {
    refused(*e);
    return 0;
  }
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  const ReplySettings& s = request.settings;
  if (s.choices < 1 || s.choices > kMaxChoices || s.stop.size() > kMaxStops || s.max_tokens < 0 ||
      !(s.sampling.top_p > 0 && s.sampling.top_p <= 1) || !(s.sampling.min_p >= 0 && s.sampling.min_p <= 1)) {
    abort();
  }
  if (!request.conversation.messages.is_array()) abort();
  return 0;
}
