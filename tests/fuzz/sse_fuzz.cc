// The streams of all four routes from any row of pieces: read back by the reader of event streams, however
// the bytes arrive, every event is JSON of its route's shape, and joined they give what went in, which is
// also what the whole reply says.
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "api/chat_writer.h"
#include "api/completion_writer.h"
#include "api/messages_writer.h"
#include "api/responses_writer.h"
#include "base/json.h"
#include "choices.h"
#include "http/event_reader.h"
#include "text/utf8.h"

namespace {

using namespace firesteel;
using namespace firesteel::fuzz;
using namespace firesteel::api;
using Json = nlohmann::ordered_json;
using Event = http::EventReader::Event;

/// Keeps what a writer hands over.
class Recorder final : public http::Exchange {
 public:
  std::string out;
  int opened = 0, closed = 0, responses = 0;

  const http::RequestHead& head() const override { return head_; }
  const std::string& body() const override { return body_; }
  void drop_body() override {}
  void add_header(std::string, std::string) override {}
  void respond(http::Response response) override {
    ++responses;
    out = std::move(response.body);
  }
  void open_stream(http::Headers, std::string) override { ++opened; }
  void write(std::string bytes) override {
    require(opened == 1 && closed == 0);
    out += bytes;
  }
  void close_stream() override { ++closed; }
  size_t pending_bytes() const override { return 0; }
  bool congested() const override { return false; }
  void on_drained(std::function<void()>) override {}
  bool gone() const override { return false; }
  void on_gone(std::function<void()>) override {}
  void post_at(std::chrono::steady_clock::time_point, std::function<void()> f) override { f(); }
  void post(std::function<void()> f) override { f(); }
  std::shared_ptr<http::Waker> make_waker(std::function<void()>) override { return nullptr; }

 private:
  http::RequestHead head_;
  std::string body_;
};

enum class Route { kChat, kCompletion, kResponses, kMessages };

struct Settings {
  Route route = Route::kChat;
  int choices = 1;
  StreamUsage usage = StreamUsage::kOnFinish;
  bool continuous = false;
};

std::unique_ptr<ReplyWriter> make_writer(std::shared_ptr<http::Exchange> exchange, const Settings& s,
                                         bool stream) {
  switch (s.route) {
    case Route::kChat: {
      ChatReplyOptions options;
      options.model = "m\"\n";
      options.choices = s.choices;
      options.stream = stream;
      options.stream_usage = s.usage;
      options.continuous_usage = s.continuous;
      return make_chat_writer(std::move(exchange), std::move(options));
    }
    case Route::kCompletion: {
      CompletionReplyOptions options;
      options.model = "m";
      options.choices = s.choices;
      options.stream = stream;
      options.stream_usage = s.usage;
      options.continuous_usage = s.continuous;
      return make_completion_writer(std::move(exchange), std::move(options));
    }
    case Route::kResponses: {
      ResponsesReplyOptions options;
      options.model = "m";
      options.stream = stream;
      options.settings = "\"tools\":[]";
      options.custom = {"custom"};
      return make_responses_writer(std::move(exchange), std::move(options));
    }
    case Route::kMessages: {
      MessagesReplyOptions options;
      options.model = "m";
      options.stream = stream;
      options.prompt_tokens = 7;
      return make_messages_writer(std::move(exchange), std::move(options));
    }
  }
  return nullptr;
}

/// One choice's reply, joined.
struct Sum {
  std::string reasoning, content, calls, finish;
  bool operator==(const Sum&) const = default;
  void call(const Json& name, const Json& arguments) {
    calls += name.get<std::string>() + "(" + arguments.get<std::string>() + ")";
  }
  /// More arguments of the latest call.
  void more(const Json& arguments) {
    require(!calls.empty());
    calls.pop_back();
    calls += arguments.get<std::string>() + ")";
  }
};

struct Step {
  enum class Kind { kReasoning, kContent, kCall, kHeartbeat, kFlush } kind;
  int choice = 0;
  std::string text;
};

std::vector<Step> compose(Choices& in, const Settings& s) {
  std::vector<Step> steps;
  for (uint32_t n = 1 + in.below(7); n > 0; --n) {
    Step step{static_cast<Step::Kind>(in.below(5)),
              static_cast<int>(in.below(static_cast<uint32_t>(s.choices))), ""};
    std::string bytes;
    for (uint32_t size = 1 + in.below(12); bytes.size() < size;) bytes += static_cast<char>(in.next());
    step.text = utf8_lossy(bytes);
    steps.push_back(std::move(step));
  }
  return steps;
}

void perform(const std::vector<Step>& steps, const Settings& s, ReplyEnd end, bool fails, ReplyWriter* writer,
             std::vector<Sum>* expected) {
  writer->begin();
  for (const Step& step : steps) {
    Sum* sum = expected == nullptr ? nullptr : &(*expected)[static_cast<size_t>(step.choice)];
    switch (step.kind) {
      case Step::Kind::kReasoning:
        writer->reasoning(step.choice, step.text);
        if (sum) (s.route == Route::kCompletion ? sum->content : sum->reasoning) += step.text;
        break;
      case Step::Kind::kContent:
        writer->content(step.choice, step.text);
        if (sum) sum->content += step.text;
        break;
      case Step::Kind::kCall: {
        std::string arguments = "{\"k\":";
        append_json_string(step.text, false, &arguments);
        arguments += "}";
        const std::string name = step.text.size() % 2 ? "custom" : "f";
        if (s.route == Route::kChat && expected != nullptr && step.text.size() % 3 == 0) {
          writer->call_begun(step.choice, "call_1", name);
          writer->call_arguments(step.choice, arguments.substr(0, 5));
          writer->call_arguments(step.choice, arguments.substr(5));
        } else {
          writer->call(step.choice, {"call_1", name, arguments});
        }
        if (!sum || s.route == Route::kCompletion) break;
        const bool as_text = name == "custom" && s.route == Route::kResponses;
        sum->call(name, as_text ? step.text : arguments);
        break;
      }
      case Step::Kind::kHeartbeat:
        writer->heartbeat(step.choice);
        break;
      case Step::Kind::kFlush:
        writer->flush({7, 3, 2, 1});
        break;
    }
  }
  if (fails) return writer->fail({500, "server_error", "internal_error", "", "broke \"here\"\n"});
  for (int i = 0; i < s.choices; ++i) {
    ChoiceEnd out;
    out.end = end;
    if (end == ReplyEnd::kStop && i == 0) out.stop_string = "\n\"";
    writer->end_choice(i, out);
    if (expected != nullptr) (*expected)[static_cast<size_t>(i)].finish = finish_reason_name(end);
  }
  writer->end({7, 3, 9, 1}, {});
}

const Json& at(const Json& object, const char* key) {
  const auto it = object.find(key);
  require(it != object.end());
  return *it;
}

void add_chat(const Json& choice, const Json& message, bool completion, Sum* sum) {
  const auto text = [&](const Json& from, const char* key) {
    return from.contains(key) && from[key].is_string() ? from[key].get<std::string>() : std::string();
  };
  sum->content += text(message, completion ? "text" : "content");
  sum->reasoning += text(message, "reasoning_content");
  if (message.contains("tool_calls"))
    for (const Json& call : message["tool_calls"]) {
      if (call.contains("id")) {
        sum->call(call["function"]["name"], call["function"]["arguments"]);
      } else {
        sum->more(call["function"]["arguments"]);
      }
    }
  sum->finish += text(choice, "finish_reason");
}

void read_chat(const std::vector<Event>& events, const Settings& s, bool fails, std::vector<Sum>* sums) {
  require(!events.empty() && events.back().data == "[DONE]");
  bool usage_chunk = false;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = parse_json(events[i].data).value();
    if (event.contains("error")) {
      require(fails && i + 2 == events.size());
      continue;
    }
    require(!usage_chunk);
    const Json& choices = at(event, "choices");
    usage_chunk = choices.empty();
    for (const Json& choice : choices) {
      const bool completion = s.route == Route::kCompletion;
      const size_t index = choice["index"].get<size_t>();
      require(index < sums->size());
      require((*sums)[index].finish.empty());
      add_chat(choice, completion ? choice : at(choice, "delta"), completion, &(*sums)[index]);
    }
    if (s.usage == StreamUsage::kNone) require(!event.contains("usage"));
  }
  require(usage_chunk == (s.usage == StreamUsage::kOwnChunk && !fails));
}

void add_item(const Json& item, Sum* sum) {
  const std::string type = item["type"];
  if (type == "function_call") sum->call(item["name"], item["arguments"]);
  if (type == "custom_tool_call") sum->call(item["name"], item["input"]);
  if (type == "reasoning") sum->reasoning += item["content"][0]["text"].get<std::string>();
  if (type == "message") sum->content += item["content"][0]["text"].get<std::string>();
}

void read_responses(const std::vector<Event>& events, bool fails, Sum* sum) {
  Sum of_items;
  std::string open;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = parse_json(events[i].data).value();
    require(at(event, "type") == events[i].name && at(event, "sequence_number") == i);
    const std::string& type = events[i].name;
    if (type == "response.output_item.added") {
      require(open.empty());
      open = event["item"]["id"];
    } else if (type == "response.output_item.done") {
      require(event["item"]["id"] == open);
      open.clear();
      add_item(event["item"], &of_items);
    } else if (type == "response.output_text.delta") {
      require(event["item_id"] == open);
      sum->content += event["delta"].get<std::string>();
    } else if (type == "response.reasoning_text.delta") {
      sum->reasoning += event["delta"].get<std::string>();
    }
  }
  require(open.empty() && events.size() >= 3 && events[0].name == "response.created");
  const Json last = parse_json(events.back().data).value()["response"];
  Sum whole;
  for (const Json& item : last["output"]) add_item(item, &whole);
  require(whole == of_items && whole.content == sum->content && whole.reasoning == sum->reasoning);
  require(!fails || events.back().name == "response.failed");
  sum->calls = whole.calls;
}

void read_messages(const std::vector<Event>& events, bool fails, Sum* sum) {
  int64_t index = 0;
  bool open = false, call = false;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = parse_json(events[i].data).value();
    const std::string& type = events[i].name;
    require(at(event, "type") == type);
    require((type == "message_start") == (i == 0));
    if (type == "content_block_start") {
      require(!open && event["index"] == index);
      open = true;
      const Json& block = event["content_block"];
      call = block["type"] == "tool_use";
      if (call) sum->calls += block["name"].get<std::string>() + "(";
    } else if (type == "content_block_stop") {
      require(open && event["index"] == index++);
      open = false;
      if (call) sum->calls += ")";
    } else if (type == "content_block_delta") {
      require(open && event["index"] == index);
      const Json& delta = event["delta"];
      if (delta.contains("text")) sum->content += delta["text"].get<std::string>();
      if (delta.contains("thinking")) sum->reasoning += delta["thinking"].get<std::string>();
      if (delta.contains("partial_json")) sum->calls += delta["partial_json"].get<std::string>();
    }
  }
  require(!events.empty() && events.back().name == (fails ? "error" : "message_stop"));
  require(fails || !open);
}

std::vector<Sum> read_whole(const std::string& body, const Settings& s) {
  const Json reply = parse_json(body).value();
  std::vector<Sum> sums(static_cast<size_t>(s.choices));
  if (s.route == Route::kResponses) {
    for (const Json& item : reply["output"]) add_item(item, &sums[0]);
  } else if (s.route == Route::kMessages) {
    for (const Json& block : reply["content"]) {
      if (block["type"] == "text") sums[0].content += block["text"].get<std::string>();
      if (block["type"] == "thinking") sums[0].reasoning += block["thinking"].get<std::string>();
      if (block["type"] == "tool_use") sums[0].call(block["name"], dump_json(block["input"]));
    }
  } else {
    const bool completion = s.route == Route::kCompletion;
    for (const Json& choice : reply["choices"])
      add_chat(choice, completion ? choice : choice["message"], completion,
               &sums[choice["index"].get<size_t>()]);
  }
  return sums;
}

/// With finish reasons where the route's joined form has them.
void require_same(std::vector<Sum> expected, const std::vector<Sum>& got, const Settings& s) {
  if (s.route == Route::kResponses || s.route == Route::kMessages) expected[0].finish.clear();
  require(expected == got);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices in(data, size);
  const uint8_t how = in.next();
  Settings s;
  s.route = static_cast<Route>(how % 4);
  s.usage = static_cast<StreamUsage>((how >> 2) % 3);
  s.continuous = how & 32;
  const bool fails = how & 64, also_whole = how & 128;
  if (s.route == Route::kChat || s.route == Route::kCompletion) s.choices = 1 + static_cast<int>(in.below(3));
  const auto end = static_cast<ReplyEnd>(in.below(3));
  uint32_t pace = in.next();
  const std::vector<Step> steps = compose(in, s);

  std::vector<Sum> expected(static_cast<size_t>(s.choices));
  const auto stream = std::make_shared<Recorder>();
  perform(steps, s, end, fails, make_writer(stream, s, true).get(), &expected);
  require(stream->opened == 1 && stream->closed == 1 && stream->responses == 0);

  std::vector<Event> events;
  http::EventReader reader([&](const Event& event) { events.push_back(event); });
  for (size_t sent = 0; sent < stream->out.size();) {
    const size_t n = pace == 0 ? stream->out.size() : 1 + (pace = pace * 1664525u + 1013904223u) % 97;
    require(reader.push(std::string_view(stream->out).substr(sent, n)));
    sent += n;
  }
  std::vector<Sum> joined(expected.size());
  if (s.route == Route::kResponses) {
    read_responses(events, fails, &joined[0]);
  } else if (s.route == Route::kMessages) {
    read_messages(events, fails, &joined[0]);
  } else {
    read_chat(events, s, fails, &joined);
  }
  require_same(expected, joined, s);

  if (!also_whole || fails) return 0;
  const auto whole = std::make_shared<Recorder>();
  perform(steps, s, end, false, make_writer(whole, s, false).get(), nullptr);
  require(whole->responses == 1 && whole->opened == 0);
  require_same(expected, read_whole(whole->out, s), s);
  return 0;
}
