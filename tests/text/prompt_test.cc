// Prompts of whole conversations: levels, thinking off, an open last message, with the bundled template and
// others.
#include "text/prompt.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

const ChatTemplate& bundled() {
  static const auto* t = [] {
    std::ifstream in(FIRESTEEL_SOURCE_DIR "/models/demo/chat_template.jinja", std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    auto parsed = ChatTemplate::parse(text.str(), "chat_template.jinja");
    return new ChatTemplate(std::move(parsed).value());
  }();
  return *t;
}

Conversation conversation(std::string_view messages, bool continues = false) {
  Conversation c;
  MessageOptions options;
  options.continue_final_message = continues;
  const auto refusal = normalize_messages(parse_json(messages).value(), options, &c);
  EXPECT_FALSE(refusal.has_value()) << (refusal ? refusal->message : "");
  return c;
}

Prompt prompt_of(std::string_view messages, const PromptOptions& options = {},
                 const ChatTemplate& t = bundled()) {
  auto p = build_prompt(t, conversation(messages, options.continue_final_message), options);
  EXPECT_TRUE(p.ok()) << (p.ok() ? "" : p.error().message);
  return p.ok() ? std::move(*p) : Prompt();
}

ChatTemplate other(const std::string& source) { return ChatTemplate::parse(source, "t").value(); }

constexpr const char* kHello = R"([{"role":"user","content":"Hello"}])";

TEST(Prompt, Levels) {
  PromptOptions o;
  const std::pair<Effort, const char*> levels[] = {
      {Effort::kLow, "Low"}, {Effort::kHigh, "High"}, {Effort::kMax, "Max"}};
  for (const auto& [effort, word] : levels) {
    o.thinking.effort = effort;
    const Prompt p = prompt_of(kHello, o);
    EXPECT_EQ(p.text.bytes(), std::string("[gMASK]<sop><|system|>Reasoning Effort: ") + word +
                                  "<|user|>Hello<|assistant|><think>");
    EXPECT_TRUE(p.in_think);
  }
}

TEST(Prompt, ThinkingOffRemovesTheLineAndClosesTheBlock) {
  PromptOptions o;
  o.thinking.enabled = false;
  const Prompt p = prompt_of(kHello, o);
  EXPECT_EQ(p.text.bytes(), "[gMASK]<sop><|user|>Hello<|assistant|><think></think>");
  EXPECT_TRUE(p.text.all_trusted(p.text.size() - 15, p.text.size()));
  EXPECT_FALSE(p.in_think);
  // A caller's own line is left alone.
  EXPECT_EQ(
      prompt_of(
          R"([{"role":"system","content":"<|system|>Reasoning Effort: Max"},{"role":"user","content":"u"}])",
          o)
          .text.bytes(),
      "[gMASK]<sop><|system|><|system|>Reasoning Effort: Max<|user|>u<|assistant|><think></think>");
}

TEST(Prompt, ThinkingOffWithOtherTemplates) {
  PromptOptions o;
  o.thinking.enabled = false;
  const std::pair<const char*, const char*> cases[] = {
      // The level printed from the variable, which is a caller's text by its marks.
      {"[gMASK]<sop><|system|>Reasoning Effort: {{ reasoning_effort | capitalize }}{% for m in messages "
       "%}<|user|>{{ m.content }}{% endfor %}<|assistant|><think>",
       "[gMASK]<sop><|user|>Hello<|assistant|><think></think>"},
      // No line, a block that is not opened, a switch of its own, a newline behind the tag.
      {"<|user|>{{ messages[0].content }}<|assistant|>", "<|user|>Hello<|assistant|><think></think>"},
      {"<|user|>{{ messages[0].content }}<|assistant|>{{ '<think></think>' if not enable_thinking else "
       "'<think>' }}",
       "<|user|>Hello<|assistant|><think></think>"},
      {"<|user|>{{ messages[0].content }}<|assistant|>{{ '</think>' if not thinking }}",
       "<|user|>Hello<|assistant|></think>"},
      {"<|user|>{{ messages[0].content }}<|assistant|><think>\n{# #}",
       "<|user|>Hello<|assistant|><think>\n</think>"},
      {"[gMASK]<sop><|system|>Reasoning Effort: Max\nBe kind.<|user|>{{ messages[0].content "
       "}}<|assistant|><think>",
       "[gMASK]<sop><|system|>Be kind.<|user|>Hello<|assistant|><think></think>"},
      {"[gMASK]<sop><|user|>{{ messages[0].content }}<|system|>Reasoning Effort: Max<|assistant|><think>",
       "[gMASK]<sop><|user|>Hello<|system|>Reasoning Effort: Max<|assistant|><think></think>"},
  };
  for (const auto& [source, expected] : cases)
    EXPECT_EQ(prompt_of(kHello, o, other(source)).text.bytes(), expected) << source;
}

TEST(Prompt, ContinueTheLastMessage) {
  PromptOptions o;
  o.continue_final_message = true;
  const std::string head = "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>u<|assistant|>";
  const auto continued = [&](const char* assistant) {
    return prompt_of(std::string(R"([{"role":"user","content":"u"},{"role":"assistant",)") + assistant + "}]",
                     o);
  };
  EXPECT_EQ(continued(R"("content":"The answer")").text.bytes(), head + "<think></think>The answer");
  EXPECT_FALSE(continued(R"("content":"The answer")").in_think);
  EXPECT_EQ(continued(R"("content":"The answer","reasoning_content":"R")").text.bytes(),
            head + "<think>R</think>The answer");
  EXPECT_EQ(continued(R"("content":"<think>R</think>The")").text.bytes(), head + "<think>R</think>The");
  EXPECT_EQ(continued(R"("content":"<think>R</think>")").text.bytes(), head + "<think>R</think>");
  EXPECT_FALSE(continued(R"("content":"<think>R</think>")").in_think);
  // Reasoning alone stays open.
  for (const char* open : {R"("content":"","reasoning_content":"half")", R"("content":"<think>half")"}) {
    const Prompt p = continued(open);
    EXPECT_EQ(p.text.bytes(), head + "<think>half");
    EXPECT_TRUE(p.in_think);
    EXPECT_FALSE(p.text.all_trusted(p.text.size() - 4, p.text.size()));
  }
  // Reasoning that spells the closing tag does not close anything.
  EXPECT_TRUE(continued(R"("content":"","reasoning_content":"a</think>b")").in_think);
  // Nothing to continue: an ordinary reply.
  EXPECT_EQ(continued(R"("content":"")").text.bytes(), head + "<think>");
  EXPECT_EQ(continued(R"("tool_calls":[{"id":"a","function":{"name":"f","arguments":{}}}])").text.bytes(),
            head + "<think></think><tool_call>f</tool_call>");
  // What a template writes behind the message is cut.
  EXPECT_EQ(prompt_of(R"([{"role":"user","content":"u"},{"role":"assistant","content":"Th"}])", o,
                      other("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"))
                .text.bytes(),
            "<|user|>u<|end|>\n<|assistant|>Th");
  o.thinking.enabled = false;
  EXPECT_EQ(continued(R"("content":"The answer")").text.bytes(),
            "[gMASK]<sop><|user|>u<|assistant|><think></think>The answer");
  Conversation c = conversation(kHello);
  const auto refused = build_prompt(bundled(), c, o);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(Prompt, InThinkComesFromTheTemplatesOwnBytes) {
  // The caller's tags, in the text before and in the open turn, say nothing.
  EXPECT_TRUE(prompt_of(R"([{"role":"user","content":"</think>"}])").in_think);
  PromptOptions o;
  o.add_generation_prompt = false;
  EXPECT_FALSE(
      prompt_of(
          R"([{"role":"user","content":"u"},{"role":"assistant","content":"x <think>","reasoning_content":""}])",
          o)
          .in_think);
  // With plain rendering they are what they spell.
  o.trust_caller_markup = true;
  const Prompt plain = prompt_of(
      R"([{"role":"user","content":"u"},{"role":"assistant","content":"x <think>","reasoning_content":""}])",
      o);
  EXPECT_TRUE(plain.in_think);
  EXPECT_TRUE(plain.text.all_trusted(0, plain.text.size()));
}

TEST(Prompt, ToolsVariablesAndClearing) {
  Conversation c = conversation(
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":"c"}])");
  PromptOptions o;
  o.thinking.clear_thinking = true;
  auto cleared = build_prompt(bundled(), c, o);
  ASSERT_TRUE(cleared.ok());
  EXPECT_NE(cleared->text.bytes().find("<|assistant|><think></think>b"), std::string::npos);
  o.thinking.clear_thinking = false;
  auto kept = build_prompt(bundled(), c, o);
  ASSERT_TRUE(kept.ok());
  EXPECT_NE(kept->text.bytes().find("<think>r</think>b"), std::string::npos);
  c.tools = parse_json(R"([{"type":"function","function":{"name":"f"}}])").value();
  o.variables = {{"messages", "forged"}, {"add_generation_prompt", false}, {"extra", "<x>"}};
  auto with_tools = build_prompt(
      other("{{ tools|length }}{{ messages|length }}{{ add_generation_prompt }}{{ extra }}"), c, o);
  ASSERT_TRUE(with_tools.ok());
  EXPECT_EQ(with_tools->text.bytes(), "13True<x>");
  c.tools = Json::array();
  auto none = build_prompt(other("{{ tools is none }}"), c, o);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->text.bytes(), "True");
}

TEST(Prompt, Probe) {
  const PromptTraits t = probe_template(bundled());
  EXPECT_TRUE(t.late_system);
  EXPECT_TRUE(t.images);
  EXPECT_TRUE(t.opens_think);
  const PromptTraits strict =
      probe_template(other("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ "
                           "raise_exception('order') }}{% endif %}{{ m.content }}{% endfor %}<|assistant|>"));
  EXPECT_FALSE(strict.late_system);
  EXPECT_FALSE(strict.images);
  EXPECT_FALSE(strict.opens_think);
}

struct Read {
  Thinking thinking;
  std::string param;
  size_t notes;
};
Read read(std::string_view body) {
  Read r;
  std::vector<std::string> notes;
  const auto refusal = read_thinking(parse_json(body).value(), &r.thinking, &notes);
  r.param = refusal ? refusal->param : "";
  r.notes = notes.size();
  return r;
}

TEST(Thinking, Requests) {
  struct Case {
    const char* body;
    bool enabled;
    Effort effort;
  };
  const Case cases[] = {
      {"{}", true, Effort::kMax},
      {R"({"reasoning_effort":null})", true, Effort::kMax},
      {R"({"reasoning_effort":"none"})", false, Effort::kMax},
      {R"({"reasoning_effort":"minimal"})", true, Effort::kLow},
      {R"({"reasoning_effort":"low"})", true, Effort::kLow},
      {R"({"reasoning_effort":"medium"})", true, Effort::kHigh},
      {R"({"reasoning_effort":"high"})", true, Effort::kHigh},
      {R"({"reasoning_effort":"xhigh"})", true, Effort::kMax},
      {R"({"reasoning_effort":"max"})", true, Effort::kMax},
      {R"({"chat_template_kwargs":{"reasoning_effort":"low"}})", true, Effort::kLow},
      {R"({"reasoning_effort":"high","chat_template_kwargs":{"reasoning_effort":"low"}})", true,
       Effort::kHigh},
      {R"({"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low"})", false, Effort::kLow},
      {R"({"chat_template_kwargs":{"enable_thinking":true},"reasoning_effort":"none"})", true, Effort::kMax},
      {R"({"chat_template_kwargs":{"enable_thinking":true,"thinking":false}})", true, Effort::kMax},
      {R"({"chat_template_kwargs":{"thinking":false}})", false, Effort::kMax},
      {R"({"chat_template_kwargs":{"thinking":{"type":"disabled"}}})", false, Effort::kMax},
      {R"({"chat_template_kwargs":{"thinking":{"type":"enabled"}},"reasoning_effort":"none"})", true,
       Effort::kMax},
      {R"({"chat_template_kwargs":{"thinking":{"type":"adaptive"}}})", true, Effort::kMax},
      {R"({"chat_template_kwargs":{"thinking":"x"}})", true, Effort::kMax},
      {R"({"thinking":{"type":"disabled"}})", false, Effort::kMax},
      {R"({"reasoning":{"effort":"low"}})", true, Effort::kLow},
      {R"({"reasoning":{"enabled":false}})", false, Effort::kMax},
      {R"({"reasoning":{"effort":"low","enabled":false},"reasoning_effort":"high"})", true, Effort::kHigh},
  };
  for (const Case& c : cases) {
    const Read r = read(c.body);
    EXPECT_EQ(r.param, "") << c.body;
    EXPECT_EQ(r.thinking.enabled, c.enabled) << c.body;
    EXPECT_EQ(r.thinking.effort, c.effort) << c.body;
  }
  EXPECT_EQ(read(R"({"chat_template_kwargs":{"thinking":"x"}})").notes, 1u);
  EXPECT_TRUE(read(R"({"chat_template_kwargs":{"clear_thinking":true}})").thinking.clear_thinking);
  for (const char* budget : {"thinking_budget", "thinking_token_budget", "thinking_budget_tokens"})
    EXPECT_EQ(read(std::string("{\"") + budget + "\":64}").thinking.budget, 64) << budget;
  EXPECT_EQ(read(R"({"thinking":{"type":"enabled","budget_tokens":5}})").thinking.budget, 5);
  EXPECT_EQ(read(R"({"reasoning":{"max_tokens":6}})").thinking.budget, 6);
}

TEST(Thinking, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"reasoning_effort":"Low"})", "reasoning_effort"},
      {R"({"reasoning_effort":5})", "reasoning_effort"},
      {R"({"chat_template_kwargs":[]})", "chat_template_kwargs"},
      {R"({"chat_template_kwargs":{"reasoning_effort":"x"}})", "chat_template_kwargs.reasoning_effort"},
      {R"({"reasoning":5})", "reasoning"},
      {R"({"reasoning":{"effort":"x"}})", "reasoning.effort"},
      {R"({"thinking_budget":-1})", "thinking_budget"},
      {R"({"thinking_budget":1.5})", "thinking_budget"},
      {R"({"thinking_budget":18446744073709551615})", "thinking_budget"},
      {R"({"thinking_budget":99999999999999999999999})", "thinking_budget"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(read(body).param, param) << body;
}

}  // namespace
}  // namespace firesteel
