// A reply of any text through the reply stream: all at once and byte by byte must give the same. The first
// byte picks the options.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/reply_parser.h"
#include "text/reply_stream.h"
#include "text/utf8.h"

namespace {

using namespace firesteel;

/// Only single bytes are tokens: id = byte.
Tokenizer byte_tokenizer() {
  std::string vocabulary;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    vocabulary += b == 0 ? "\"" : ",\"";
    if (b == '"' || b == '\\') vocabulary += '\\';
    utf8_append(vocabulary, printable ? b : next++);
    vocabulary += "\":" + std::to_string(b);
  }
  return Tokenizer::parse(R"({"model":{"type":"BPE","merges":[],"vocab":{)" + vocabulary +
                              R"(}},"decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"ByteLevel",
      "add_prefix_space":false,"use_regex":false}})",
                          "fuzz")
      .value();
}

struct Sum {
  std::string reasoning, content, calls;
  void take(std::vector<ReplyPiece>& pieces) {
    for (const ReplyPiece& p : pieces) {
      if (p.kind == ReplyPiece::Kind::kCall) {
        calls += std::to_string(content.size()) + p.call.name + "(" + p.call.arguments + ")" + p.call.markup;
        if (!nlohmann::ordered_json::accept(p.call.arguments)) std::abort();
        continue;
      }
      if (p.text.empty() || !utf8_is_valid(p.text)) std::abort();
      (p.kind == ReplyPiece::Kind::kReasoning ? reasoning : content) += p.text;
    }
    pieces.clear();
  }
};

/// Takes the pieces of calls that are being written out, and holds their arguments against the whole calls.
struct Follower {
  Sum sum;
  std::string name, arguments;
  bool open = false, unfinished = false;
  void take(std::vector<ReplyPiece>& pieces) {
    std::vector<ReplyPiece> rest;
    for (ReplyPiece& p : pieces) {
      if (p.kind == ReplyPiece::Kind::kCallBegun) {
        unfinished = unfinished || open;
        open = true;
        name = p.text;
        arguments.clear();
      } else if (p.kind == ReplyPiece::Kind::kCallArguments) {
        if (!open || p.text.empty() || !utf8_is_valid(p.text)) std::abort();
        arguments += p.text;
      } else {
        if (p.followed) {
          if (!open || name != p.call.name || dump_json(parse_json(arguments).value()) != p.call.arguments)
            std::abort();
          open = false;
        }
        rest.push_back(std::move(p));
      }
    }
    pieces.clear();
    sum.take(rest);
  }
};

/// Writes the parser's events down.
struct Journal final : ReplyEvents {
  std::string text;
  char kind = 0;
  void add(char k, std::string_view s) {
    if (s.empty()) return;
    if (kind != k || k == 'C') text += std::string("\0", 1) + k;
    kind = k;
    text += s;
  }
  void reasoning(std::string_view s) override { add('r', s); }
  void content(std::string_view s) override { add('c', s); }
  void call(ToolCall c, bool from_reasoning, bool) override {
    add('C', c.name + c.arguments + c.markup + "01"[from_reasoning]);
  }
  void think_closed() override { add('t', "."); }
};

std::string parsed(const ReplyOptions& options, std::string_view text, size_t step, bool cut) {
  Journal journal;
  ReplyParser parser(options.in_think, !options.continues_text, options.tools, false, journal);
  for (size_t at = 0; at < text.size(); at += step) parser.push(text.substr(at, step));
  parser.finish(cut);
  return journal.text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = byte_tokenizer();
  static const auto tools =
      ToolSet::create(nlohmann::ordered_json::parse(R"([{"name":"f","parameters":{"type":"object",
    "properties":{"s":{"type":"string"},"i":{"type":"integer"},"l":{"type":["array","null"]},"e":{"enum":[1,"a",null]},
    "r":{"$ref":"#/properties/r"},"b":{"anyOf":[{"type":"boolean"},{"type":"object"}]}},"required":["i"]}}])"));
  if (size < 1) return 0;
  ReplyOptions options;
  options.in_think = data[0] & 1;
  if (data[0] & 2) options.tools = tools;
  options.stop_in_reasoning = data[0] & 4;
  options.include_stop = data[0] & 8;
  if (data[0] & 16) options.stop = {"stop", "\n\n", "ab", "b<"};
  options.continues_text = data[0] & 32;
  options.parallel_tool_calls = data[0] & 64;
  const ReplyEnding ending = data[0] & 128 ? ReplyEnding::kEnd : ReplyEnding::kLength;

  Sum early, late;
  std::vector<ReplyPiece> pieces, all;
  ReplyStream one(tokenizer, options), other(tokenizer, options);
  for (size_t i = 1; i < size; ++i) {
    one.push(data[i], pieces);
    early.take(pieces);  // as they come
    other.push(data[i], all);
  }
  one.finish(ending, pieces);
  early.take(pieces);
  other.finish(ending, all);
  late.take(all);
  if (early.reasoning != late.reasoning || early.content != late.content || early.calls != late.calls)
    std::abort();

  // Followed as they are written, the calls are the same: while every call that began became whole.
  options.follow_calls = true;
  ReplyStream third(tokenizer, options);
  Follower follower;
  for (size_t i = 1; i < size; ++i) {
    third.push(data[i], pieces);
    follower.take(pieces);
  }
  third.finish(ending, pieces);
  follower.take(pieces);
  if (!follower.open && !follower.unfinished &&
      (early.reasoning != follower.sum.reasoning || early.content != follower.sum.content ||
       early.calls != follower.sum.calls))
    std::abort();

  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool cut = ending == ReplyEnding::kLength;
  const std::string whole = parsed(options, text, text.size() + 1, cut);
  for (size_t step : {1, 3, 7})
    if (parsed(options, text, step, cut) != whole) std::abort();
  return 0;
}
