// Texts that are meant to hurt: each ends in a typed refusal or a grammar, within bounded time, and never in
// a crash.
#include <gtest/gtest.h>

#include <ctime>

#include "support.h"
#include "walker.h"

namespace firesteel::grammar {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string deep_schema(int depth) {
  return repeated(R"({"type":"array","items":)", depth) + "{}" + repeated("}", depth);
}

TEST(Hostile, EveryTextEndsInTime) {
  using Kind = GrammarSource::Kind;
  std::string wide_enum = R"({"enum":[0)", all_optional = R"({"type":"object","properties":{"p":{})";
  for (int i = 0; i < 60000; ++i) wide_enum += ",\"value " + std::to_string(i * 7919) + "\"";
  for (int i = 0; i < 3000; ++i) all_optional += ",\"" + std::to_string(i * 7919) + "\":{}";
  std::string deep_refs = R"({"$ref":"#/$defs/0","$defs":{)", choices = R"({"allOf":[{})";
  for (int i = 0; i < 2000; ++i)
    deep_refs += "\"" + std::to_string(i) + R"(":{"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"},";
  deep_refs += R"("2000":{"type":"null"}}})";
  for (int i = 0; i < 30; ++i) choices += R"(,{"anyOf":[{"minimum":1},{"maximum":9},{"type":"integer"}]})";
  std::string rules = "root ::= r0";
  for (int i = 0; i < 30000; ++i)
    rules += "\nr" + std::to_string(i) + " ::= r" + std::to_string((i + 1) % 30000) + " \"a\"";
  struct Input {
    Kind kind;
    std::string text;
    bool may_compile;
  };
  const std::vector<Input> inputs{
      {Kind::kRegex, repeated("(", 60000) + "a" + repeated(")", 60000), false},
      {Kind::kRegex, repeated("(a", 5000) + repeated(")*", 5000), false},
      {Kind::kRegex, "^+[a-z]$", false},
      {Kind::kRegex, "((a{1,1000}){1,1000}){1,1000}", false},
      {Kind::kRegex, "(ab{0,1000000000}c){1000000000}", false},
      {Kind::kRegex, "[a-z]{0,1000000000}", true},
      {Kind::kRegex, "a{999999999999999999999999}", true},
      {Kind::kRegex, "(.*a){40}", true},
      {Kind::kRegex, "(a|b|ab)*c(a|b){20}", true},
      {Kind::kRegex, ".*a.{14}b", true},
      {Kind::kRegex, "(a|aa)*(a|aaa)*(a|aaaaa)*[ab]{0,300}[a]{0,300}x", true},
      {Kind::kRegex, repeated("[^a]", 16000), true},
      {Kind::kRegex, repeated("a|", 30000), true},
      {Kind::kEbnf, "root ::= " + repeated("(", 60000) + "\"a\"" + repeated(")", 60000), false},
      {Kind::kEbnf, "root ::= \"a\"" + repeated("*", 10000), false},
      {Kind::kEbnf, "root ::= root root root | root root | \"a\"", true},
      {Kind::kEbnf, rules, false},
      {Kind::kEbnf, "root ::= (\"a\"{1000}){1000}", false},
      {Kind::kJsonSchema, deep_schema(100), true},
      {Kind::kJsonSchema, deep_schema(50000), false},
      {Kind::kJsonSchema, repeated(R"({"allOf":[)", 60) + "{}" + repeated("]}", 60), true},
      {Kind::kJsonSchema, wide_enum + "]}", true},
      {Kind::kJsonSchema, all_optional + "}}", true},
      {Kind::kJsonSchema, deep_refs, false},
      {Kind::kJsonSchema, choices + "]}", true},
      {Kind::kJsonSchema, R"({"type":"array","minItems":4000000000})", false},
      {Kind::kJsonSchema, R"({"type":"array","maxItems":1e300})", true},
      {Kind::kJsonSchema, R"({"type":"string","minLength":999999999999})", true},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^a*$","maxLength":100000000})", true},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^(ab)*$","maxLength":100000000})", false},
      {Kind::kJsonSchema, R"({"type":"object","additionalProperties":{},"maxProperties":1000000000})", false},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":-1e308,"maximum":1e308})", true},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":)" + std::string(2000, '9') + "}", false},
      {Kind::kJsonSchema, R"({"type":"number","minimum":1e-300})", false},
      {Kind::kJsonSchema, R"({"pattern":"\ud800\udfff\ud800"})", true},
      {Kind::kJsonSchema, R"({"enum":["\ud800"],"properties":{"\udfff":{}}})", true},
      {Kind::kJsonSchema, R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})", false},
      {Kind::kJsonSchema, R"({"oneOf":[{"$ref":"#"},{"type":"null"}]})", false},
      {Kind::kJsonSchema, R"({"allOf":[{"anyOf":[{"$ref":"#"}]},{"oneOf":[{"$ref":"#/allOf/0"}]}]})", false},
      {Kind::kJsonSchema,
       R"({"properties":{"a":{"allOf":[{"$ref":"#"},{"$ref":"#/$defs/b"}]}},"$defs":{"b":{"properties":
        {"a":{"allOf":[{"$ref":"#"},{"$ref":"#/$defs/b"},{"properties":{"a":{"$ref":"#"}}}]}}}}})",
       true},
      {Kind::kChoice, "[" + repeated("\"" + std::string(1000, 'x') + "\",", 2000) + "\"\"]", true},
      {Kind::kChoice, "[\"" + std::string(3'000'000, 'x') + "\"]", false},
      {Kind::kJsonSchema, std::string(5 << 20, ' '), false},
  };
  for (const Input& input : inputs) {
    const std::string shown = input.text.substr(0, 80);
    const double before = cpu_seconds();
    const auto compiled = compile({input.kind, input.text, true, {}, {}}, bytes_only());
    const double spent = cpu_seconds() - before;
    EXPECT_LT(spent, 1.5) << shown;
    if (!compiled.ok()) {
      const ErrorCode code = compiled.error().code;
      EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported ||
                  code == ErrorCode::kLimit)
          << shown << ": " << compiled.error().message;
      EXPECT_LT(compiled.error().message.size(), 1000u);
      continue;
    }
    EXPECT_TRUE(input.may_compile) << shown;
    // What compiles must also run: some tokens with their masks.
    std::mt19937_64 random(5);
    Matcher matcher(compiled->grammar);
    double slowest = 0;
    walk_masks(&matcher, &random, 60, 80, [&](Matcher& m, std::vector<uint32_t>& mask) {
      const double from = cpu_seconds();
      m.fill_mask(mask);
      slowest = std::max(slowest, cpu_seconds() - from);
    });
    EXPECT_LT(slowest, 0.2) << shown;
  }
}

TEST(Hostile, TheBudgetIsCpuTimeAndHolds) {
  CompileLimits limits;
  limits.cpu_seconds = 0.02;
  const double before = cpu_seconds();
  const auto compiled =
      compile({GrammarSource::Kind::kRegex, ".*a.{14}b", false, {}, {}}, bytes_only(), limits);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.error().code, ErrorCode::kLimit);
  EXPECT_LT(cpu_seconds() - before, 0.2);
}

TEST(Hostile, AmbiguityIsCutNotFollowed) {
  const auto compiled = regex("([ab]{0,400}[ab]{0,400}x){5,50}");
  ASSERT_TRUE(compiled.ok());
  Matcher matcher(compiled->grammar);
  const double before = cpu_seconds();
  std::vector<uint32_t> mask(bytes_only()->mask_words());
  for (int i = 0; i < 200; ++i) {
    matcher.fill_mask(mask);
    ASSERT_TRUE(matcher.accept("abbax"[i % 5]));
  }
  EXPECT_LT(cpu_seconds() - before, 5.0);
}

}  // namespace
}  // namespace firesteel::grammar
