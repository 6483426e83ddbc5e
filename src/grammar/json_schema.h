// JSON schema (drafts 7 to 2020-12, the keywords of the HTTP contract) to a grammar of JSON text.
//
// What is written:
//   - compact or spaced: between two tokens at most 32 blanks (space, tab, newline), none before or after the
//   value,
//     so that a model cannot fill its limit with white space; number literals have at most 64 characters.
//   - the members of an object in the order in which `properties` names them; then, where they are allowed,
//   other
//     members. Objects that say nothing about other members are closed. Arrays that say nothing about items
//     take any.
//   - strings that a pattern, a format, an enum or a key constrains: every character as itself, or with its
//   shortest
//     escape where JSON demands one.
// A schema without `type` whose keywords are all about one type is taken to mean that type.
//
// What cannot be enforced is either refused (strict: kUnsupported, "schema keyword 'not' at $.properties.name
// …") or named in `unsupported`, for the caller to report; it is never ignored silently. Annotations (title,
// default, unknown formats and keywords) say nothing about the value and are ignored.
//
// One compilation, one thread; the schema must outlive the compiler.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "grammar/expr.h"
#include "grammar/grammar.h"

namespace firesteel::grammar {

struct SchemaOptions {
  bool strict = false;
};

class SchemaRules;

class JsonSchemaCompiler {
 public:
  JsonSchemaCompiler(GrammarBuilder* builder, ExprPool* pool, SchemaOptions options);
  ~JsonSchemaCompiler();

  /// The rule of values that satisfy `schema`. kInvalidArgument: malformed; kUnsupported: see above.
  Result<uint32_t> json_rule(const nlohmann::ordered_json& schema);
  /// Any JSON object, any JSON value.
  uint32_t any_object();
  uint32_t any_value();

  /// "keyword at path" of everything that is not enforced, each once.
  const std::vector<std::string>& unsupported() const;

 private:
  std::unique_ptr<SchemaRules> rules_;
};

}  // namespace firesteel::grammar
