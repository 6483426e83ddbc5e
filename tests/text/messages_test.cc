// Histories as clients send them, made ready for the template.
#include "text/messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

Json json(std::string_view text) {
  auto v = parse_json(text);
  EXPECT_TRUE(v.ok()) << text << (v.ok() ? "" : v.error().message);
  return v.ok() ? *v : Json();
}

struct Outcome {
  Conversation conversation;
  std::optional<Refusal> refusal;
};
Outcome normalize(std::string_view messages, const MessageOptions& options = {}) {
  Outcome o;
  o.refusal = normalize_messages(json(messages), options, &o.conversation);
  return o;
}
std::string messages_of(std::string_view messages, const MessageOptions& options = {}) {
  const Outcome o = normalize(messages, options);
  return o.refusal ? "REFUSED " + o.refusal->param + ": " + o.refusal->message
                   : dump_json(o.conversation.messages);
}
std::string param_of(std::string_view messages, const MessageOptions& options = {}) {
  const Outcome o = normalize(messages, options);
  EXPECT_TRUE(o.refusal.has_value()) << messages;
  if (!o.refusal) return "";
  EXPECT_FALSE(o.refusal->message.empty());
  EXPECT_FALSE(o.refusal->api_code.empty());
  return o.refusal->param;
}

TEST(Messages, AConversationHasABoundedNumberOfTurns) {
  Json many = Json::array(), calls = Json::array(), parts = Json::array();
  for (size_t i = 0; i < kMaxTurns; ++i) {
    many.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", "x"}});
    calls.push_back({{"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}});
    parts.push_back({{"output", "x"}});
  }
  const auto param = [](const Json& messages) {
    Conversation c;
    const auto refusal = normalize_messages(messages, {}, &c);
    return refusal ? refusal->param : std::string("taken");
  };
  EXPECT_EQ(param(many), "taken");
  many.push_back({{"role", "user"}, {"content", "x"}});
  EXPECT_EQ(param(many), "messages");
  EXPECT_EQ(param({{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"tool_calls", calls}}}),
            "messages");
  EXPECT_EQ(param({{{"role", "user"}, {"content", "x"}}, {{"role", "tool"}, {"content", parts}}}),
            "messages");
}

TEST(Messages, LeadingSystemMessagesMerge) {
  EXPECT_EQ(
      messages_of(
          R"([{"role":"system","content":"a"},{"role":"developer","content":" b"},{"role":"user","content":" u\n"}])"),
      R"([{"role":"system","content":"a\n\n b"},{"role":"user","content":" u\n"}])");
  const char* late = R"([{"role":"user","content":"u"},{"role":"developer","content":"s"}])";
  EXPECT_EQ(messages_of(late), R"([{"role":"user","content":"u"},{"role":"system","content":"s"}])");
  MessageOptions options;
  options.late_system_as_user = true;
  EXPECT_EQ(messages_of(late, options), R"([{"role":"user","content":"u"},{"role":"user","content":"s"}])");
}

TEST(Messages, TextPartsJoinWithNothingBetween) {
  EXPECT_EQ(
      messages_of(
          R"([{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"input_text","text":" c"}]},
                            {"role":"tool","tool_call_id":"x","content":[{"type":"text","text":"r"}]},{"role":"user","content":[]}])"),
      R"([{"role":"user","content":"ab c"},{"role":"tool","content":"r","tool_call_id":"x"},{"role":"user","content":""}])");
}

TEST(Messages, OurOwnRepliesComeBack) {
  // Everything that a reply of ours or of another server holds.
  EXPECT_EQ(
      messages_of(R"([{"role":"user","content":"u","name":"n"},
      {"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"function_call":null,"reasoning":"why","reasoning_details":[],
       "tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\": [1, 2.0], \"b\": 12345678901234567890123}"}}]},
      {"role":"tool","tool_call_id":"call_1","content":null},
      {"role":"assistant","content":"done","reasoning_content":"","tool_calls":[]}])"),
      R"([{"role":"user","content":"u"},{"role":"assistant","content":"","reasoning_content":"why","tool_calls":[{"id":"call_1","type":"function",)"
      R"("function":{"name":"f","arguments":{"a":[1,2.0],"b":12345678901234567890123}}}]},{"role":"tool","content":"","tool_call_id":"call_1"},)"
      R"({"role":"assistant","content":"done","reasoning_content":""}])");
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant"},{"role":"assistant","content":null,"reasoning":"only"},{"role":"assistant","refusal":"no"},
                            {"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"output_text","text":"!"}]}])"),
      R"([{"role":"assistant","content":"","reasoning_content":"only"},{"role":"assistant","content":"no"},{"role":"assistant","content":"no!"}])");
  EXPECT_EQ(
      messages_of(R"([{"role":"assistant","content":"a","reasoning":"alias","reasoning_content":"name"}])"),
      R"([{"role":"assistant","content":"a","reasoning_content":"name"}])");
}

TEST(Messages, ArgumentsBecomeObjects) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("{\"a\":1}")", R"({"a":1})"},
      {R"({"a":1})", R"({"a":1})"},
      {R"("")", "{}"},
      {R"(" \n")", "{}"},
      {"null", "{}"},
      {R"("null")", "{}"},
      {R"(" {} ")", "{}"},
  };
  for (const auto& [in, out] : cases)
    EXPECT_EQ(
        messages_of(
            std::string(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)") + in +
            "}}]}]"),
        std::string(
            R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":)") +
            out + "}}]}]");
  EXPECT_EQ(
      messages_of(R"([{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":{}}}]}])");
}

TEST(Messages, CallsThatCannotBeShownLeaveWithTheirResults) {
  for (const char* bad : {R"("{\"command\": \"ls")", "\"[1]\"", "\"5\"", "[]", "5", "true",
                          R"("{\"a\": 1e999}")", R"("{\"a\": NaN}")"}) {
    const Outcome o = normalize(
        std::string(R"([{"role":"user","content":"u"},{"role":"assistant","content":"t","tool_calls":[
        {"id":"1","function":{"name":"f","arguments":)") +
        bad + R"(}},{"id":"2","function":{"name":"g","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"2","content":"two"},{"role":"tool","tool_call_id":"1","content":"one"},{"role":"user","content":"go on"}])");
    ASSERT_FALSE(o.refusal.has_value()) << bad;
    EXPECT_EQ(
        dump_json(o.conversation.messages),
        R"([{"role":"user","content":"u"},{"role":"assistant","content":"t","tool_calls":[{"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},)"
        R"({"role":"tool","content":"two","tool_call_id":"2"},{"role":"user","content":"go on"}])");
    EXPECT_EQ(o.conversation.notes.size(), 1u);
  }
  // Nothing left: the turn goes too.
  EXPECT_EQ(
      messages_of(
          R"([{"role":"user","content":"a"},{"role":"assistant","reasoning":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"bash","arguments":"{\"command\": \"ls"}}]},
                            {"role":"tool","tool_call_id":"1","content":"err"},{"role":"user","content":"go on"}])"),
      R"([{"role":"user","content":"a"},{"role":"user","content":"go on"}])");
  // An id used twice: the first result is the first call's.
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{"}},{"id":"1","function":{"name":"g"}}]},
                            {"role":"tool","tool_call_id":"1","content":"first"},{"role":"tool","tool_call_id":"1","content":"second"}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"second","tool_call_id":"1"}])");
  // The same id in a later turn is another call.
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant","content":"x","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{"}}]},
                            {"role":"assistant","tool_calls":[{"id":"1","function":{"name":"g"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}])"),
      R"([{"role":"assistant","content":"x"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"ok","tool_call_id":"1"}])");
  // No name, no object, no function: never a refusal.
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant","content":"x","tool_calls":[{"id":"1","function":{"name":null}},7,{"id":"2"},{"id":"3","type":"custom","custom":{}}]}])"),
      R"([{"role":"assistant","content":"x"}])");
  // Structured results lose the output of the call only.
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{"}},{"id":"2","function":{"name":"g"}}]},
                            {"role":"tool","content":[{"tool_call_id":"1","output":"one"},{"tool_call_id":"2","output":null}]}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":[{"tool_call_id":"2","output":""}]}])");
}

TEST(Messages, ResultsKeepTheirPlace) {
  EXPECT_EQ(messages_of(
                R"([{"role":"user","content":"u"},{"role":"tool","tool_call_id":"nowhere","content":"r"}])"),
            R"([{"role":"user","content":"u"},{"role":"tool","content":"r","tool_call_id":"nowhere"}])");
  EXPECT_EQ(messages_of(R"([{"role":"tool","content":[{"type":"tool_reference","name":"f"}]}])"),
            R"([{"role":"tool","content":[{"type":"tool_reference","name":"f"}]}])");
}

TEST(Messages, LegacyFunctions) {
  EXPECT_EQ(
      messages_of(
          R"([{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"x\":1}"}},{"role":"function","name":"f","content":"r"}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]},{"role":"tool","content":"r","name":"f"}])");
  EXPECT_EQ(
      messages_of(
          R"([{"role":"user","content":"u"},{"role":"assistant","function_call":{"name":"f","arguments":"{"}},{"role":"function","name":"f","content":"r"}])"),
      R"([{"role":"user","content":"u"}])");
}

TEST(Messages, RefusalsNameTheField) {
  EXPECT_EQ(param_of("{}"), "messages");
  EXPECT_EQ(param_of("[]"), "messages");
  EXPECT_EQ(param_of("[1]"), "messages[0]");
  EXPECT_EQ(param_of(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param_of(R"([{"role":"user","content":"u"},{"role":"robot","content":"x"}])"),
            "messages[1].role");
  EXPECT_EQ(param_of(R"([{"role":5,"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param_of(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param_of(R"([{"role":"user","content":null}])"), "messages[0].content");
  EXPECT_EQ(param_of(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(param_of(R"([{"role":"tool","content":{"a":1}}])"), "messages[0].content");
  EXPECT_EQ(param_of(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text");
  EXPECT_EQ(param_of(R"([{"role":"user","content":["a",{"text":"x"}]}])"), "messages[0].content[1].type");
  EXPECT_EQ(param_of(R"([{"role":"user","content":[{"type":"poem"}]}])"), "messages[0].content[0].type");
  EXPECT_EQ(param_of(R"([{"role":"user","content":[7]}])"), "messages[0].content[0]");
  EXPECT_EQ(param_of(R"([{"role":"assistant","tool_calls":{}}])"), "messages[0].tool_calls");
  EXPECT_EQ(param_of(R"([{"role":"assistant","reasoning_content":5}])"), "messages[0].reasoning_content");
  EXPECT_EQ(param_of(R"([{"role":"tool","tool_call_id":5,"content":""}])"), "messages[0].tool_call_id");
}

TEST(Messages, Media) {
  const char* picture =
      R"([{"role":"system","content":"s"},{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},
      {"type":"image_url","image_url":{"url":"data:1","detail":"low"}},{"type":"image_url","image_url":"data:2"},{"type":"text","text":"c"},{"type":"video_url","video_url":{"url":"data:3"}}]}])";
  const Outcome off = normalize(picture);
  ASSERT_TRUE(off.refusal.has_value());
  EXPECT_EQ(off.refusal->param, "messages[2].content[2]");
  EXPECT_EQ(off.refusal->api_code, "unsupported_media");
  EXPECT_EQ(off.refusal->code, ErrorCode::kUnsupported);
  MessageOptions options;
  options.media = true;
  const Outcome on = normalize(picture, options);
  ASSERT_FALSE(on.refusal.has_value());
  EXPECT_EQ(
      dump_json(on.conversation.messages[1]["content"]),
      R"([{"type":"text","text":"ab"},{"type":"image"},{"type":"image"},{"type":"text","text":"c"},{"type":"video"}])");
  ASSERT_EQ(on.conversation.media.size(), 3u);
  const MediaPart& last = on.conversation.media[2];
  EXPECT_EQ(last.kind, MediaPart::Kind::kVideo);
  EXPECT_EQ(last.message, 1u);
  EXPECT_EQ(last.part, 4u);
  EXPECT_EQ(last.url, "data:3");
  EXPECT_EQ(last.param, "messages[2].content[5].video_url");
  EXPECT_EQ(on.conversation.media[1].url, "data:2");
  EXPECT_EQ(param_of(R"([{"role":"system","content":[{"type":"image_url","image_url":"data:1"}]}])", options),
            "messages[0].content[0]");
  EXPECT_EQ(param_of(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])", options),
            "messages[0].content[0].image_url");
  const Outcome audio =
      normalize(R"([{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}])", options);
  ASSERT_TRUE(audio.refusal.has_value());
  EXPECT_EQ(audio.refusal->api_code, "unsupported_media");
}

// spec/reports.md 86
TEST(Messages, WithoutVisionAPictureInAToolResultIsTheReminder) {
  const std::string reminder =
      "<reminder>You are unable to process this image because you don't have multi-modal input ability. "
      "Try different methods.</reminder>";
  EXPECT_EQ(
      messages_of(
          R"([{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"shot"},{"type":"image_url","image_url":{"url":"data:image/png;base64,x"}},"."]}])"),
      R"([{"role":"tool","content":"shot)" + reminder + R"(.","tool_call_id":"1"}])");
  EXPECT_EQ(
      messages_of(
          R"([{"role":"tool","content":[{"tool_call_id":"1","output":[{"type":"image_url","image_url":"data:x"}]}]}])"),
      R"([{"role":"tool","content":[{"tool_call_id":"1","output":")" + reminder + R"("}]}])");
  EXPECT_NE(messages_of(R"([{"role":"tool","content":[{"type":"video_url","video_url":"data:x"}]}])")
                .find("process this video because"),
            std::string::npos);
  EXPECT_EQ(param_of(R"([{"role":"user","content":[{"type":"image_url","image_url":"data:x"}]}])"),
            "messages[0].content[0]");
}

TEST(Messages, AnOpenLastMessage) {
  MessageOptions options;
  options.continue_final_message = true;
  EXPECT_EQ(messages_of(R"([{"role":"user","content":"u"},{"role":"assistant","content":""}])", options),
            R"([{"role":"user","content":"u"},{"role":"assistant","content":""}])");
  EXPECT_EQ(
      messages_of(R"([{"role":"user","content":"u"},{"role":"assistant","content":" <think>half a"}])",
                  options),
      R"([{"role":"user","content":"u"},{"role":"assistant","content":"","reasoning_content":"half a"}])");
  EXPECT_EQ(messages_of(R"([{"role":"assistant","content":"<think>a</think>b"}])", options),
            R"([{"role":"assistant","content":"<think>a</think>b"}])");
}

TEST(Messages, Arguments) {
  EXPECT_FALSE(read_call_arguments(Json("[")).has_value());
  EXPECT_FALSE(read_call_arguments(Json(5)).has_value());
  EXPECT_EQ(dump_json(*read_call_arguments(Json("{\"b\":1,\"a\":2}"))), "{\"b\":1,\"a\":2}");
}

}  // namespace
}  // namespace firesteel
