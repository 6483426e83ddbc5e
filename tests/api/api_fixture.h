// A served API over a scripted engine, with the bundled model's tokenizer and template.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../http/raw_client.h"
#include "api/field_reader.h"
#include "api/server.h"
#include "base/json.h"
#include "engine/scripted_engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace firesteel::api {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A reply as a client puts it together, from one body or from a stream's events.
struct Got {
  int status = 0;
  std::string reasoning, content, finish;
  Json stop_reason, usage, error, calls = Json::array();
  std::vector<Json> chunks;
  bool done = false;
  http::RawReply raw;

  bool operator==(const Got& o) const {
    return reasoning == o.reasoning && content == o.content && finish == o.finish &&
           stop_reason == o.stop_reason && usage == o.usage && calls_without_ids() == o.calls_without_ids();
  }
  Json calls_without_ids() const {
    Json out = calls;
    for (Json& c : out) c.erase("id");
    return out;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Got& g) {
  return out << "reasoning: " << g.reasoning << "\ncontent: " << g.content << "\nfinish: " << g.finish << " "
             << g.stop_reason.dump() << "\nusage: " << g.usage.dump()
             << "\ncalls: " << g.calls_without_ids().dump();
}

class ApiFixture : public ::testing::Test {
 protected:
  static const Tokenizer& tokenizer() { return *shared_tokenizer(); }
  static std::shared_ptr<const Tokenizer> shared_tokenizer() {
    static const auto t = [] {
      auto loaded = Tokenizer::load(std::string(FIRESTEEL_SOURCE_DIR) + "/models/demo/tokenizer.json");
      return std::make_shared<const Tokenizer>(std::move(loaded).value());
    }();
    return t;
  }
  static std::shared_ptr<const ChatTemplate> shared_template() {
    static const auto t = [] {
      const std::string path = std::string(FIRESTEEL_SOURCE_DIR) + "/models/demo/chat_template.jinja";
      auto parsed = ChatTemplate::parse(read_file(path), path);
      return std::make_shared<const ChatTemplate>(std::move(parsed).value());
    }();
    return t;
  }

  static ApiOptions options() {
    ApiOptions o;
    o.http.port = 0;
    o.model_id = "scripted";
    o.end_ids = {id("<|endoftext|>"), id("<|user|>"), id("<|observation|>")};
    return o;
  }
  static EngineInfo engine_info() {
    EngineInfo info;
    info.vocab = 4096;
    info.window = 4096;
    info.max_streams = 4;
    info.max_queue = 4;
    return info;
  }

  void SetUp() override { start(options(), engine_info()); }
  void TearDown() override {
    server_.reset();
    engine_.reset();
  }

  void start(ApiOptions o, EngineInfo info, bool attach = true) {
    server_.reset();
    engine_.reset();
    engine_ = std::make_unique<ScriptedEngine>(info, [this](const GenerationRequest& request) {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
      return script_(request);
    });
    auto started = ApiServer::start(std::move(o), {shared_tokenizer(), shared_template()});
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(started).value();
    if (attach) server_->attach_engine(*engine_);
  }

  void play(std::function<ScriptedReply(const GenerationRequest&)> script) {
    std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void play(ScriptedReply reply) {
    play([reply](const GenerationRequest&) { return reply; });
  }
  /// Every request is answered with `text`, added tokens read as such, then the end token.
  void play_text(const std::string& text) {
    ScriptedReply reply;
    reply.ids = ids(text + "<|user|>");
    play(reply);
  }

  static int32_t id(const std::string& spelling) { return tokenizer().added_id(spelling); }
  static std::vector<int32_t> ids(const std::string& text) { return tokenizer().encode(text).value(); }
  /// Ids of text in which no added token is meant.
  static std::vector<int32_t> plain_ids(const std::string& text) {
    return tokenizer().encode(MarkedText::from_caller(text)).value();
  }
  /// `text` as ids that cut it at random bytes; the think markers stay tokens of their own.
  static std::vector<int32_t> cut_ids(const std::string& text, std::mt19937& rng) {
    std::vector<int32_t> out;
    size_t at = 0;
    while (at < text.size()) {
      if (text.compare(at, 8, "</think>") == 0) {
        out.push_back(id("</think>"));
        at += 8;
        continue;
      }
      size_t n = std::min<size_t>(1 + rng() % 9, text.size() - at);
      const size_t marker = text.find("</think>", at);
      if (marker != std::string::npos) n = std::min(n, marker - at);
      const std::vector<int32_t> piece = plain_ids(text.substr(at, n));
      out.insert(out.end(), piece.begin(), piece.end());
      at += n;
    }
    return out;
  }

  static std::string http_post(const std::string& path, const std::string& body) {
    return "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  static std::string http_get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n";
  }
  http::RawClient client() const { return http::RawClient(server_->port()); }

  static Json chat(const std::string& extra = "", const std::string& text = "hi") {
    Json body = Json::parse("{" + extra + "}");
    body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
    return body;
  }

  Got send(const Json& body, const std::string& path = "/v1/chat/completions") const {
    http::RawClient c(server_->port());
    c.send(http_post(path, dump_json(body)));
    return read(c);
  }

  static Got read(http::RawClient& c) {
    Got got;
    got.raw = c.read_reply();
    got.status = got.raw.status;
    if (got.raw.headers["content-type"] == "text/event-stream") {
      read_events(got.raw.body, &got);
    } else {
      read_whole(got.raw.body, &got);
    }
    return got;
  }

  static void read_whole(const std::string& text, Got* got) {
    const Json body = Json::parse(text, nullptr, false);
    if (body.is_discarded()) return;
    if (body.contains("error")) got->error = body["error"];
    if (!body.contains("choices")) return;
    const Json& choice = body["choices"][0];
    got->reasoning = choice["message"].value("reasoning_content", "");
    if (choice["message"]["content"].is_string())
      got->content = choice["message"]["content"].get<std::string>();
    if (choice["message"].contains("tool_calls")) got->calls = choice["message"]["tool_calls"];
    got->finish = choice["finish_reason"].get<std::string>();
    got->stop_reason = choice["stop_reason"];
    got->usage = body["usage"];
    got->chunks = {body};
    got->done = true;
  }

  static void read_events(const std::string& text, Got* got) {
    size_t at = 0;
    for (size_t end; (end = text.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string event = text.substr(at, end - at);
      if (event.starts_with(":")) continue;
      ASSERT_TRUE(event.starts_with("data: ")) << event;
      ASSERT_FALSE(got->done) << "after [DONE]: " << event;
      if (event == "data: [DONE]") {
        got->done = true;
        continue;
      }
      const Json chunk = Json::parse(event.substr(6));
      if (chunk.contains("error")) {
        got->error = chunk["error"];
        continue;
      }
      got->chunks.push_back(chunk);
      if (chunk.contains("usage") && !chunk["usage"].is_null()) got->usage = chunk["usage"];
      for (const Json& choice : chunk["choices"]) {
        const Json& delta = choice["delta"];
        ASSERT_FALSE(delta.contains("content") && delta.contains("reasoning_content"));
        got->reasoning += delta.value("reasoning_content", "");
        got->content += delta.value("content", "");
        if (delta.contains("tool_calls")) {
          for (Json call : delta["tool_calls"]) {
            if (!call.contains("id")) {  // more arguments of the call that is being written
              ASSERT_EQ(call["index"], got->calls.size() - 1);
              std::string& arguments = got->calls.back()["function"]["arguments"].get_ref<std::string&>();
              arguments += call["function"]["arguments"].get<std::string>();
              continue;
            }
            ASSERT_EQ(call["index"], got->calls.size());
            call.erase("index");
            got->calls.push_back(call);
          }
        }
        if (!choice["finish_reason"].is_null()) {
          ASSERT_TRUE(got->finish.empty()) << "two finish chunks";
          got->finish = choice["finish_reason"].get<std::string>();
          got->stop_reason = choice["stop_reason"];
        }
      }
    }
    ASSERT_EQ(at, text.size()) << text.substr(at);
  }

  std::mutex mutex_;
  std::vector<GenerationRequest> requests_;
  std::function<ScriptedReply(const GenerationRequest&)> script_;
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace firesteel::api
