// Helpers of the reply tests: a reply as tokens in many slicings, and what a stream made of it.
#pragma once

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/reply_stream.h"

namespace firesteel::reply_test {

inline const Tokenizer& demo() {
  static const Tokenizer tokenizer =
      Tokenizer::load(FIRESTEEL_SOURCE_DIR "/models/demo/tokenizer.json").value();
  return tokenizer;
}

/// The reply as the model would write it: added tokens as themselves.
inline std::vector<int32_t> natural_tokens(const std::string& text) { return demo().encode(text).value(); }

/// One token a byte, so that every border is cut.
inline std::vector<int32_t> byte_tokens(const std::string& text) {
  std::vector<int32_t> ids;
  for (char c : text)
    ids.push_back(demo().encode(MarkedText::from_caller(std::string_view(&c, 1))).value()[0]);
  return ids;
}

/// The reply cut at `at`; both halves tokenized on their own.
inline std::vector<int32_t> cut_tokens(const std::string& text, size_t at) {
  std::vector<int32_t> ids = natural_tokens(text.substr(0, at));
  for (int32_t id : natural_tokens(text.substr(at))) ids.push_back(id);
  return ids;
}

struct Outcome {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::vector<size_t> call_at;  // bytes of content before each call
  std::optional<std::string> stop;
  std::string finish_reason;
  int64_t reasoning_tokens = 0;
  int begun = 0, followed = 0;  // calls seen as they were written; those of them that became whole

  bool operator==(const Outcome& o) const {
    const auto same_call = [](const ToolCall& a, const ToolCall& b) {
      return a.name == b.name && a.arguments == b.arguments && a.markup == b.markup;
    };
    return reasoning == o.reasoning && content == o.content && call_at == o.call_at && stop == o.stop &&
           finish_reason == o.finish_reason &&
           std::equal(calls.begin(), calls.end(), o.calls.begin(), o.calls.end(), same_call);
  }
};

inline std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  out << "reasoning " << testing::PrintToString(o.reasoning) << "\ncontent "
      << testing::PrintToString(o.content);
  for (size_t i = 0; i < o.calls.size(); ++i)
    out << "\ncall at " << o.call_at[i] << ": " << o.calls[i].name << " " << o.calls[i].arguments;
  return out << "\nstop " << o.stop.value_or("(none)") << ", finish " << o.finish_reason << "\n";
}

/// Runs the tokens through a stream, one a step, or up to eight where `steps` is given. Every piece must be
/// whole UTF-8 and not empty.
inline Outcome run(const ReplyOptions& options, const std::vector<int32_t>& tokens, ReplyEnding ending,
                   std::mt19937_64* steps = nullptr) {
  ReplyStream stream(demo(), options);
  Outcome result;
  std::vector<ReplyPiece> pieces;
  std::string begun_name, arguments;  // of the call that is being written
  const auto collect = [&] {
    for (ReplyPiece& p : pieces) {
      if (p.kind == ReplyPiece::Kind::kCallBegun) {
        EXPECT_TRUE(options.follow_calls);
        ++result.begun;
        begun_name = p.text;
        arguments.clear();
        continue;
      }
      if (p.kind == ReplyPiece::Kind::kCallArguments) {
        EXPECT_FALSE(p.text.empty());
        EXPECT_EQ(utf8_valid_prefix(p.text), p.text.size());
        arguments += p.text;
        continue;
      }
      if (p.kind == ReplyPiece::Kind::kCall) {
        if (p.followed) {
          ++result.followed;
          EXPECT_EQ(begun_name, p.call.name);
          // The same bytes, but for a key that was written twice: the last one counts.
          if (arguments.size() == p.call.arguments.size())
            EXPECT_EQ(arguments, p.call.arguments);
          else
            EXPECT_EQ(dump_json(parse_json(arguments).value()), p.call.arguments);
        }
        result.calls.push_back(std::move(p.call));
        result.call_at.push_back(result.content.size());
        continue;
      }
      EXPECT_FALSE(p.text.empty());
      EXPECT_EQ(utf8_valid_prefix(p.text), p.text.size());
      (p.kind == ReplyPiece::Kind::kReasoning ? result.reasoning : result.content) += p.text;
    }
    pieces.clear();
  };
  for (size_t at = 0; at < tokens.size() && !stream.stopped() && !stream.ended();) {
    for (size_t n = steps ? 1 + (*steps)() % 8 : 1; n > 0 && at < tokens.size(); --n)
      stream.push(tokens[at++], pieces);
    collect();
  }
  stream.finish(ending, pieces);
  collect();
  result.stop = stream.matched_stop();
  EXPECT_EQ(stream.calls(), static_cast<int>(result.calls.size()));
  const bool cut = ending == ReplyEnding::kLength && !stream.stopped();
  result.finish_reason = cut ? "length" : stream.calls() > 0 ? "tool_calls" : "stop";
  result.reasoning_tokens = stream.reasoning_tokens();
  return result;
}

}  // namespace firesteel::reply_test
