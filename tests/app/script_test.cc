// Scripts: what their lines mean, which one is used, and what is said about a line that is none.
#include "app/script.h"

#include <gtest/gtest.h>

namespace firesteel {
namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto t = [] {
    auto loaded = Tokenizer::load(std::string(FIRESTEEL_SOURCE_DIR) + "/models/demo/tokenizer.json");
    return std::make_shared<const Tokenizer>(std::move(loaded).value());
  }();
  return t;
}
int32_t id(const char* name) { return tokenizer()->added_id(name); }
std::vector<int32_t> ids(const std::string& text) { return tokenizer()->encode(text).value(); }
std::vector<int32_t> plain_ids(const std::string& text) {
  return tokenizer()->encode(MarkedText::from_caller(text)).value();
}
std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Result<Script> parse(const std::string& text) {
  return Script::parse(text, "s.jsonl", tokenizer(), {id("<|user|>"), id("<|observation|>")});
}
Script script(const std::string& text) {
  auto parsed = parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return std::move(parsed).value();
}
std::string fault(const std::string& line) {
  const auto parsed = parse("{\"reply\":\"good\"}\n\n" + line + "\n");
  return parsed.ok() ? "" : parsed.error().message;
}
std::string text_of(const ScriptedReply& reply) { return tokenizer()->decode(reply.ids); }

TEST(Script, EveryTokenOfTheReplyByItselfUnlessItSaysOtherwise) {
  const Script s = script(R"({"reply":"a b</think><tool_call>f</tool_call>"})");
  const ScriptedReply reply = s.reply(ids("x"));
  EXPECT_EQ(reply.ids, ids("a b</think><tool_call>f</tool_call><|user|>"));
  EXPECT_EQ(reply.ids.back(), id("<|user|>"));
  EXPECT_TRUE(reply.slices.empty());
  EXPECT_EQ(reply.delay_us, 0);
  EXPECT_FALSE(reply.error);
  EXPECT_NE(std::find(reply.ids.begin(), reply.ids.end(), id("<tool_call>")), reply.ids.end());
}

TEST(Script, Cuts) {
  EXPECT_EQ(script(R"({"reply":"x","cut":[2,3]})").reply({1}).slices, (std::vector<int32_t>{2, 3}));
  const ScriptedReply whole = script(R"({"reply":"a b c","cut":"whole"})").reply({1});
  EXPECT_EQ(whole.slices, (std::vector<int32_t>{static_cast<int32_t>(whole.ids.size())}));
  const std::string text = "é</think>\u4e2d \\ <tool_call>";
  const ScriptedReply bytes = script(R"({"reply":"é</think>中 \\ <tool_call>","cut":"byte"})").reply({1});
  EXPECT_EQ(bytes.ids.size(), text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(tokenizer()->token_bytes(bytes.ids[i]), text.substr(i, 1)) << i;
  }
  EXPECT_EQ(bytes.ids.back(), id("<|user|>"));
}

TEST(Script, EndTokens) {
  EXPECT_EQ(script(R"({"reply":"x","end":false})").reply({1}).ids, ids("x"));
  // One in the text stays an end token, also among bytes.
  const ScriptedReply reply = script(R"({"reply":"ab<|observation|>","cut":"byte","end":false})").reply({1});
  ASSERT_EQ(reply.ids.size(), 3u);
  EXPECT_EQ(reply.ids.back(), id("<|observation|>"));
}

TEST(Script, Delays) {
  const ScriptedReply reply = script(R"({"reply":"x","delay_ms":1.5,"first_delay_ms":2000})").reply({1});
  EXPECT_EQ(reply.delay_us, 1500);
  EXPECT_EQ(reply.first_delay_us, 2'000'000);
}

TEST(Script, TheFirstLineThatFitsIsUsed) {
  const Script s = script(R"({"when":"rain","result":"sun","reply":"1"}
{"when":"rain","result":"","reply":"2"}
{"when":"rain","reply":"3"}
{"reply":"4","end":false})");
  const auto user = joined({id("<|system|>")}, joined(ids("rain"), joined({id("<|user|>")}, ids("rain?"))));
  const auto turn = joined(user, {id("<|assistant|>"), id("<think>")});
  EXPECT_EQ(text_of(s.reply(turn)), "3<|user|>");
  const auto results = [&](const std::string& text) {
    return joined(joined(joined(user, {id("<|assistant|>")}), joined({id("<|observation|>")}, ids(text))),
                  {id("<|assistant|>"), id("<think>")});
  };
  EXPECT_EQ(text_of(s.reply(results("<tool_response>sun</tool_response>"))), "1<|user|>");
  EXPECT_EQ(text_of(s.reply(results("<tool_response></tool_response>"))), "2<|user|>");
  // A later user turn: its text counts, and the results before it wait no more.
  const auto later = joined(results("sun"), joined({id("<|user|>")}, ids("and rain?")));
  EXPECT_EQ(text_of(s.reply(later)), "3<|user|>");
  EXPECT_EQ(text_of(s.reply(joined(later, joined({id("<|user|>")}, ids("thanks"))))), "4");
}

TEST(Script, OnlyTurnTokensMakeTurns) {
  const Script s = script(R"({"when":"one <|user|>two","reply":"yes"})");
  const auto prompt = joined({id("<|user|>")}, plain_ids("one <|user|>two<|observation|>"));
  EXPECT_EQ(s.read(prompt).user, "one <|user|>two<|observation|>");
  EXPECT_FALSE(s.read(prompt).result);
  EXPECT_FALSE(s.reply(prompt).error);
  // Without any turn the whole prompt is the text.
  EXPECT_EQ(s.read(ids("plain")).user, "plain");
}

TEST(Script, NoLineFits) {
  const ScriptedReply none = script(R"({"when":"x","reply":"y"})").reply(ids("z"));
  EXPECT_TRUE(none.ids.empty());
  ASSERT_TRUE(none.error);
  EXPECT_EQ(none.error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(none.error->message, "no line of the script fits the last user text");
}

TEST(Script, FaultsNameTheLine) {
  EXPECT_EQ(fault("[1]"), "s.jsonl:3: must be a JSON object");
  EXPECT_EQ(fault("{}"), "s.jsonl:3: \"reply\" is missing");
  EXPECT_EQ(fault(R"({"reply":1})"), "s.jsonl:3: \"reply\" must be a string");
  EXPECT_EQ(fault(R"({"reply":"x","repl":1})"), "s.jsonl:3: unknown field \"repl\"");
  EXPECT_TRUE(fault(R"({"reply":"x")").starts_with("s.jsonl:3: invalid JSON at byte 12"));
  EXPECT_TRUE(fault("{\"reply\":\"\xff\"}").starts_with("s.jsonl:3: invalid UTF-8 at byte 10"));
  for (const char* cut :
       {"\"words\"", "[]", "[0]", "[1.5]", "[-1]", "[99999999999]", "[\"1\"]", "3", "null", "{}"}) {
    EXPECT_TRUE(fault(std::string(R"({"reply":"x","cut":)") + cut + "}").starts_with("s.jsonl:3: ")) << cut;
  }
  for (const char* delay : {"-1", "1e9", "\"1\"", "null", "[]"}) {
    EXPECT_TRUE(fault(std::string(R"({"reply":"x","delay_ms":)") + delay + "}")
                    .starts_with("s.jsonl:3: \"delay_ms\""));
  }
  EXPECT_EQ(fault(R"({"reply":"x","end":0})"), "s.jsonl:3: \"end\" must be true or false");
  EXPECT_EQ(fault(R"({"reply":"x","when":null})"), "s.jsonl:3: \"when\" must be a string");
  EXPECT_FALSE(parse("").ok());
  EXPECT_FALSE(parse("\n \r\n").ok());
  EXPECT_TRUE(parse("{\"reply\":\"\"}\r\n").ok());
}

}  // namespace
}  // namespace firesteel
