// Rules of reply_stream.h that the golden cases do not reach, and the property that slicing never matters.
#include "text/reply_stream.h"

#include <gtest/gtest.h>

#include "text/utf8.h"
// after utf8.h and gtest.h
#include "reply_support.h"

namespace firesteel {
namespace {

using nlohmann::ordered_json;
using namespace reply_test;

std::shared_ptr<const ToolSet> weather() {
  return ToolSet::create(ordered_json::parse(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
      "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
    {"name":"bash","parameters":{"type":"object","properties":{"command":{"type":"string"}}}}])"));
}

ReplyOptions thinking() {
  ReplyOptions o;
  o.in_think = true;
  return o;
}
ReplyOptions with_tools(bool in_think) {
  ReplyOptions o;
  o.in_think = in_think;
  o.tools = weather();
  return o;
}

Outcome whole(const ReplyOptions& options, const std::string& text, ReplyEnding ending = ReplyEnding::kEnd) {
  const Outcome one = run(options, natural_tokens(text), ending);
  EXPECT_EQ(run(options, byte_tokens(text), ending), one) << text;
  return one;
}

const std::string kCall =
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>";

TEST(ReplyStream, BlanksBetweenThinkBlockAndAnswerAreDropped) {
  const Outcome o = whole(thinking(), "r \n</think>\n\n  The answer. \n");
  EXPECT_EQ(o.reasoning, "r \n");
  EXPECT_EQ(o.content, "The answer.");
}

TEST(ReplyStream, AContinuedTextKeepsItsFirstBlank) {
  ReplyOptions o;
  o.continues_text = true;
  EXPECT_EQ(whole(o, " is 4.").content, " is 4.");
  EXPECT_EQ(whole({}, " is 4.").content, "is 4.");
}

TEST(ReplyStream, AReplyMayOpenItsOwnThinkBlock) {
  const Outcome o = whole({}, "\n<think>hm</think>\nYes");
  EXPECT_EQ(o.reasoning, "hm");
  EXPECT_EQ(o.content, "Yes");
  EXPECT_EQ(whole({}, "Write <think> first").content, "Write <think> first");
}

TEST(ReplyStream, RawTextIsLeftAlone) {
  ReplyOptions o = with_tools(true);
  o.raw = true;
  const std::string text = " <think>a</think> " + kCall + " \n";
  EXPECT_EQ(whole(o, text).content, text);
}

TEST(ReplyStream, ReasoningTokensCountThroughTheClosingTag) {
  const auto count = [](const ReplyOptions& o, const std::string& text) {
    return run(o, natural_tokens(text), ReplyEnding::kLength).reasoning_tokens;
  };
  const auto size = [](const std::string& text) { return static_cast<int64_t>(natural_tokens(text).size()); };
  EXPECT_EQ(count(thinking(), "one two</think>three"), size("one two</think>"));
  EXPECT_EQ(count(thinking(), "one two three"), size("one two three"));
  EXPECT_EQ(count({}, "one two three"), 0);
}

TEST(ReplyStream, EndTokensAreNeverShownUnlessIgnored) {
  const int32_t user = demo().added_id("<|user|>");
  ReplyOptions o;
  o.end_ids = {user};
  std::vector<int32_t> ids = natural_tokens("Done.");
  ids.push_back(user);
  for (int32_t id : natural_tokens("more")) ids.push_back(id);
  EXPECT_EQ(run(o, ids, ReplyEnding::kEnd).content, "Done.");
  o.ignore_eos = true;
  EXPECT_EQ(run(o, ids, ReplyEnding::kLength).content, "Done.<|user|>more");
}

TEST(ReplyStream, StopStrings) {
  ReplyOptions o = thinking();
  o.stop = {"Question:", "\n\n"};
  Outcome r = whole(o, "Question: 12*13?\n\nEasy.</think>\n\nIt is 156. \n\nQuestion: next");
  EXPECT_EQ(r.reasoning, "Question: 12*13?\n\nEasy.");
  EXPECT_EQ(r.content, "It is 156. ");
  EXPECT_EQ(r.stop, "\n\n");
  r = whole(o, "r</think>A Question of time");
  EXPECT_EQ(r.content, "A Question of time");
  EXPECT_EQ(r.stop, std::nullopt);
  o.include_stop = true;
  EXPECT_EQ(whole(o, "r</think>a\n\nb").content, "a\n\n");
  o.stop_in_reasoning = true;
  r = whole(o, "so Question: x</think>y");
  EXPECT_EQ(r.reasoning, "so Question:");
  EXPECT_EQ(r.content, "");
  o.stop = {"abcd", "bc"};
  o.include_stop = false;
  EXPECT_EQ(whole(o, "</think>xabcd").content, "xa");
}

TEST(ReplyStream, StopStringsNeverMatchInsideACall) {
  ReplyOptions o = with_tools(true);
  o.stop = {"Oslo", "</tool_call>", "arg"};
  const Outcome r = whole(o, "r</think>Look." + kCall + "Then Oslo again");
  EXPECT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.content, "Look.Then ");
  EXPECT_EQ(r.stop, "Oslo");
  EXPECT_EQ(r.finish_reason, "tool_calls");
}

TEST(ReplyStream, AStopEndsTheReplyAtItsToken) {
  ReplyOptions o;
  o.stop = {"stop"};
  ReplyStream stream(demo(), o);
  std::vector<ReplyPiece> out;
  for (int32_t id : byte_tokens("a sto")) stream.push(id, out);
  EXPECT_FALSE(stream.stopped());
  stream.push(byte_tokens("p")[0], out);
  EXPECT_TRUE(stream.stopped());
}

TEST(ReplyStream, NothingOfACallIsVisibleWhileItIsWritten) {
  ReplyStream stream(demo(), with_tools(false));
  std::vector<ReplyPiece> out;
  for (int32_t id : byte_tokens("A <b> " + kCall.substr(0, kCall.size() - 1))) stream.push(id, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "A <b>");
  EXPECT_TRUE(stream.inside_call());
  stream.push(byte_tokens(">")[0], out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[1].call.arguments, R"({"city":"Oslo"})");
  EXPECT_EQ(out[1].call.markup, kCall);
  EXPECT_FALSE(stream.inside_call());
}

TEST(ReplyStream, CallsInTheThinkBlock) {
  const auto o = with_tools(true);
  Outcome r = whole(o, "so\n" + kCall + "\n</think>\n");
  EXPECT_EQ(r.reasoning, "so");
  EXPECT_EQ(r.calls.size(), 1u);
  r = whole(o, "so\n" + kCall + "\n</think>\nIt rains.");
  EXPECT_EQ(r.reasoning, "so\n" + kCall + "\n");
  EXPECT_EQ(r.content, "It rains.");
  EXPECT_EQ(r.calls.size(), 0u);
  r = whole(o, "so\n" + kCall + "</think>" + kCall);
  EXPECT_EQ(r.reasoning, "so\n" + kCall);
  EXPECT_EQ(r.calls.size(), 1u);
  r = whole(o, "so " + kCall, ReplyEnding::kLength);
  EXPECT_EQ(r.reasoning, "so " + kCall);
  EXPECT_EQ(r.finish_reason, "length");
  r = whole(o, "so <tool_call>bash<arg_key>command</arg_key><arg_value>a</think>b");
  EXPECT_EQ(r.reasoning, "so <tool_call>bash<arg_key>command</arg_key><arg_value>a");
  EXPECT_EQ(r.content, "b");
}

TEST(ReplyStream, AnArgumentOfTheAnswerMayHoldThinkTags) {
  const Outcome r = whole(with_tools(false),
                          "<tool_call>bash<arg_key>command</arg_key><arg_value>echo '<think></think>'"
                          "</arg_value></tool_call>");
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].arguments, R"({"command":"echo '<think></think>'"})");
}

TEST(ReplyStream, WhatLooksLikeACallAndIsNoneIsText) {
  for (const char* text :
       {"<tool_call>", "a <tool_call> block now.", "<tool_call>get_weather,",
        "<tool_call>get_weather city now</arg_key>", "<tool_call>[1]</tool_call>",
        "<tool_call><arg_key>city</arg_key>", "<tool_call>bash<arg_key>a<b</arg_key>",
        "<tool_call><function=bash><parameter=a>1</parameter></tool_call>",
        "<tool_call>{\"name\":\"bash\"}x</tool_call>", "</tool_call>", "<tool_call>nope",
        "{\"name\": \"bash\"}", "{\"name\": \"bash\", \"arguments\": [1]}",
        "{\"name\": \"nope\", \"arguments\": {}}", "{\"arguments\": {}, \"name\": \"bash\"}", "{", "{\"na"}) {
    const Outcome r = whole(with_tools(false), text);
    EXPECT_EQ(r.content, text);
    EXPECT_EQ(r.calls.size(), 0u) << text;
  }
}

TEST(ReplyStream, ACallBehindAFailedOneIsFound) {
  for (const char* broken :
       {"<tool_call>get_weather<arg_key>city</arg_key>Oslo ", "<tool_call> and then ",
        "<tool_call>{\"a\":1} ", "<tool_call>x<arg_key>k</arg_key><arg_value>v</arg_value>zz "}) {
    const Outcome r = whole(with_tools(false), broken + kCall);
    EXPECT_EQ(r.calls.size(), 1u) << broken;
    EXPECT_EQ(r.content, std::string(broken).substr(0, std::string(broken).size() - 1)) << broken;
  }
}

TEST(ReplyStream, RepairAtANaturalEndIsStrict) {
  const auto calls = [](const std::string& text, ReplyEnding ending = ReplyEnding::kEnd) {
    return whole(with_tools(false), text, ending).calls.size();
  };
  EXPECT_EQ(calls("<tool_call>bash"), 1u);
  EXPECT_EQ(calls("<tool_call>bash\n</tool"), 1u);
  EXPECT_EQ(calls("<tool_call>get_weather"), 0u);  // lacks a required argument
  EXPECT_EQ(calls("<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value>"), 0u);
  EXPECT_EQ(calls("<tool_call>list_dir<arg_key>p</arg_key><arg_value>.</arg_value>"), 0u);  // not offered
  EXPECT_EQ(calls("<tool_call>bash<arg_key>command</arg_key>"), 0u);
  EXPECT_EQ(calls("<tool_call>{\"name\":\"bash\",\"arguments\":{}}"), 1u);
  EXPECT_EQ(calls("<tool_call>{\"name\":\"bash\",\"arguments\":{}"), 0u);
  EXPECT_EQ(calls("<tool_call>bash", ReplyEnding::kLength), 0u);
}

TEST(ReplyStream, ACutCallIsNeitherSentNorShown) {
  for (size_t at = kToolCallOpen.size(); at < kCall.size(); ++at) {
    const Outcome r = whole(with_tools(false), "Now. " + kCall.substr(0, at), ReplyEnding::kLength);
    EXPECT_EQ(r.content, "Now.") << at;
    EXPECT_EQ(r.calls.size(), 0u) << at;
    EXPECT_EQ(r.finish_reason, "length");
  }
}

TEST(ReplyStream, AdversarialMarkupStaysLinear) {
  for (const char* unit :
       {"<tool_call>", "<tool_call>bash<arg_key>k</arg_key><arg_value>", "<tool_call>{\"",
        "<tool_call>bash\n", "<", "<tool_call>bash<arg_key>k</arg_key><arg_value></arg_value>",
        "<tool_call>{[", "</think>"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    run(with_tools(true), natural_tokens(text), ReplyEnding::kEnd);
    run(with_tools(false), natural_tokens(text), ReplyEnding::kLength);
  }
}

// --- slicing

std::string random_reply(std::mt19937_64& rng) {
  static const std::string kParts[] = {"</think>",
                                       "<think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<arg_key>",
                                       "</arg_key>",
                                       "<arg_value>",
                                       "</arg_value>",
                                       "get_weather",
                                       "bash",
                                       "nope",
                                       "city",
                                       "days",
                                       "command",
                                       "3",
                                       "\"a\"",
                                       "{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}",
                                       "{",
                                       "}",
                                       " ",
                                       "\n",
                                       "\n\n",
                                       "text",
                                       "Stop",
                                       "STOP here",
                                       "é",
                                       "😀",
                                       "<",
                                       "</",
                                       "<tool",
                                       "<function=bash>",
                                       "<parameter=command>",
                                       "</parameter>",
                                       "</function>",
                                       "\xf0\x9f",
                                       "\xff",
                                       kCall,
                                       kCall};
  std::string text;
  for (size_t n = rng() % 14; n > 0; --n) text += kParts[rng() % std::size(kParts)];
  return text;
}

ReplyOptions random_options(std::mt19937_64& rng) {
  static const std::vector<std::string> kStops[] = {
      {}, {}, {"Stop", "STOP here"}, {"\n\n", "é"}, {"t", "xt<"}, {"\xf0\x9f\x98\x80"}};
  ReplyOptions o;
  o.in_think = rng() % 2;
  if (rng() % 4) o.tools = weather();
  o.parallel_tool_calls = rng() % 4;
  o.stop = kStops[rng() % std::size(kStops)];
  o.stop_in_reasoning = rng() % 3 == 0;
  o.include_stop = rng() % 2;
  o.continues_text = rng() % 5 == 0;
  o.raw = rng() % 12 == 0;
  return o;
}

TEST(ReplyStream, SlicingNeverMatters) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int with_calls = 0, with_stop = 0;
  for (int round = 0; round < 30'000; ++round) {
    const std::string text = random_reply(rng);
    const ReplyOptions o = random_options(rng);
    const ReplyEnding ending = rng() % 3 ? ReplyEnding::kEnd : ReplyEnding::kLength;
    const Outcome one = run(o, natural_tokens(text), ending);
    with_calls += !one.calls.empty();
    with_stop += one.stop.has_value();
    ASSERT_EQ(run(o, byte_tokens(text), ending), one) << testing::PrintToString(text);
    for (int again = 0; again < 3 && !text.empty(); ++again)
      ASSERT_EQ(run(o, cut_tokens(text, rng() % text.size()), ending), one) << testing::PrintToString(text);
  }
  EXPECT_GT(with_calls, 1000);
  EXPECT_GT(with_stop, 1000);
}

/// The same comparison must notice a stream that forgets what it held back between tokens.
TEST(ReplyStream, ComparisonNoticesAPlantedFault) {
  std::mt19937_64 rng(5);
  int noticed = 0;
  for (int round = 0; round < 200; ++round) {
    const std::string text = random_reply(rng);
    ReplyOptions o = random_options(rng);
    Outcome forgetful;
    for (int32_t id : byte_tokens(text)) {
      const Outcome part = run(o, {id}, ReplyEnding::kEnd);
      forgetful.reasoning += part.reasoning;
      forgetful.content += part.content;
    }
    noticed += !(forgetful == run(o, natural_tokens(text), ReplyEnding::kEnd));
  }
  EXPECT_GT(noticed, 100);
}

}  // namespace
}  // namespace firesteel
