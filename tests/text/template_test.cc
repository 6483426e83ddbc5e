// The template interpreter without the oracle: golden renderings, features with their expected text, errors,
// limits and hostile sources.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

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

Result<MarkedText> render(const std::string& source, const Json& variables = Json::object(),
                          const TemplateLimits& limits = {}) {
  auto parsed = ChatTemplate::parse(source, "t.jinja");
  if (!parsed.ok()) return parsed.error();
  return parsed->render(variables, limits);
}

std::string text_of(const std::string& source, const Json& variables = Json::object()) {
  auto r = render(source, variables);
  return r.ok() ? r->bytes() : "ERROR " + r.error().message;
}

ErrorCode code_of(const std::string& source, const TemplateLimits& limits = {}) {
  auto r = render(source, Json::object(), limits);
  EXPECT_FALSE(r.ok()) << source.substr(0, 200);
  return r.ok() ? ErrorCode::kInternal : r.error().code;
}

TEST(Template, GoldenConversations) {
  auto chat = ChatTemplate::parse(read_file("models/demo/chat_template.jinja"), "chat_template.jinja");
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  auto golden = parse_json(read_file("tests/data/golden/chat.json"));
  ASSERT_TRUE(golden.ok());
  int compared = 0;
  for (const Json& c : (*golden)["rendering"]) {
    if (c["rendered"].get<std::string>().find("</think>None<tool_call>") != std::string::npos) continue;
    Json variables = c["flags"];
    variables["messages"] = c["messages"];
    variables["tools"] = c["tools"];
    auto text = chat->render(variables);
    ASSERT_TRUE(text.ok()) << c["name"] << text.error().message;
    // Two cases show only a part of the rendering.
    const std::string expected = c["rendered"];
    if (expected.starts_with("[gMASK]")) {
      EXPECT_EQ(text->bytes(), expected) << c["name"];
    } else {
      EXPECT_NE(text->bytes().find(expected), std::string::npos) << c["name"];
    }
    ++compared;
  }
  EXPECT_EQ(compared, 28);
}

TEST(Template, Features) {
  const Json v = {
      {"s", " Ab\n"}, {"l", {3, 1, 2}}, {"d", {{"items", 1}, {"k", "é"}}}, {"x", nullptr}, {"f", 1e20}};
  EXPECT_EQ(text_of("{{ l[1:] }}{{ l.0 }}{{ l[-1] }}{{ d['items'] }}{{ d.k }}", v), "[1, 2]321é");
  EXPECT_EQ(text_of("{{ x }}{{ true }}{{ f }}{{ nosuch }}{{ [x, 'a\\'b'] }}", v),
            "NoneTrue1e+20[None, \"a'b\"]");
  EXPECT_EQ(text_of("{% for k, v in d.items() %}{{ k }}{{ loop.index0 }}{{ loop.last }};{% endfor %}", v),
            "items0False;k1True;");
  EXPECT_EQ(
      text_of("{% set n = namespace(c=0) %}{% for i in l %}{% set n.c = n.c + i %}{% endfor %}{{ n.c }}", v),
      "6");
  EXPECT_EQ(text_of("{% macro a(p, q=2) %}{{ p }}{{ b(q) }}{% endmacro %}{% macro b(r) %}<{{ r }}>{% "
                    "endmacro %}{{ a(1) }}"),
            "1<2>");
  EXPECT_EQ(text_of("a  {%- if true %} b {% endif -%}  c\n"), "a b c");
  EXPECT_EQ(text_of("  {% if true %}\n  x\n  {% endif %}\ny"), "  x\ny");
  EXPECT_EQ(text_of("{{ d | tojson }}|{{ l | tojson(indent=1) }}", v),
            "{\"items\": 1, \"k\": \"é\"}|[\n 3,\n 1,\n 2\n]");
  EXPECT_EQ(text_of("{% set a %}x{{ 1 }}{% endset %}{{ a * 2 }}{{ 'İ'|lower|length }}{{ 'ΑΣ'|lower }}"),
            "x1x12ας");
  EXPECT_EQ(text_of("{{ m.digits }}{{ m|tojson }}",
                    {{"m", {{"digits", make_big_integer("123456789012345678901234567890")}}}}),
            "123456789012345678901234567890{\"digits\": 123456789012345678901234567890}");
}

TEST(Template, ErrorsNameTheLine) {
  auto broken = ChatTemplate::parse("a\n{% if x %}\nb\n{{ 1 + }}\n", "dir/t.jinja");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(broken.error().message.find("dir/t.jinja, line 4:"), 0u) << broken.error().message;
  auto run = render("a\n\n{{ raise_exception('no tools, please') }}");
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, ErrorCode::kTemplate);
  EXPECT_EQ(run.error().message, "chat template, line 3: no tools, please");
  EXPECT_EQ(code_of("{{ x.y }}"), ErrorCode::kTemplate);
  EXPECT_EQ(code_of("{{ 'a' + 1 }}"), ErrorCode::kTemplate);
  EXPECT_EQ(code_of("{{ 9223372036854775807 + 1 }}"), ErrorCode::kTemplate);
  EXPECT_EQ(code_of("{{ -(-9223372036854775807 - 1) }}"), ErrorCode::kTemplate);
  EXPECT_EQ(code_of("{{ (-9223372036854775807 - 1) // -1 }}"), ErrorCode::kTemplate);
  EXPECT_EQ(code_of("{% include 'x' %}"), ErrorCode::kInvalidFile);
  EXPECT_EQ(code_of("\xff"), ErrorCode::kInvalidFile);
  EXPECT_EQ(text_of("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(Template, LimitsEndEveryRendering) {
  const std::string hostile[] = {
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{{ 'a' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{% set n = namespace(s='ab') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
      "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
      "{% set n = namespace(x=1) %}{% for i in range(100000) %}{% set n.x = {'a': n.x} %}{% endfor %}",
      "{% set n = namespace(x=1) %}{% for i in range(100000) %}{% set n.x = [n.x].copy %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a(f) %}{{ f(f) }}{% endmacro %}{{ a(a) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
      "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
      "{{ (['a' * 1000000] * 1000000)|join }}",
      "{{ ('b' * 1000000).join(['a'] * 100000) }}",
      "{{ '%1000000000s' % 'a' }}",
      "{{ ('%s' * 1000000) % (('a' * 100000,) * 1000000) }}",
      "{{ [[[[1]]]]|tojson(indent=1000000000) }}",
      "{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}",
      "{% set n = namespace(x=0) %}{% for i in range(100000) %}{% for j in range(1000) %}{% set n.x = "
      "namespace(y=n.x) %}{% endfor %}{% endfor %}",
      "{{ ('a' * 10000000).split('') if false else ('a ' * 10000000).split()|length ~ ('a ' * 10000000)|list "
      "}}",
      "{{ range(100000)|batch(1000000000, 'x')|list }}",
      "{{ 'x'|indent(1000000000) }}{{ 'a\\nb'|indent('y' * 200000000) }}{{ ('\\n' * 100000)|indent('y' * "
      "100000, blank=true) }}",
  };
  TemplateLimits limits;
  limits.steps = 3'000'000;
  limits.output_bytes = 4u << 20;
  for (const std::string& source : hostile) EXPECT_EQ(code_of(source, limits), ErrorCode::kLimit) << source;
  // The sandbox's own limit has its own error.
  EXPECT_EQ(code_of("{{ range(1000000000) }}"), ErrorCode::kTemplate);
}

TEST(Template, OutputLimitIsExact) {
  TemplateLimits limits;
  limits.output_bytes = 10;
  auto fits = render("{{ 'abcde' }}fghij", Json::object(), limits);
  ASSERT_TRUE(fits.ok()) << fits.error().message;
  EXPECT_EQ(fits->size(), 10u);
  EXPECT_EQ(code_of("{{ 'abcde' }}fghijk", limits), ErrorCode::kLimit);
}

TEST(Template, LongComparisonsAreCharged) {
  // Quadratic searches must not run on for free.
  TemplateLimits limits;
  limits.steps = 2'000'000;
  const Json v = {{"a", std::string(1u << 20, 'a')}};
  auto r =
      render("{% for i in range(10000) %}{{ (a ~ 'b') in (a ~ a) }}{{ a == a ~ '' }}{% endfor %}", v, limits);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, ErrorCode::kLimit);
}

TEST(Template, DeepSourcesAreRefused) {
  const size_t n = 200'000;
  const auto repeat = [](const std::string& s, size_t count) {
    std::string out;
    out.reserve(s.size() * count);
    for (size_t i = 0; i < count; ++i) out += s;
    return out;
  };
  const std::string sources[] = {
      "{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}",
      "{{ " + repeat("[", n) + repeat("]", n) + " }}",
      "{{ " + repeat("not ", n) + "1 }}",
      "{{ " + repeat("- ", n) + "1 }}",
      "{{ 1" + repeat(" + 1", n) + " }}",
      "{{ 1" + repeat(" or 1", n) + " }}",
      "{{ x" + repeat(".a", n) + " }}",
      "{{ x" + repeat("[0]", n) + " }}",
      "{{ x" + repeat("|f", n) + " }}",
      "{{ x" + repeat("()", n) + " }}",
      "{{ 1" + repeat(" if 1 else 1", n) + " }}",
      "{{ f(" + repeat("f(", n) + repeat(")", n) + ") }}",
      repeat("{% if 1 %}", n) + repeat("{% endif %}", n),
      repeat("{% for i in x %}", n) + repeat("{% endfor %}", n),
      "{% for " + repeat("(", n) + "a" + repeat(")", n) + " in x %}{% endfor %}",
      "{% set a" + repeat(" | f", n) + " %}{% endset %}",
      "{{ {1: " + repeat("{1: ", n) + repeat("}", n) + "} }}",
  };
  for (const std::string& source : sources) {
    auto parsed = ChatTemplate::parse(source, "t");
    ASSERT_FALSE(parsed.ok()) << source.substr(0, 40);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidFile);
  }
  // Long but flat is fine.
  EXPECT_EQ(text_of("{{ 'a'" + repeat(" ~ 'a'", 20000) + " }}").size(), 20001u);
  EXPECT_EQ(text_of("{% if 0 %}" + repeat("{% elif 0 %}", 20000) + "{% else %}x{% endif %}"), "x");
}

TEST(Template, CyclesThroughNamespacesAndScopesEnd) {
  // Leaks are what the address sanitizer looks for here.
  EXPECT_EQ(text_of("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.n.n.l[0].l|length }}"),
            "1");
  EXPECT_EQ(text_of("{% for i in range(2) %}{% macro m() %}{{ i }}{% endmacro %}{% set keep = m %}{{ keep() "
                    "}}{% endfor %}"),
            "01");
  EXPECT_EQ(text_of("{% set n = namespace() %}{% for i in range(2) %}{{ loop.changed(loop) }}{% set n.l = "
                    "loop %}{% endfor %}"),
            "TrueFalse");
  auto printed = render("{% set n = namespace() %}{% set n.n = n %}{{ n }}");
  ASSERT_FALSE(printed.ok());
  EXPECT_EQ(printed.error().code, ErrorCode::kLimit);
}

TEST(Template, ManyThreadsRenderOneTemplate) {
  auto chat = ChatTemplate::parse(read_file("models/demo/chat_template.jinja"), "chat_template.jinja");
  ASSERT_TRUE(chat.ok());
  const Json v = {{"messages",
                   {{{"role", "user"}, {"content", "hello"}},
                    {{"role", "assistant"}, {"content", "<think>a</think> b "}}}},
                  {"add_generation_prompt", true}};
  const std::string expected = chat->render(v)->bytes();
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) equal[t] += chat->render(v)->bytes() == expected ? 1 : 0;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

}  // namespace
}  // namespace firesteel
