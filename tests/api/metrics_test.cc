// GET /metrics over HTTP: figures of known traffic, names, format, keys.
#include <charconv>
#include <future>
#include <map>
#include <set>

#include "api_fixture.h"

namespace firesteel::api {
namespace {

constexpr const char* kOff = R"("reasoning_effort":"none")";
constexpr const char* kOffStream = R"("reasoning_effort":"none","stream":true)";
const std::string kModel = "{model_name=\"scripted\"}";

class MetricsTest : public ApiFixture {
 protected:
  http::RawReply get(const std::string& path, const std::string& header = "") const {
    http::RawClient c = client();
    c.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n" + header + "\r\n");
    return c.read_reply();
  }
  std::string text() const { return get("/metrics").body; }
  /// The value of a series, or -1 where there is none.
  static double value(const std::string& text, const std::string& series) {
    const std::string mark = "\n" + series + " ";
    const size_t at = text.find(mark);
    return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + mark.size(), nullptr);
  }
  double now(const std::string& series) const { return value(text(), series); }
  bool reaches(const std::string& series, double wanted) const {
    return eventually([&] { return now(series) == wanted; });
  }
  static ScriptedReply slow_reply() {
    ScriptedReply reply;
    reply.ids = std::vector<int32_t>(4000, ids("x")[0]);
    reply.delay_us = 1000;
    return reply;
  }
};

TEST_F(MetricsTest, FiguresOfKnownReplies) {
  ScriptedReply reply;
  reply.ids = ids("one two three four five<|user|>");
  reply.slices = {1, 2};
  reply.first_delay_us = 60'000;
  play(reply);
  const double tokens = static_cast<double>(reply.ids.size());
  const Got whole = send(chat(kOff)), streamed = send(chat(kOffStream));
  ASSERT_EQ(whole.status, 200);
  ASSERT_EQ(streamed.status, 200);
  const double prompt = whole.usage["prompt_tokens"].get<double>();

  const std::string t = text();
  EXPECT_EQ(value(t, "firesteel_requests_total{key=\"\",status=\"200\"}"), 2) << t;
  EXPECT_EQ(value(t, "firesteel_prompt_tokens_total"), 2 * prompt);
  EXPECT_EQ(value(t, "firesteel_generation_tokens_total"), 2 * tokens);
  EXPECT_EQ(value(t, "firesteel_request_success_total{finished_reason=\"stop\"}"), 2);
  EXPECT_EQ(value(t, "firesteel_request_success_total{finished_reason=\"length\"}"), 0);
  EXPECT_EQ(value(t, "firesteel_generation_tokens_running"), 0);
  EXPECT_EQ(value(t, "firesteel_requests_running"), 0);
  EXPECT_EQ(value(t, "firesteel_requests_running_max"), 4);
  EXPECT_EQ(value(t, "firesteel_request_prompt_tokens_sum"), 2 * prompt);
  EXPECT_EQ(value(t, "firesteel_request_generation_tokens_sum"), 2 * tokens);
  EXPECT_EQ(value(t, "firesteel_inter_token_latency_seconds_count"), 2 * (tokens - 1));
  for (const char* family :
       {"time_to_first_token_seconds", "request_latency_seconds", "request_decode_seconds",
        "request_prefill_seconds", "request_queue_time_seconds"}) {
    EXPECT_EQ(value(t, std::string("firesteel_") + family + "_count"), 2) << family;
  }
  // The engine waits 60 ms before a first token.
  EXPECT_EQ(value(t, "firesteel_time_to_first_token_seconds_bucket{le=\"0.05\"}"), 0);
  EXPECT_GE(value(t, "firesteel_time_to_first_token_seconds_sum"), 0.12);
  EXPECT_GE(value(t, "firesteel_request_latency_seconds_sum"),
            value(t, "firesteel_time_to_first_token_seconds_sum"));
}

TEST_F(MetricsTest, EveryEndHasItsReason) {
  play_text("a longer answer than that");
  EXPECT_EQ(send(chat(R"("reasoning_effort":"none","max_tokens":2)")).finish, "length");
  EXPECT_EQ(send(chat(R"("reasoning_effort":"none","stop":"longer")")).finish, "stop");
  ScriptedReply broken;
  broken.ids = ids("x");
  broken.error = Error{ErrorCode::kInternal, "broke"};
  play(broken);
  EXPECT_EQ(send(chat(kOff)).status, 500);
  play(slow_reply());
  {
    http::RawClient c = client();
    c.send(http_post("/v1/chat/completions", dump_json(chat(kOffStream))));
    ASSERT_FALSE(c.read_until("\"content\":\"x").empty());
    EXPECT_GT(now("firesteel_generation_tokens_running"), 0);
    EXPECT_EQ(now("vllm:num_requests_running" + kModel), 1);
  }
  EXPECT_TRUE(reaches("firesteel_request_success_total{finished_reason=\"abort\"}", 1));
  EXPECT_TRUE(reaches("firesteel_client_disconnections_total", 1));
  const std::string t = text();
  EXPECT_EQ(value(t, "vllm:request_success_total{model_name=\"scripted\",finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(value(t, "vllm:request_success_total{model_name=\"scripted\",finished_reason=\"length\"}"), 1);
  EXPECT_EQ(value(t, "vllm:request_success_total{model_name=\"scripted\",finished_reason=\"error\"}"), 1);
  EXPECT_EQ(value(t, "firesteel_generation_tokens_running"), 0);
  EXPECT_EQ(value(t, "firesteel_request_latency_seconds_count"), 2) << "only replies that are whole have one";
}

TEST_F(MetricsTest, RefusalsByCodeAndStatus) {
  send(chat(R"("temperature":"hot")"));
  send(Json::object());
  get("/v1/nothing");
  const std::string t = text();
  EXPECT_EQ(value(t, "firesteel_refused_total{code=\"invalid_value\"}"), 1) << t;
  EXPECT_EQ(value(t, "firesteel_refused_total{code=\"missing_required_parameter\"}"), 1) << t;
  EXPECT_EQ(value(t, "firesteel_refused_total{code=\"unknown_url\"}"), 1);
  EXPECT_EQ(value(t, "firesteel_requests_total{key=\"\",status=\"400\"}"), 2);
  EXPECT_EQ(value(t, "firesteel_requests_total{key=\"\",status=\"404\"}"), 1);
}

TEST_F(MetricsTest, PollsAreNotCounted) {
  for (const char* path : {"/health", "/v1/health", "/ready", "/metrics", "/v1/metrics"}) get(path);
  EXPECT_EQ(text().find("firesteel_requests_total"), std::string::npos);
  get("/v1/models");
  EXPECT_EQ(now("firesteel_requests_total{key=\"\",status=\"200\"}"), 1);
}

TEST_F(MetricsTest, ToolCalls) {
  EXPECT_EQ(now("firesteel_tool_calls_total{result=\"parsed\"}"), 0);
  play_text("<tool_call>now<arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>");
  Json body = chat(kOff);
  body["tools"] = {
      {{"type", "function"}, {"function", {{"name", "now"}, {"parameters", {{"type", "object"}}}}}}};
  ASSERT_EQ(send(body).calls.size(), 1u);
  EXPECT_EQ(now("firesteel_tool_calls_total{result=\"parsed\"}"), 1);
}

// What a scraper demands of the text, and that both spellings of a family say the same.
TEST_F(MetricsTest, TheTextIsWellFormed) {
  play_text("a b c");
  send(chat(kOff));
  const http::RawReply reply = get("/v1/metrics");
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  std::map<std::string, std::string> types;
  std::map<std::string, double> values;
  std::string family;
  std::map<std::string, double> last_bucket;
  size_t at = 0;
  ASSERT_TRUE(reply.body.ends_with("\n"));
  for (size_t end; (end = reply.body.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = reply.body.substr(at, end - at);
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      const size_t blank = line.find(' ', 7);
      family = line.substr(7, blank - 7);
      ASSERT_TRUE(types.emplace(family, line.substr(blank + 1)).second) << "twice: " << family;
      ASSERT_TRUE(family.starts_with("firesteel_") || family.starts_with("vllm:")) << family;
      continue;
    }
    const size_t blank = line.rfind(' ');
    ASSERT_NE(blank, std::string::npos) << line;
    const std::string series = line.substr(0, blank), name = series.substr(0, series.find('{'));
    const bool histogram = types[family] == "histogram";
    ASSERT_TRUE(name == family || (histogram && (name == family + "_bucket" || name == family + "_sum" ||
                                                 name == family + "_count")))
        << line;
    double v = -1;
    const char* last = line.data() + line.size();
    ASSERT_EQ(std::from_chars(line.data() + blank + 1, last, v).ptr, last) << line;
    ASSERT_TRUE(values.emplace(series, v).second) << "twice: " << series;
    if (name.ends_with("_bucket")) {
      ASSERT_GE(v, last_bucket[name]) << line;
      last_bucket[name] = v;
    }
    if (name == family + "_count" && histogram) {
      ASSERT_EQ(v, last_bucket[family + "_bucket"]) << line;
    }
    if (family.starts_with("vllm:")) {
      ASSERT_NE(series.find("model_name=\"scripted\""), std::string::npos);
    }
  }
  const std::map<std::string, std::string> pairs = {
      {"num_requests_running", "requests_running"},
      {"num_requests_waiting", "requests_waiting"},
      {"prompt_tokens_total", "prompt_tokens_total"},
      {"generation_tokens_total", "generation_tokens_total"},
      {"time_to_first_token_seconds_sum", "time_to_first_token_seconds_sum"},
      {"inter_token_latency_seconds_count", "inter_token_latency_seconds_count"},
      {"request_queue_time_seconds_sum", "request_queue_time_seconds_sum"},
      {"e2e_request_latency_seconds_sum", "request_latency_seconds_sum"},
      {"request_decode_time_seconds_sum", "request_decode_seconds_sum"},
      {"request_prefill_time_seconds_sum", "request_prefill_seconds_sum"},
  };
  for (const auto& [theirs, ours] : pairs) {
    ASSERT_TRUE(values.count("vllm:" + theirs + kModel)) << theirs;
    EXPECT_EQ(values["vllm:" + theirs + kModel], values["firesteel_" + ours]) << theirs;
  }
  EXPECT_EQ(values["vllm:iteration_tokens_total_sum" + kModel],
            values["firesteel_prompt_tokens_total"] + values["firesteel_generation_tokens_total"]);
  EXPECT_TRUE(values.count("firesteel_grammar_fill_seconds_count"));
  // What does not exist here is not reported as zero.
  for (const char* absent : {"mtp_", "spec_decode", "media", "cached", "kv_cache_usage"}) {
    EXPECT_EQ(reply.body.find(absent), std::string::npos) << absent;
  }
}

TEST_F(MetricsTest, BeforeTheModelIsLoaded) {
  start(options(), engine_info(), false);
  EXPECT_EQ(send(chat(kOff)).status, 503);
  const http::RawReply reply = get("/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(value(reply.body, "firesteel_refused_total{code=\"loading\"}"), 1);
  EXPECT_EQ(reply.body.find("requests_running"), std::string::npos);
}

TEST_F(MetricsTest, KeysGuardThemUnlessOpened) {
  ApiOptions o = options();
  o.access.keys = {"alice: secret-1"};
  start(o, engine_info());
  EXPECT_EQ(get("/metrics").status, 401);
  EXPECT_EQ(get("/v1/metrics", "x-api-key: wrong\r\n").status, 401);
  EXPECT_EQ(get("/v1/models", "x-api-key: secret-1\r\n").status, 200);
  EXPECT_EQ(get("/v1/models").status, 401);
  const http::RawReply reply = get("/metrics", "Authorization: Bearer secret-1\r\n");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(value(reply.body, "firesteel_requests_total{key=\"alice\",status=\"200\"}"), 1) << reply.body;
  EXPECT_EQ(value(reply.body, "firesteel_requests_total{key=\"\",status=\"401\"}"), 1) << reply.body;
  EXPECT_EQ(reply.body.find("secret"), std::string::npos);

  o.access.open_metrics = true;
  start(o, engine_info());
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(get("/v1/metrics").status, 200);
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(send(chat(kOff)).status, 401);
}

// Scraping must work best when the server does worst: its only worker hangs in a submission here.
TEST_F(MetricsTest, TheyAnswerWhileEveryWorkerIsBusy) {
  ApiOptions o = options();
  o.http.worker_threads = 1;
  start(o, engine_info());
  std::atomic<bool> entered{false};
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  play([&entered, released](const GenerationRequest&) {
    entered = true;
    released.wait();
    ScriptedReply reply;
    reply.ids = ids("x<|user|>");
    return reply;
  });
  http::RawClient c = client();
  c.send(http_post("/v1/chat/completions", dump_json(chat(kOff))));
  EXPECT_TRUE(eventually([&] { return entered.load(); }));
  EXPECT_EQ(get("/metrics").status, 200);
  release.set_value();
  EXPECT_EQ(read(c).status, 200);
}

}  // namespace
}  // namespace firesteel::api
