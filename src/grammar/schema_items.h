// Schemas as conjunctions: what $ref, allOf, anyOf and oneOf make of a schema object, and whether a value
// satisfies it.
//
// A Conjunction is a list of schema objects that hold at once, named by their place in the document, so that
// equal conjunctions are recognised and recursion through $ref ends. One compilation, one thread.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "grammar/budget.h"

namespace firesteel::grammar {

using Json = nlohmann::ordered_json;

struct SchemaItem {
  enum class Kind : uint8_t {
    kSchema,    // everything it says
    kPlain,     // only keywords other than $ref, allOf, anyOf, oneOf
    kOneBranch  // `json` is the array of an anyOf or oneOf: at least one member
  };
  const Json* json;
  Kind kind = Kind::kSchema;
  auto operator<=>(const SchemaItem&) const = default;
};

using Conjunction = std::vector<SchemaItem>;

/// Bits of types. A number is an integer or has a fraction.
enum TypeBit : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127
};

class SchemaItems {
 public:
  SchemaItems(bool strict, CompileBudget* budget) : strict_(strict), budget_(budget) {}

  void set_root(const Json* root) { root_ = root; }
  /// Remembers where a schema stands; the path is shown in errors.
  const Json* place(const Json& json, const std::string& path) {
    paths_.try_emplace(&json, path);
    return &json;
  }
  std::string path(const Json* json) const;

  /// Only kPlain items and kOneBranch items remain; `*never` when one of them is the schema false.
  Conjunction flatten(const Conjunction& items, bool* never);
  /// Types that all plain items allow. `*said`: one of them says so.
  uint8_t types(const Conjunction& plain, bool* said);
  /// Types that the keywords of the items are about; all when there is none.
  static uint8_t implied_types(const Conjunction& plain);

  /// Exact for what the compiler enforces; what it does not enforce counts as satisfied.
  bool satisfies(const Json& value, const Conjunction& items, int depth = 0);
  bool matches_pattern(const std::string& pattern, const std::string& text, const Json* where);
  /// True when it is certain that no value satisfies both.
  bool disjoint(const Json* a, const Json* b);

  /// A keyword that is not enforced.
  void not_enforced(std::string_view keyword, const Json* where);
  void fail(ErrorCode code, const Json* where, const std::string& what);
  bool ok() const { return !failed_ && budget_->ok(); }
  Error error() const { return failed_ ? error_ : budget_->error(); }
  CompileBudget* budget() { return budget_; }
  const std::vector<std::string>& unsupported() const { return unsupported_; }

  /// Typed look-ups; a wrong type is reported. Null or false: absent.
  const Json* array_of(const Json* schema, const char* keyword);
  const Json* object_of(const Json* schema, const char* keyword);
  bool count_of(const Json* schema, const char* keyword, uint32_t* value);

 private:
  void expand(const SchemaItem& item, Conjunction* out, bool* never, std::vector<const Json*>* path,
              int depth);
  const Json* resolve(const std::string& reference, const Json* where);
  void check_keywords(const Json* schema);
  bool plain_satisfied(const Json& value, const Json* schema, int depth);
  bool object_satisfied(const Json& value, const Json* schema, int depth);

  bool strict_;
  CompileBudget* budget_;
  const Json* root_ = nullptr;
  std::map<const Json*, std::string> paths_;
  std::map<const Json*, bool> checked_;
  std::vector<std::string> unsupported_;
  bool failed_ = false;
  Error error_;
};

/// Digits of a number as JSON writes it; big integers keep theirs.
std::string number_text(const Json& number);
bool is_number(const Json& value);

}  // namespace firesteel::grammar
