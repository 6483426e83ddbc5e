// Reads a Responses stream as a strict client would.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/field_reader.h"

namespace firesteel::api {

/// A response as a client has it in the end.
struct Reply {
  int status = 0;
  Json error;     // of a refusal
  Json response;  // the final object
  std::vector<Json> events;
  std::string raw;
};

/// Checks a stream against the order and fields of spec/api.md 12.3, and the final
/// object against what the events said.
class StreamReader {
 public:
  static void read(const std::string& text, Reply* out) {
    StreamReader r(out);
    size_t at = 0;
    for (size_t end; (end = text.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string block = text.substr(at, end - at);
      if (!block.starts_with(":")) r.event(block);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(at, text.size()) << "bytes behind the last event: " << text.substr(at);
    ASSERT_TRUE(r.ended_) << text;
  }

 private:
  explicit StreamReader(Reply* out) : out_(out) {}

  void event(const std::string& block) {
    ASSERT_FALSE(ended_) << "after the last event: " << block;
    const size_t line = block.find('\n');
    ASSERT_TRUE(block.starts_with("event: ") && line != std::string::npos) << block;
    ASSERT_EQ(block.substr(line + 1, 6), "data: ") << block;
    ASSERT_EQ(block.find('\n', line + 1), std::string::npos) << block;
    const Json e = Json::parse(block.substr(line + 7));
    const std::string type = block.substr(7, line - 7);
    ASSERT_EQ(e["type"], type);
    ASSERT_EQ(e["sequence_number"], out_->events.size());
    out_->events.push_back(e);
    if (out_->events.size() == 1) return begin(e, "response.created");
    if (out_->events.size() == 2) return begin(e, "response.in_progress");
    if (type == "error") {
      failed_ = true;
      return;
    }
    ASSERT_TRUE(!failed_ || type == "response.failed") << type << " behind the error";
    if (type == "response.output_item.added") return added(e);
    if (type == "response.output_item.done") return done(e);
    if (e.contains("response")) return finish(e, type);
    in_item(e, type);
  }

  void begin(const Json& e, const std::string& type) {
    ASSERT_EQ(e["type"], type);
    ASSERT_EQ(e["response"]["status"], "in_progress");
    ASSERT_EQ(e["response"]["output"], Json::array());
    ASSERT_TRUE(e["response"]["usage"].is_null());
    id_ = e["response"]["id"].get<std::string>();
  }
  void added(const Json& e) {
    ASSERT_TRUE(item_.is_null()) << "an item is open";
    ASSERT_EQ(e["output_index"], items_.size());
    item_ = e["item"];
    ASSERT_EQ(item_["status"], "in_progress");
    text_.clear();
    step_ = 0;
  }
  // Steps of an item: 0 added, 1 part added, 2 deltas, 3 text done, 4 part done.
  void in_item(const Json& e, const std::string& type) {
    ASSERT_FALSE(item_.is_null()) << type << " outside an item";
    ASSERT_EQ(e["item_id"], item_["id"]);
    ASSERT_EQ(e["output_index"], items_.size());
    const bool message = item_["type"] == "message", reasoning = item_["type"] == "reasoning";
    const bool parts = message || reasoning;
    ASSERT_EQ(e.contains("content_index"), parts);
    const std::string stem = message                            ? "response.output_text"
                             : reasoning                        ? "response.reasoning_text"
                             : item_["type"] == "function_call" ? "response.function_call_arguments"
                                                                : "response.custom_tool_call_input";
    const char* whole = parts ? "text" : item_["type"] == "function_call" ? "arguments" : "input";
    if (parts) {
      ASSERT_EQ(e["content_index"], 0);
    }
    if (message && type.starts_with(stem)) {
      ASSERT_EQ(e["logprobs"], Json::array());
    }
    if (type == "response.content_part.added") {
      ASSERT_TRUE(parts && step_ == 0);
      ASSERT_EQ(e["part"]["text"], "");
      step_ = 1;
    } else if (type == stem + ".delta") {
      ASSERT_TRUE(step_ == (parts ? 1 : 0) || step_ == 2) << step_;
      text_ += e["delta"].get<std::string>();
      step_ = 2;
    } else if (type == stem + ".done") {
      ASSERT_EQ(step_, 2);
      ASSERT_EQ(e[whole], text_);
      if (item_["type"] == "function_call") {
        ASSERT_EQ(e["name"], item_["name"]);
      }
      step_ = 3;
    } else if (type == "response.content_part.done") {
      ASSERT_TRUE(parts && step_ == 3);
      ASSERT_EQ(e["part"]["text"], text_);
      part_ = e["part"];
      step_ = 4;
    } else {
      FAIL() << "unexpected " << type;
    }
  }
  void done(const Json& e) {
    ASSERT_FALSE(item_.is_null());
    ASSERT_EQ(e["output_index"], items_.size());
    const Json& item = e["item"];
    for (const char* same : {"id", "type", "call_id", "name", "role"}) {
      ASSERT_EQ(item.contains(same), item_.contains(same));
      if (item.contains(same)) {
        ASSERT_EQ(item[same], item_[same]) << same;
      }
    }
    if (item.contains("content")) {
      ASSERT_EQ(step_, 4);
      ASSERT_EQ(item["content"], Json::array({part_}));
    } else {
      ASSERT_EQ(step_, 3);
      ASSERT_EQ(item[item["type"] == "function_call" ? "arguments" : "input"], text_);
    }
    items_.push_back(item);
    item_ = Json();
  }
  void finish(const Json& e, const std::string& type) {
    ASSERT_TRUE(item_.is_null()) << "an item is open at the end";
    out_->response = e["response"];
    ASSERT_EQ("response." + out_->response["status"].get<std::string>(), type);
    ASSERT_EQ(out_->response["id"], id_);
    ASSERT_EQ(out_->response["output"], items_);
    ended_ = true;
  }

  Reply* const out_;
  std::string id_, text_;
  Json item_, part_, items_ = Json::array();
  int step_ = 0;
  bool ended_ = false, failed_ = false;
};

}  // namespace firesteel::api
