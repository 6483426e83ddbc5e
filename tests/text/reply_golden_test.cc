// The parsing cases of the golden data, at every cut.
#include <gtest/gtest.h>

#include "text/utf8.h"
// after utf8.h and gtest.h
#include "reply_support.h"

namespace firesteel {
namespace {

using nlohmann::ordered_json;
using namespace reply_test;

std::vector<ordered_json> cases() {
  std::ifstream in(FIRESTEEL_SOURCE_DIR "/tests/data/golden/chat.json");
  return ordered_json::parse(in)["parsing"].get<std::vector<ordered_json>>();
}

ReplyOptions options_of(const ordered_json& c) {
  ReplyOptions o;
  o.in_think = c["prompt_ends_in"] == "<think>";
  o.end_ids = {demo().added_id("<|endoftext|>"), demo().added_id("<|user|>"),
               demo().added_id("<|observation|>")};
  const ordered_json& request = c["request"];
  if (!request.contains("tool_choice") || request["tool_choice"] != "none")
    o.tools = ToolSet::create(c["tools"]);
  if (request.contains("parallel_tool_calls"))
    o.parallel_tool_calls = request["parallel_tool_calls"].get<bool>();
  return o;
}

Outcome expected(const ordered_json& c) {
  Outcome out;
  const ordered_json& e = c["expected"];
  out.reasoning = e["reasoning_content"];
  out.content = e["content"];
  for (const ordered_json& call : e["tool_calls"]) out.calls.push_back({call["name"], call["arguments"], ""});
  out.finish_reason = e["finish_reason"];
  return out;
}

void expect_same(const Outcome& got, const ordered_json& c, const std::string& how) {
  const Outcome want = expected(c);
  EXPECT_EQ(got.reasoning, want.reasoning) << c["name"] << how;
  EXPECT_EQ(got.content, want.content) << c["name"] << how;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << c["name"] << how;
  ASSERT_EQ(got.calls.size(), want.calls.size()) << c["name"] << how;
  for (size_t i = 0; i < want.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, want.calls[i].name) << c["name"] << how;
    EXPECT_EQ(got.calls[i].arguments, want.calls[i].arguments) << c["name"] << how;
  }
}

TEST(ReplyGolden, EveryCaseAtEveryCut) {
  const auto all = cases();
  ASSERT_EQ(all.size(), 91u);
  for (const ordered_json& c : all) {
    const std::string reply = c["reply"];
    const ReplyOptions options = options_of(c);
    const bool cut = c["ended_by"] == "length";
    const ReplyEnding ending = cut ? ReplyEnding::kLength : ReplyEnding::kEnd;
    const auto ended = [&](std::vector<int32_t> ids) {
      if (!cut) ids.push_back(options.end_ids[c["ended_by"] == "<|observation|>" ? 2 : 0]);
      return ids;
    };
    const Outcome whole = run(options, ended(natural_tokens(reply)), ending);
    expect_same(whole, c, "");
    EXPECT_EQ(run(options, ended(byte_tokens(reply)), ending), whole) << c["name"] << " byte by byte";
    for (size_t at = 1; at < reply.size(); ++at)
      EXPECT_EQ(run(options, ended(cut_tokens(reply, at)), ending), whole) << c["name"] << " cut at " << at;
  }
}

}  // namespace
}  // namespace firesteel
