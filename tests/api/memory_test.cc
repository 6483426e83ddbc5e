// A conversation that comes back reads as the model wrote it, whatever its client kept of it.
#include "api/reply_memory.h"

#include "api_fixture.h"

namespace firesteel::api {
namespace {

const char* const kTool =
    R"({"type":"function","function":{"name":"set","parameters":{"type":"object","properties":{
        "on":{"type":"boolean"},"room":{"type":"string"},"n":{"type":"integer"}}}}})";

class MemoryTest : public ApiFixture {
 protected:
  static Json first_request(const std::string& user = "light, please") {
    Json body = Json::parse(std::string(R"({"max_tokens":200,"tools":[)") + kTool + "]}");
    body["messages"] = Json::parse(R"([{"role":"system","content":"Be kind."}])");
    body["messages"].push_back({{"role", "user"}, {"content", user}});
    return body;
  }
  /// The next request of a client that keeps of the reply what `turn` says.
  static Json second_request(const Json& first, Json turn, const std::string& id) {
    Json body = first;
    body["messages"].push_back(std::move(turn));
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "done"}});
    return body;
  }
  std::vector<int32_t> prompt(size_t i) {
    std::lock_guard lock(mutex_);
    return requests_[i].prompt;
  }
  /// Whether request 1's prompt goes on with what was decoded for request 0.
  bool continues(const std::string& reply) {
    std::vector<int32_t> before = prompt(0);
    const std::vector<int32_t> decoded = ids(reply), after = prompt(1);
    before.insert(before.end(), decoded.begin(), decoded.end());
    return after.size() > before.size() && std::equal(before.begin(), before.end(), after.begin());
  }
  Got ask_first(const std::string& reply) {
    play_text(reply);
    const Got got = send(first_request());
    EXPECT_EQ(got.calls.size(), 1u) << got.raw.body;
    return got;
  }
};

// Repaired for the client: True became true, 3.0 became 3, the quoted boolean lost its quotes.
const char* const kReply =
    "the hall it is</think><tool_call>set<arg_key>room</arg_key><arg_value>hall</arg_value><arg_key>on</arg_key>"
    "<arg_value>True</arg_value><arg_key>n</arg_key><arg_value>3.0</arg_value></tool_call>";

TEST_F(MemoryTest, ReasoningAndMarkupComeBackByTheCallsId) {
  const Got got = ask_first(kReply);
  EXPECT_EQ(Json::parse(got.calls[0]["function"]["arguments"].get<std::string>())["on"], true);
  const Json turn = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", got.calls}};
  send(second_request(first_request(), turn, got.calls[0]["id"]));
  EXPECT_TRUE(continues(kReply));
}

TEST_F(MemoryTest, AndByTheWholeConversationWhereIdsWereRenumbered) {
  const Got got = ask_first(kReply);
  Json calls = got.calls;
  calls[0]["id"] = "call_1_0";
  Json reordered = Json::parse(calls[0]["function"]["arguments"].get<std::string>());
  calls[0]["function"]["arguments"] =
      "{ \"n\": 3, \"on\": true, \"room\": " + reordered["room"].dump() + " }";
  const Json turn = {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}};
  send(second_request(first_request(), turn, "call_1_0"));
  EXPECT_TRUE(continues(kReply));
}

TEST_F(MemoryTest, OtherRoutesRememberAndRestoreToo) {
  play_text(kReply);
  const Json body = Json::parse(
      R"({"model":"m","max_tokens":200,"thinking":{"type":"adaptive"},"tools":[{"name":"set","input_schema":
          {"type":"object","properties":{"on":{"type":"boolean"},"room":{"type":"string"},"n":{"type":"integer"}}}}],
          "messages":[{"role":"user","content":"light, please"}]})");
  http::RawClient c(server_->port());
  c.send(http_post("/v1/messages", dump_json(body)));
  const Json reply = Json::parse(c.read_reply().body);
  Json next = body;
  Json blocks = Json::array();
  for (const Json& block : reply["content"])
    if (block["type"] != "thinking") blocks.push_back(block);
  ASSERT_EQ(blocks.size(), 1u);
  next["messages"].push_back({{"role", "assistant"}, {"content", blocks}});
  next["messages"].push_back(
      {{"role", "user"},
       {"content", Json::array({{{"type", "tool_result"}, {"tool_use_id", blocks[0]["id"]}, {"content", "done"}}})}});
  c.send(http_post("/v1/messages", dump_json(next)));
  EXPECT_EQ(c.read_reply().status, 200);
  EXPECT_TRUE(continues(kReply));
}

TEST_F(MemoryTest, AClientsOwnReasoningWins) {
  const Got got = ask_first(kReply);
  const Json turn = {
      {"role", "assistant"}, {"content", nullptr}, {"reasoning_content", "mine"}, {"tool_calls", got.calls}};
  send(second_request(first_request(), turn, got.calls[0]["id"]));
  EXPECT_FALSE(continues(kReply));
  const std::string text = tokenizer().decode(prompt(1));
  EXPECT_NE(text.find("<think>mine</think>"), std::string::npos);
  EXPECT_NE(text.find("<arg_value>True</arg_value>"), std::string::npos);
}

TEST_F(MemoryTest, AnotherConversationGetsNothing) {
  const Got got = ask_first(kReply);
  Json calls = got.calls;
  calls[0]["id"] = "call_1_0";
  const Json turn = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}};
  send(second_request(first_request("another wish"), turn, "call_1_0"));
  const std::string text = tokenizer().decode(prompt(1));
  EXPECT_EQ(text.find("the hall it is"), std::string::npos);
  EXPECT_NE(text.find("<arg_value>true</arg_value>"), std::string::npos);
}

TEST_F(MemoryTest, ChangedCallsAreShownAsTheyAre) {
  const Got got = ask_first(kReply);
  Json calls = got.calls;
  calls[0]["function"]["arguments"] = R"({"room":"attic"})";
  const Json turn = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}};
  send(second_request(first_request(), turn, calls[0]["id"]));
  const std::string text = tokenizer().decode(prompt(1));
  EXPECT_NE(text.find("attic"), std::string::npos);
  EXPECT_EQ(text.find("<arg_value>True"), std::string::npos);
}

TEST_F(MemoryTest, CanBeSwitchedOff) {
  ApiOptions o = options();
  o.remember_replies = false;
  start(o, engine_info());
  const Got got = ask_first(kReply);
  const Json turn = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", got.calls}};
  send(second_request(first_request(), turn, got.calls[0]["id"]));
  EXPECT_FALSE(continues(kReply));
}

// ------------------------------------------------------------------------------------- the store alone

Conversation conversation_of(const std::string& user, const std::string& id = "") {
  Conversation c;
  c.messages.push_back({{"role", "user"}, {"content", user}});
  if (!id.empty())
    c.messages.push_back(
        {{"role", "assistant"},
         {"content", ""},
         {"tool_calls",
          Json::array({{{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", Json::object()}}}}})}});
  return c;
}

std::string reasoning_of(ReplyMemory& memory, const std::string& user, const std::string& id) {
  Conversation c = conversation_of(user, id);
  memory.restore(&c);
  return c.messages[1].value("reasoning_content", "");
}

void put(ReplyMemory& memory, const std::string& user, const std::string& id, const std::string& reasoning) {
  Conversation c = conversation_of(user);
  memory.remember(memory.restore(&c), reasoning, {{id, "f", "{}", "<tool_call>f</tool_call>"}});
}

TEST(ReplyMemory, KeepsTheNewestWithinItsLimits) {
  ReplyMemory few(3);
  for (int i = 0; i < 5; ++i) put(few, "user " + std::to_string(i), "id" + std::to_string(i), "r" + std::to_string(i));
  EXPECT_EQ(few.replies(), 3u);
  EXPECT_EQ(reasoning_of(few, "user 1", "id1"), "");
  EXPECT_EQ(reasoning_of(few, "user 2", "id2"), "r2");
  put(few, "user 5", "id5", "r5");  // drops 3, since 2 was just used
  EXPECT_EQ(reasoning_of(few, "user 2", "other"), "r2");
  EXPECT_EQ(reasoning_of(few, "user 3", "id3"), "");
  ReplyMemory small(100, 4000);
  for (int i = 0; i < 10; ++i) put(small, "user " + std::to_string(i), "id", std::string(1000, 'r'));
  EXPECT_LE(small.replies(), 3u);
  EXPECT_GE(small.replies(), 1u);
  put(small, "too much", "id", std::string(5000, 'r'));
  EXPECT_EQ(reasoning_of(small, "too much", "x"), "");
}

TEST(ReplyMemory, TheSameReplyAgainTakesItsPlace) {
  ReplyMemory memory;
  put(memory, "u", "a", "first");
  put(memory, "u", "b", "second");
  EXPECT_EQ(memory.replies(), 1u);
  EXPECT_EQ(reasoning_of(memory, "u", "a"), "second") << "by its text";
  EXPECT_EQ(reasoning_of(memory, "v", "b"), "second") << "by its id";
  EXPECT_EQ(reasoning_of(memory, "v", "a"), "");
}

TEST(ReplyMemory, ManyThreads) {
  ReplyMemory memory(20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string user = "u" + std::to_string((i * 7 + t) % 40);
        if (i % 2 == 0) put(memory, user, user + "-" + std::to_string(t), user);
        const std::string got = reasoning_of(memory, user, "x");
        EXPECT_TRUE(got.empty() || got == user) << got;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_LE(memory.replies(), 20u);
}

}  // namespace
}  // namespace firesteel::api
