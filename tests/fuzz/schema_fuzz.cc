// A JSON schema composed of the input's choices (or any text as a schema, a list of tools, an EBNF grammar or
// a choice): it is refused with a reason or it compiles, and then a walk through the masks keeps every
// promise and ends in JSON.
#include <string>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "grammar_input.h"

namespace {

using namespace firesteel;
using namespace firesteel::fuzz;
using namespace firesteel::grammar;

constexpr const char* kStrings[] = {"a", "b", "ab", "", "a-b", "\xC3\xA4", "x y", "0"};
constexpr const char* kPatterns[] = {"^a+$", "b", "^[a-z]{2,4}$", "a|bc", "[^a]", "^\\\\d+(-x)?$", "^$", "("};
constexpr const char* kFormats[] = {"date",     "time", "date-time", "duration", "ipv4",         "ipv6",
                                    "hostname", "uuid", "uri",       "email",    "json-pointer", "unknown"};
constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "-1",
                                    "7",
                                    "2.5",
                                    "-0.125",
                                    "1e2",
                                    "100",
                                    "-37",
                                    "9",
                                    "12345678901",
                                    "1e-7",
                                    "99999999999999999999",
                                    "3",
                                    "5",
                                    "-2"};
constexpr const char* kCounts[] = {"0", "1", "2", "3", "5", "40", "-1", "1.0"};
constexpr const char* kValues[] = {"null",      "true",         "1",           "-2.5", "\"a\"", "\"ab\"",
                                   "[1,\"a\"]", "{\"a\":null}", "\"\\u00e4\"", "1.0",  "[]",    "{}"};

/// Composes one schema as JSON text.
class Composer {
 public:
  explicit Composer(Choices& in) : in_(in) {}

  std::string document() {
    std::string out = schema(0);
    if (out.front() == '{' && in_.once_in(2)) {
      const std::string defs = R"("$defs":{"a":)" + schema(1) + R"(,"b":)" + schema(1) + "}";
      out.insert(1, defs + (out.size() > 2 ? "," : ""));
    }
    return out;
  }

 private:
  void member(const char* key, const std::string& value) {
    if (parts_.size() > 1) parts_ += ",";
    parts_ += std::string("\"") + key + "\":" + value;
  }
  template <size_t N>
  void maybe(const char* key, const char* const (&list)[N]) {
    if (in_.once_in(2)) member(key, in_.of(list));
  }
  static std::string quoted(const std::string& s) { return "\"" + s + "\""; }

  std::string list_of_schemas(int depth, uint32_t least) {
    std::string out = "[";
    const uint32_t n = least + in_.below(3);
    for (uint32_t i = 0; i < n; ++i) out += (i ? "," : "") + schema(depth + 1);
    return out + "]";
  }

  std::string schema(int depth) {
    std::string outer = "{";
    std::swap(outer, parts_);
    const std::string plain = fill(depth);
    std::string out = plain.empty() ? parts_ + "}" : plain;
    std::swap(outer, parts_);
    return out;
  }

  void string_members() {
    member("type", "\"string\"");
    maybe("minLength", kCounts);
    maybe("maxLength", kCounts);
    if (in_.once_in(4)) member("pattern", quoted(in_.of(kPatterns)));
    if (in_.once_in(4)) member("format", quoted(in_.of(kFormats)));
  }
  void number_members(const char* type) {
    member("type", quoted(type));
    maybe("minimum", kNumbers);
    maybe("maximum", kNumbers);
    if (in_.once_in(4)) member("exclusiveMinimum", in_.of(kNumbers));
    if (in_.once_in(4)) member("exclusiveMaximum", in_.of(kNumbers));
    if (in_.once_in(4)) member("multipleOf", in_.of(kNumbers));
  }
  void array_members(int depth) {
    member("type", "\"array\"");
    if (in_.once_in(2)) member("items", schema(depth + 1));
    if (in_.once_in(3)) member("prefixItems", list_of_schemas(depth, 0));
    maybe("minItems", kCounts);
    maybe("maxItems", kCounts);
    if (in_.once_in(8)) member("uniqueItems", "true");
    if (in_.once_in(8)) member("contains", schema(depth + 1));
  }
  void object_members(int depth) {
    member("type", "\"object\"");
    std::string properties = "{", required = "[";
    const uint32_t n = in_.below(4);
    for (uint32_t i = 0; i < n; ++i) {
      const std::string name = quoted(in_.of(kStrings));
      properties += (i ? "," : "") + name + ":" + schema(depth + 1);
      if (in_.once_in(2)) required += (required.size() > 1 ? "," : "") + name;
    }
    member("properties", properties + "}");
    if (required.size() > 1 || in_.once_in(8)) member("required", required + "]");
    if (in_.once_in(3)) member("additionalProperties", schema(depth + 1));
    if (in_.once_in(6))
      member("patternProperties", "{" + quoted(in_.of(kPatterns)) + ":" + schema(depth + 1) + "}");
    if (in_.once_in(8)) member("propertyNames", schema(depth + 1));
    if (in_.once_in(6)) member("minProperties", in_.of(kCounts));
    if (in_.once_in(6)) member("maxProperties", in_.of(kCounts));
    if (in_.once_in(12)) member("dependentRequired", R"({"a":["b"]})");
  }

  /// Members into parts_, or a whole schema as the result.
  std::string fill(int depth) {
    switch (in_.below(depth > 3 ? 7 : 14)) {
      case 0:
        string_members();
        break;
      case 1:
        number_members("integer");
        break;
      case 2:
        number_members("number");
        break;
      case 3:
        member("type", in_.once_in(2) ? "\"boolean\"" : "\"null\"");
        break;
      case 4: {
        std::string list = in_.of(kValues);
        for (uint32_t n = in_.below(4); n > 0; --n) list += std::string(",") + in_.of(kValues);
        member("enum", "[" + list + "]");
        if (in_.once_in(3)) string_members();
        break;
      }
      case 5:
        member("const", in_.of(kValues));
        break;
      case 6: {
        constexpr const char* kPlain[] = {"true",
                                          "{}",
                                          "false",
                                          R"({"$ref":"#"})",
                                          R"({"$ref":"#/$defs/a"})",
                                          R"({"$ref":"#/$defs/b"})",
                                          R"({"type":["string","null"]})",
                                          "[]"};
        return in_.of(kPlain);
      }
      case 7:
      case 8:
        array_members(depth);
        break;
      case 9:
      case 10:
        object_members(depth);
        break;
      case 11:
        member(in_.once_in(2) ? "anyOf" : "oneOf", list_of_schemas(depth, 1));
        if (in_.once_in(4)) object_members(depth + 1);
        break;
      case 12:
        member("allOf", list_of_schemas(depth, 1));
        if (in_.once_in(4)) number_members("integer");
        break;
      default:
        member(in_.once_in(2) ? "not" : "if", schema(depth + 1));
        if (in_.once_in(2)) member("$ref", "\"#/$defs/a\"");
    }
    return "";
  }

  Choices& in_;
  std::string parts_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto small = small_vocabulary(), bytes = bytes_only();
  Choices in(data, size);
  const uint8_t how = in.next();
  const bool calls = how % 4 == 3, with_tables = in.once_in(16);
  const auto& vocabulary = calls || with_tables ? small : bytes;
  GrammarSource source;
  source.markup = small_markup(*small);
  source.strict = how & 64;
  source.tools.required = how & 32;
  source.tools.parallel = how & 16;
  source.kind = GrammarSource::Kind::kJsonSchema;
  const uint8_t seed[4] = {in.next(), in.next(), in.next(), in.next()};
  if (how & 128) {
    constexpr GrammarSource::Kind kKinds[] = {GrammarSource::Kind::kJsonSchema, GrammarSource::Kind::kEbnf,
                                              GrammarSource::Kind::kChoice, GrammarSource::Kind::kToolCalls};
    source.kind = kKinds[how % 4];
    source.text = in.rest();
  } else if (calls) {
    source.kind = GrammarSource::Kind::kToolCalls;
    source.text = R"([{"type":"function","function":{"name":"f","strict":)" +
                  std::string(source.strict ? "true" : "false") + R"(,"parameters":)" +
                  Composer(in).document() + "}}]";
  } else {
    source.text = Composer(in).document();
  }
  const auto compiled = compile(source, vocabulary, small_limits());
  if (!compiled.ok()) {
    check_refusal(compiled.error());
    return 0;
  }
  // Under strict nothing is left unenforced without a word.
  if (source.kind == GrammarSource::Kind::kJsonSchema && source.strict)
    require(compiled->unsupported.empty());
  Matcher matcher(compiled->grammar);
  Choices steps(seed, 4);
  const std::string text = walk(steps, &matcher, 12);
  if (matcher.is_finished() && source.kind == GrammarSource::Kind::kJsonSchema)
    require(parse_json(text).ok());
  return 0;
}
