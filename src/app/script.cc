#include "app/script.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxDelayMs = 600'000;
constexpr int64_t kMaxSlice = 1 << 20;

/// The ids whose only byte is each of the 256; -1 where the vocabulary has none.
std::array<int32_t, 256> byte_ids(const Tokenizer& tokenizer) {
  std::array<int32_t, 256> out;
  out.fill(-1);
  for (int32_t id = 0; id < tokenizer.id_count(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.size() == 1 && !tokenizer.is_added(id)) out[static_cast<uint8_t>(bytes[0])] = id;
  }
  return out;
}

/// The beginning of a text for a log line.
std::string shown(const std::string& text) {
  constexpr size_t kShown = 200;
  return dump_json(Json(text.substr(0, kShown))) + (text.size() > kShown ? "…" : "");
}

}  // namespace

/// Reads the fields of one line; the first fault is kept.
struct Script::Reader {
  const Tokenizer& tokenizer;
  const std::vector<int32_t>& end_ids;
  const std::array<int32_t, 256>& bytes;
  std::string fault = {};

  void fail(std::string message) {
    if (fault.empty()) fault = std::move(message);
  }

  void text(const Json& value, const std::string& name, std::string* out) {
    if (!value.is_string()) return fail("\"" + name + "\" must be a string");
    *out = value.get<std::string>();
  }
  void milliseconds(const Json& value, const std::string& name, int64_t* out_us) {
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMaxDelayMs)) {
      return fail("\"" + name + "\" must be a number of milliseconds from 0 to " +
                  std::to_string(kMaxDelayMs));
    }
    *out_us = static_cast<int64_t>(value.get<double>() * 1000);
  }
  void slices(const Json& value, std::vector<int32_t>* out) {
    bool good = !value.empty();
    for (const Json& n : value) {
      good = good && n.is_number_integer() && n.get<int64_t>() >= 1 && n.get<int64_t>() <= kMaxSlice;
      if (good) out->push_back(static_cast<int32_t>(n.get<int64_t>()));
    }
    if (!good) fail("a list as \"cut\" must hold numbers of tokens, each at least 1");
  }

  bool is_end(int32_t id) const { return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end(); }

  /// `text` with added tokens read as such.
  std::vector<int32_t> encode(const std::string& text) {
    Result<std::vector<int32_t>> ids = tokenizer.encode(text);
    if (ids.ok()) return std::move(ids).value();
    fail("\"reply\" cannot be tokenized: " + ids.error().message);
    return {};
  }
  /// `ids` with a token for every byte; only those that end a reply stay what they are.
  std::vector<int32_t> one_byte_each(const std::vector<int32_t>& ids) {
    std::vector<int32_t> out;
    for (const int32_t id : ids) {
      if (is_end(id)) {
        out.push_back(id);
        continue;
      }
      for (const char c : tokenizer.token_bytes(id)) {
        const int32_t byte = bytes[static_cast<uint8_t>(c)];
        if (byte < 0)
          fail("\"cut\" cannot be \"byte\": the vocabulary has no token for each byte of \"reply\"");
        out.push_back(byte);
      }
    }
    return out;
  }

  Line read(std::string_view text_line, size_t number) {
    Line line;
    line.number = number;
    const Result<Json> parsed = parse_json(text_line);
    if (!parsed.ok() || !parsed->is_object()) {
      fail(parsed.ok() ? "must be a JSON object" : parsed.error().message);
      return line;
    }
    std::string reply, cut = "token";
    bool has_reply = false, end = true;
    for (const auto& [name, value] : parsed->items()) {
      if (name == "when") {
        text(value, name, &line.when);
      } else if (name == "result") {
        text(value, name, &line.result.emplace());
      } else if (name == "reply") {
        has_reply = true;
        text(value, name, &reply);
      } else if (name == "delay_ms") {
        milliseconds(value, name, &line.reply.delay_us);
      } else if (name == "first_delay_ms") {
        milliseconds(value, name, &line.reply.first_delay_us);
      } else if (name == "end") {
        if (!value.is_boolean()) fail("\"end\" must be true or false");
        end = value.is_boolean() && value.get<bool>();
      } else if (name == "cut" && value.is_array()) {
        slices(value, &line.reply.slices);
      } else if (name == "cut") {
        text(value, name, &cut);
      } else {
        fail("unknown field \"" + name.substr(0, 100) + "\"");
      }
    }
    if (!has_reply) fail("\"reply\" is missing");
    if (cut != "token" && cut != "byte" && cut != "whole") {
      fail("\"cut\" must be \"token\", \"byte\", \"whole\" or a list of numbers of tokens");
    }
    if (!fault.empty()) return line;
    std::vector<int32_t>& ids = line.reply.ids;
    ids = encode(reply);
    if (cut == "byte") ids = one_byte_each(ids);
    if (end && !end_ids.empty()) ids.push_back(end_ids.front());
    if (cut == "whole" && !ids.empty()) line.reply.slices = {static_cast<int32_t>(ids.size())};
    return line;
  }
};

Result<Script> Script::parse(std::string_view text, const std::string& path,
                             std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> end_ids) {
  Script out;
  out.path_ = path;
  for (const char* name : {"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
    if (const int32_t id = tokenizer->added_id(name); id >= 0) out.turns_.push_back(id);
  }
  out.user_ = tokenizer->added_id("<|user|>");
  out.observation_ = tokenizer->added_id("<|observation|>");
  const auto bytes = byte_ids(*tokenizer);
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Reader reader{*tokenizer, end_ids, bytes};
    Line read = reader.read(line, number);
    if (!reader.fault.empty()) {
      return Error{ErrorCode::kInvalidFile, path + ":" + std::to_string(number) + ": " + reader.fault};
    }
    out.lines_.push_back(std::move(read));
  }
  if (out.lines_.empty()) {
    return Error{ErrorCode::kNotFound, path + ": holds no line such as {\"reply\": \"Hello.\"}"};
  }
  out.tokenizer_ = std::move(tokenizer);
  return out;
}

PromptEnd Script::read(const std::vector<int32_t>& prompt) const {
  const auto is_turn = [&](int32_t id) {
    return std::find(turns_.begin(), turns_.end(), id) != turns_.end();
  };
  /// The text of the turn that the token at `at` opens.
  const auto turn_text = [&](std::vector<int32_t>::const_iterator at) {
    return tokenizer_->decode({at + 1, std::find_if(at + 1, prompt.end(), is_turn)});
  };
  PromptEnd out;
  auto user = prompt.end(), result = prompt.end();
  for (auto at = prompt.begin(); at != prompt.end(); ++at) {
    if (*at == user_) {
      user = at;
      result = prompt.end();
    } else if (*at == observation_) {
      result = at;
    }
  }
  out.user = user != prompt.end() ? turn_text(user) : tokenizer_->decode(prompt);
  if (result != prompt.end()) out.result = turn_text(result);
  return out;
}

ScriptedReply Script::reply(const std::vector<int32_t>& prompt) const {
  const PromptEnd end = read(prompt);
  for (const Line& line : lines_) {
    if (end.user.find(line.when) == std::string::npos) continue;
    if (line.result && !(end.result && end.result->find(*line.result) != std::string::npos)) continue;
    LOG_INFO("{}:{} answers a prompt of {} tokens", path_, line.number, prompt.size());
    return line.reply;
  }
  const std::string waits = end.result ? ", tool results " + shown(*end.result) : "";
  LOG_WARN("{}: no line fits the last user text {}{}", path_, shown(end.user), waits);
  ScriptedReply none;
  none.error = Error{ErrorCode::kUnsupported, "no line of the script fits the last user text" +
                                                  std::string(end.result ? " and its tool results" : "")};
  return none;
}

}  // namespace firesteel
