// Composes replies from think blocks, prose, quoted tags, calls in three forms, repairs and cut ends. What a
// client must get is written down part by part, by the rules of the markup; nothing of the parser is used.
#include "transcript.h"

namespace firesteel::reply_test {

using nlohmann::ordered_json;

namespace {

const char* const kTools = R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
  {"type":"function","function":{"name":"bash","parameters":{"type":"object",
    "properties":{"command":{"type":"string"}},"required":["command"]}}},
  {"name":"get_current_time"}])";

const char* const kProse[] = {"Let me look.", " and then",  "\n\nSecond:\n", " if (a<b) x;",  " é世界 😀",
                              "1 < 2",        "STO",        " STOP",         " </thin> <b>x", " <tool>",
                              " e\u0301 ",    "\t- item\n", " \"quoted\"",   " {\"a\": 1}",   " \xC2\xA0wide",
                              " <arg_key>k",  "\\n",        " end. \n"};
// Openers that no call follows, each with what makes that certain.
const char* const kMentions[] = {"The `<tool_call>` tag", " <tool_call> opens a call.",
                                 " <tool_call>bash, you see", " a <tool_call>\n* list",
                                 " </tool_call> ends it."};
const char* const kBroken[] = {"<tool_call>get_weather<arg_key>city</arg_key>Oslo</tool_call>",
                               "<tool_call>fs.list<arg_key>p</arg_key><arg_value>.</arg_value></tool_call>",
                               "<tool_call></tool_call>",
                               "<tool_call>[1]</tool_call>",
                               "<tool_call>{\"name\": \"bash\", \"arguments\": {]}</tool_call>",
                               "<tool_call>bash<arg_value>ls</arg_value></tool_call>"};
const char* const kBlanks[] = {"", "", "", "\n", " ", "\n\n", " \r\n\t"};
const char* const kTexts[] = {"Oslo",
                              "Z\u00fcrich \u57ce\u5e02",
                              "ls -la | grep '<tool_call>'",
                              "a\nb\\n\"c\"",
                              "007",
                              "true",
                              "STOP!",
                              " blank ",
                              "\U0001F600",
                              "<arg_key>"};
const char* const kStop = "STOP!";

bool is_blank(char c) { return std::string_view(" \t\n\r\v\f").find(c) != std::string_view::npos; }
std::string left_trimmed(std::string s) {
  size_t n = 0;
  while (n < s.size() && is_blank(s[n])) ++n;
  return s.substr(n);
}
std::string right_trimmed(std::string s) {
  while (!s.empty() && is_blank(s.back())) s.pop_back();
  return s;
}

struct Call {
  std::string text;  // its markup
  size_t opened;     // bytes of it without the closing tag
  std::string name, arguments;
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : rng_(seed) {}

  Transcript make() {
    t_ = {};
    reasoning_ = visible_ = {};
    calls_.clear();
    stopped_ = false;
    with_tools_ = rng_() % 6 != 0;
    t_.options.in_think = rng_() % 3 != 0;
    t_.options.parallel_tool_calls = rng_() % 6 != 0;
    if (with_tools_) t_.options.tools = ToolSet::create(ordered_json::parse(kTools));
    if (rng_() % 3 == 0) t_.options.stop = {"never", kStop};
    t_.options.include_stop = rng_() % 3 == 0;
    t_.end_by = "<|observation|>";
    t_.options.end_ids = {demo().added_id(t_.end_by)};
    if (!t_.options.in_think || think_block()) answer();
    finish();
    return std::move(t_);
  }

 private:
  template <size_t N>
  std::string pick(const char* const (&list)[N]) {
    return list[rng_() % N];
  }

  // --- calls

  Call call(bool for_think) {
    ordered_json arguments = ordered_json::object();
    std::vector<std::pair<std::string, std::string>> pairs;  // as written
    std::string name;
    switch (rng_() % 4) {
      case 0: {
        name = "get_weather";
        add(arguments, pairs, "city");
        if (rng_() % 2) {
          static const char* const kThree[] = {"3", " 3\n", "\"3\"", "3.0"};
          arguments["days"] = 3;
          pairs.emplace_back("days", pick(kThree));
        }
        break;
      }
      case 1:
        name = "bash";
        add(arguments, pairs, "command");
        if (!for_think && rng_() % 4 == 0) {
          pairs.back().second = "echo '</think>'";
          arguments["command"] = pairs.back().second;
        }
        break;
      case 2:
        name = "get_current_time";
        break;
      default:  // not offered
        name = "mcp-read_2";
        arguments["n"] = 12;
        pairs.emplace_back("n", "12");
    }
    std::string written = name;
    if (name != "mcp-read_2" && rng_() % 5 == 0) written[0] = static_cast<char>(name[0] - 32);
    Call c;
    c.name = name;
    c.arguments = arguments.dump();
    c.text = "<tool_call>" + pick(kBlanks);
    switch (rng_() % 5) {
      case 0:
        c.text += json_body(written, arguments);
        break;
      case 1:
        c.text += function_body(written, pairs);
        break;
      default:
        c.text += pairs_body(written, pairs);
    }
    c.text += pick(kBlanks);
    c.opened = c.text.size();
    c.text += "</tool_call>";
    return c;
  }

  void add(ordered_json& arguments, std::vector<std::pair<std::string, std::string>>& pairs,
           const char* key) {
    pairs.emplace_back(key, pick(kTexts));
    arguments[key] = pairs.back().second;
  }

  std::string pairs_body(const std::string& name,
                         const std::vector<std::pair<std::string, std::string>>& pairs) {
    std::string out = name;
    for (const auto& [key, value] : pairs) {
      const bool lost = rng_() % 8 == 0;  // a blank stands in for the tag
      out += lost ? "\n" + key : pick(kBlanks) + "<arg_key>" + pick(kBlanks) + key + pick(kBlanks);
      out += "</arg_key>" + pick(kBlanks) + "<arg_value>" + value + "</arg_value>";
    }
    return out;
  }
  std::string json_body(const std::string& name, const ordered_json& arguments) {
    ordered_json body;
    static const char* const kName[] = {"name", "tool", "function"};
    static const char* const kArguments[] = {"arguments", "args", "parameters"};
    body[pick(kName)] = name;
    const std::string key = pick(kArguments);
    if (rng_() % 3) {
      body[key] = arguments;
    } else {
      body[key] = arguments.dump();
    }
    return body.dump(rng_() % 2 ? -1 : 2);
  }
  std::string function_body(const std::string& name,
                            const std::vector<std::pair<std::string, std::string>>& pairs) {
    std::string out = "<function=" + name + ">";
    for (const auto& [key, value] : pairs) {
      const bool lines = rng_() % 2;
      out += pick(kBlanks) + "<parameter=" + key + (lines ? ">\n" : ">") + value + (lines ? "\n" : "") +
             "</parameter>";
    }
    return out + pick(kBlanks) + "</function>";
  }

  // --- the reply

  /// True when an answer follows.
  bool think_block() {
    if (rng_() % 6 == 0) t_.reply += "<think>";  // ignored
    for (size_t n = rng_() % 4; n > 0; --n) thought();
    const size_t kind = rng_() % 6;
    if (kind == 0 && with_tools_) {  // calls as the last thing: they count
      reasoning_ = right_trimmed(reasoning_);
      for (size_t n = 1 + rng_() % 2; n > 0; --n) {
        const Call c = call(true);
        t_.reply += pick(kBlanks) + c.text;
        calls_.push_back({c.name, c.arguments, ""});
        t_.expected.call_at.push_back(0);
      }
      t_.reply += pick(kBlanks);
      if (rng_() % 2) t_.reply += "</think>" + pick(kBlanks);
      return false;
    }
    if (kind == 1) {  // no closing tag
      if (rng_() % 2) t_.end_by = "";
      return false;
    }
    if (kind == 2) {  // an open call that the block's end makes text
      const Call c = call(true);
      const std::string open = " " + c.text.substr(0, c.opened - rng_() % 5);
      think_text(open.substr(0, utf8_valid_prefix(open)));
    }
    t_.reply += "</think>";
    return true;
  }
  void thought() {
    switch (rng_() % 6) {
      case 0:
        think_text(pick(kMentions) + ".");
        break;
      case 1:
        think_text(call(true).text + " or not");
        break;
      case 2:
        think_text(std::string(kStop));
        break;
      default:
        think_text(pick(kProse));
    }
  }
  void think_text(const std::string& text) {
    t_.reply += text;
    reasoning_ += text;
    t_.shows_markup |= text.find("<tool_call>") != text.npos || text.find("arg_") != text.npos ||
                       text.find("</tool_call>") != text.npos;
  }

  void answer() {
    say(pick(kBlanks));
    for (size_t n = rng_() % 6; n > 0; --n) {
      switch (rng_() % 9) {
        case 0:
          say(pick(kMentions) + ".", true);
          break;
        case 1:
          say(pick(kBroken) + ".", true);
          break;
        case 2:
          if (!visible_.empty() && !is_blank(visible_.back())) t_.reply += "</think>";  // dropped
          break;
        case 3:
        case 4:
          if (with_tools_) take(call(false));
          break;
        case 5:
          plant_stop();
          break;
        default:
          say(pick(kProse));
      }
    }
    const size_t kind = rng_() % 6;
    if (kind == 0) {
      t_.end_by = "";
    } else if (kind == 1 && with_tools_) {  // cut in a call: neither sent nor shown
      t_.end_by = "";
      const Call c = call(false);
      t_.reply += c.text.substr(0, 11 + rng_() % (c.text.size() - 11));
    } else if (kind == 2 && with_tools_) {  // only the closing tag is missing
      Call c = call(false);
      while (c.name == "mcp-read_2") c = call(false);
      c.text.resize(c.opened + rng_() % 11);
      take(c);
      t_.call_due.clear();   // not before the end
    } else if (kind == 3) {  // a value that does not end
      say(" <tool_call>bash<arg_key>command</arg_key><arg_value>rm -rf /tmp/a", true);
    }
  }
  void say(const std::string& text, bool markup = false) {
    t_.reply += text;
    if (stopped_) return;
    visible_ += text;
    t_.shows_markup |= markup || text.find("arg_") != text.npos;
  }
  void take(const Call& c) {
    t_.reply += c.text;
    if (stopped_ || (!t_.options.parallel_tool_calls && !calls_.empty())) return;
    calls_.push_back({c.name, c.arguments, ""});
    t_.expected.call_at.push_back(right_trimmed(left_trimmed(visible_)).size());
    t_.call_due.push_back(t_.reply.size());
  }
  void plant_stop() {
    const bool counts = !stopped_ && !t_.options.stop.empty();
    if (counts && t_.options.include_stop) visible_ += kStop;
    if (counts) {
      t_.reply += kStop;
      stopped_ = true;
      t_.expected.stop = kStop;
    } else {
      say(kStop);
    }
  }

  void finish() {
    Outcome& e = t_.expected;
    e.reasoning = reasoning_;
    e.content = stopped_ ? left_trimmed(visible_) : right_trimmed(left_trimmed(visible_));
    if (!t_.options.parallel_tool_calls && calls_.size() > 1) {  // in the think block
      calls_.resize(1);
      e.call_at.resize(1);
    }
    if (t_.call_due.size() != calls_.size()) t_.call_due.clear();
    e.calls = calls_;
    e.finish_reason = t_.end_by.empty() && !stopped_ ? "length" : calls_.empty() ? "stop" : "tool_calls";
  }

  std::mt19937_64 rng_;
  Transcript t_;
  bool with_tools_ = false, stopped_ = false;
  std::string reasoning_, visible_;
  std::vector<ToolCall> calls_;
};

}  // namespace

std::vector<Transcript> made_transcripts(uint64_t seed, int count) {
  Maker maker(seed);
  std::vector<Transcript> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(maker.make());
    all.back().name = "made " + std::to_string(i);
  }
  return all;
}

}  // namespace firesteel::reply_test
