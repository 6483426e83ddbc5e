// Provenance through the interpreter: a caller's text never counts as the template's own, whatever is done to
// it.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/chat_template.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::string& path) {
  std::ifstream in(std::string(FIRESTEEL_SOURCE_DIR) + "/" + path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The marks as a picture: the text with every caller's byte replaced by '.'.
std::string trusted_picture(const MarkedText& text) {
  std::string out;
  for (const MarkedText::Run& r : text.runs())
    out += r.trusted ? text.bytes().substr(r.begin, r.end - r.begin) : std::string(r.end - r.begin, '.');
  return out;
}

std::string picture(const std::string& source, const Json& variables) {
  auto parsed = ChatTemplate::parse(source, "t");
  if (!parsed.ok()) return parsed.error().message;
  auto text = parsed->render(variables);
  return text.ok() ? trusted_picture(*text) : text.error().message;
}

TEST(Marks, EveryOperationKeepsThem) {
  const Json v = {{"c", "<X>"}, {"d", {{"<k>", "<v>"}}}, {"n", 7}, {"l", {"<a>", "<b>"}}};
  EXPECT_EQ(picture("{{ '<a>' ~ c ~ '<b>' }}{{ c + '<c>' }}", v), "<a>...<b>...<c>");
  EXPECT_EQ(picture("{{ ('<t>' ~ c)[1:-1] }}{{ ('ab' ~ c)[::-1] }}", v), "t>.....ba");
  EXPECT_EQ(picture("{{ (' <t>' ~ c ~ ' ').strip() }}{{ ('<t>' ~ c)|upper }}{{ ('<t>' ~ c)|capitalize }}", v),
            "<t>...<T>...<t>...");
  EXPECT_EQ(picture("{{ (c ~ ',<t>,' ~ c).split(',')|join('|') }}", v), "...|<t>|...");
  EXPECT_EQ(picture("{{ l|join('<s>') }}{{ '<s>'.join(l) }}", v), "...<s>......<s>...");
  EXPECT_EQ(picture("{{ d|tojson }}{{ ['<t>']|tojson }}{{ d }}", v), std::string(10 + 4 + 7 + 14, '.'));
  EXPECT_EQ(picture("{% for k, x in d.items() %}{{ '<i>' ~ k ~ x }}{% endfor %}", v), "<i>......");
  EXPECT_EQ(picture("{{ n }}{{ n + 1 }}{{ 12 }}{% for i in l %}{{ loop.index }}{% endfor %}", v), "..1212");
  EXPECT_EQ(picture("{{ '<%s>' % c }}{{ c % () }}{{ '<{}>'.format(c) }}", v), "<...>...<...>");
  EXPECT_EQ(
      picture("{% macro m(x) %}<m>{{ x }}{% endmacro %}{{ m(c) }}{% set b %}<b>{{ c }}{% endset %}{{ b }}",
              v),
      "<m>...<b>...");
  EXPECT_EQ(picture("{{ '<t>'|replace('t', c) }}{{ ('a' ~ c)|replace('a', '<r>') }}", v), "<...><r>...");
  // A replacement that a caller's spelling brings about is the caller's.
  EXPECT_EQ(picture("{{ c|replace('<X>', '<|user|>') }}{{ c.replace('X', '<t>') }}", v),
            std::string(8 + 5, '.'));
  EXPECT_EQ(picture("{{ ('<' ~ c)|replace('<<', '<t>') }}{{ c|replace('', '<t>') }}", v),
            "....."
            "...............");
  EXPECT_EQ(picture("{{ c|list|join }}{{ c|first }}{{ c|last }}{{ c[0] ~ '|' }}", v), "......|");
  EXPECT_EQ(picture("{{ '%s%s' % ('<t>', c) }}{{ ('%s' ~ c) % '<t>' }}", v),
            "<t>..."
            "......");
}

// ------------------------------------------------------------------ random operations

/// Expressions over a caller's strings (Greek and CJK letters only) and the template's (ASCII only): then
/// every trusted byte of the output must be ASCII, for conversions between the two scripts do not exist.
class Expressions {
 public:
  explicit Expressions(uint64_t seed) : random_(seed) {}

  std::string make(int depth) {
    const std::string inner = one(depth);
    return "(" + inner + ")";
  }
  std::string caller_text() {
    std::string out;
    for (uint64_t i = below(8); i-- > 0;) out += pick({"α", "Β", "ζ", "Σ", "σ", "語", "、", "Ω", "ΰ", "β"});
    return out;
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  std::string pick(std::initializer_list<const char*> all) { return *(all.begin() + below(all.size())); }

 private:
  std::string one(int depth) {
    if (depth == 0)
      return pick(
          {"c", "e", "l[0]", "d.k", "d['ζ']", "'<a>'", "'</think>'", "'b'", "(l|join('-'))", "(n|string)"});
    const std::string a = make(depth - 1);
    switch (below(8)) {
      case 0:
        return "(" + a + " ~ " + make(depth - 1) + ")";
      case 1:
        return "(" + a + " + " + make(depth - 1) + ")";
      case 2:
        return a + pick({".strip()", ".upper()", ".lower()", ".title()", ".split('<')|join('>')",
                         ".split(c)|join('b')", ".replace('a', '<t>')", ".replace('α', '<t>')",
                         ".replace('', '<t>')", ".partition('β')|join('<t>')"});
      case 3:
        return "(" + a + ")" + pick({"[1:]", "[:-1]", "[::-1]", "[::2]", "[0:4]"});
      case 4:
        return "((" + a + ")|" +
               pick({"upper", "lower", "capitalize", "title", "trim", "list|join('<t>')", "tojson", "string",
                     "replace(c, '<t>')", "indent(2, true)", "list|reverse|join", "list|sort|join",
                     "list|unique|join", "truncate(9, true, '<t>')"}) +
               ")";
      case 5:
        return "m(" + a + ")";
      case 6:
        return "('%s<t>%s' % (" + a + ", " + make(depth - 1) + "))";
      default:
        return "([" + a + ", '<t>', " + make(depth - 1) + "]|join(" + pick({"c", "'|'", "e"}) + "))";
    }
  }
  std::mt19937_64 random_;
};

TEST(Marks, RandomOperationsNeverTrustACaller) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Expressions make(seed);
  int rendered = 0, caller_bytes = 0, own_bytes = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string source = "{% macro m(x) %}<m>{{ x }}{% endmacro %}{{ " +
                               make.make(1 + static_cast<int>(make.below(4))) + " }}";
    auto parsed = ChatTemplate::parse(source, "t");
    ASSERT_TRUE(parsed.ok()) << source << parsed.error().message;
    const Json v = {{"c", make.caller_text()},
                    {"e", make.caller_text()},
                    {"l", {make.caller_text(), make.caller_text()}},
                    {"d", {{"k", make.caller_text()}, {"ζ", make.caller_text()}}},
                    {"n", make.below(100)}};
    auto text = parsed->render(v);
    if (!text.ok()) continue;  // e.g. an empty separator
    ++rendered;
    for (const MarkedText::Run& r : text->runs()) {
      (r.trusted ? own_bytes : caller_bytes) += static_cast<int>(r.end - r.begin);
      if (!r.trusted) continue;
      for (size_t at = r.begin; at < r.end; ++at)
        ASSERT_LT(static_cast<unsigned char>(text->bytes()[at]), 0x80) << source << "\n"
                                                                       << dump_json(v) << "\n"
                                                                       << text->bytes();
    }
  }
  EXPECT_GT(rendered, 2000);
  EXPECT_GT(caller_bytes, 10000);
  EXPECT_GT(own_bytes, 10000);  // the template's own bytes are still known as such
}

// ------------------------------------------------------------------ forged turns in the real template

const char* const kSpecial[] = {"[gMASK]",
                                "<sop>",
                                "<|system|>",
                                "<|user|>",
                                "<|assistant|>",
                                "<|observation|>",
                                "<|begin_of_image|>",
                                "<|image|>",
                                "<think>",
                                "</think>",
                                "<tool_call>",
                                "</tool_call>",
                                "<tool_response>",
                                "</tool_response>",
                                "<arg_key>",
                                "</arg_key>",
                                "<arg_value>",
                                "</arg_value>",
                                "/nothink"};

/// The control tokens that the tokenizer would match, in order.
std::vector<std::string> control_tokens(const MarkedText& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size(); ++at)
    for (const char* s : kSpecial) {
      const size_t n = std::string_view(s).size();
      if (text.bytes().compare(at, n, s) == 0 && text.all_trusted(at, at + n)) out.push_back(s);
    }
  return out;
}

/// One conversation in two versions: strings of forged markup, and harmless ones in the same places.
class Conversations {
 public:
  explicit Conversations(uint64_t seed) : random_(seed) {}

  std::pair<Json, Json> make() {
    std::pair<Json, Json> v;
    both(&v, [&](bool forged) { return variables(forged); });
    return v;
  }

 private:
  template <typename F>
  void both(std::pair<Json, Json>* v, F f) {
    const auto state = random_;
    v->first = f(true);
    random_ = state;
    v->second = f(false);
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  /// Draws the same numbers for both versions.
  std::string text(bool forged) {
    std::string out = "x";
    for (uint64_t i = below(6); i-- > 0;) {
      const std::string s = kSpecial[below(std::size(kSpecial))];
      const size_t begin = below(2) == 0 ? 0 : below(s.size()),
                   count = below(2) == 0 ? s.size() : below(s.size() + 1);
      if (forged) out += s.substr(begin, count);
    }
    return out;
  }
  Json value(bool forged, int depth) {
    switch (below(depth > 2 ? 3 : 5)) {
      case 0:
        return text(forged);
      case 1:
        return below(100);
      case 2:
        return nullptr;
      case 3:
        return Json::array({value(forged, depth + 1), text(forged)});
      default: {
        Json o = Json::object();
        const std::string key = text(forged);
        o[key] = value(forged, depth + 1);
        return o;
      }
    }
  }
  Json variables(bool forged) {
    Json v, messages = Json::array();
    if (below(2) == 0) messages.push_back({{"role", "system"}, {"content", text(forged)}});
    for (uint64_t i = 1 + below(3); i-- > 0;) {
      if (below(2) == 0) {
        messages.push_back({{"role", "user"}, {"content", text(forged)}});
      } else {
        const std::string a = text(forged), b = text(forged);
        messages.push_back(
            {{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", a}}, b})}});
      }
      Json m = {{"role", "assistant"}, {"content", text(forged)}};
      if (below(2) == 0) m["reasoning_content"] = text(forged);
      Json arguments = Json::object();
      const std::string key = text(forged), name = text(forged), id = text(forged);
      arguments[key] = value(forged, 0);
      m["tool_calls"] = Json::array({{{"id", id}, {"function", {{"name", name}, {"arguments", arguments}}}}});
      messages.push_back(m);
      const std::string result = text(forged);
      messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
    }
    v["messages"] = messages;
    const std::string name = text(forged), description = text(forged);
    v["tools"] = Json::array(
        {{{"type", "function"},
          {"function", {{"name", name}, {"description", description}, {"parameters", value(forged, 0)}}}}});
    v["add_generation_prompt"] = below(2) == 0;
    v["clear_thinking"] = below(2) == 0;
    v["reasoning_effort"] = text(forged);
    return v;
  }
  std::mt19937_64 random_;
};

TEST(Marks, NoConversationForgesAControlToken) {
  auto chat = ChatTemplate::parse(read_file("models/demo/chat_template.jinja"), "chat_template.jinja");
  ASSERT_TRUE(chat.ok());
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Conversations make(seed);
  int caught_without_marks = 0;
  for (int i = 0; i < 1500; ++i) {
    const auto [forged, harmless] = make.make();
    auto a = chat->render(forged), b = chat->render(harmless);
    ASSERT_TRUE(a.ok()) << a.error().message << dump_json(forged);
    ASSERT_TRUE(b.ok()) << b.error().message;
    ASSERT_EQ(control_tokens(*a), control_tokens(*b)) << a->bytes();
    // The planted fault: the same text without marks must be caught by the same comparison.
    if (control_tokens(MarkedText::trusted(a->bytes())) != control_tokens(*b)) ++caught_without_marks;
  }
  EXPECT_GT(caught_without_marks, 1000);
}

}  // namespace
}  // namespace firesteel
