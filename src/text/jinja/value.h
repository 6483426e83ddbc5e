// The values of a chat template, with Python's rules for truth, equality and order.
//
// A Value belongs to one rendering and one thread: reference counts are plain. Lists and dicts are immutable
// once built, so values form no cycles except through namespaces and scopes, which the renderer empties at
// its end. Every object is charged to the rendering's Budget, and nesting is limited, so no template can
// exhaust memory or the stack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/marked_text.h"

namespace firesteel::jinja {

/// Thrown inside the interpreter only; ChatTemplate turns it into an Error.
struct Failure {
  ErrorCode code;
  std::string message;
};
[[noreturn]] void fail(std::string message);        // kTemplate: the template misused a value
[[noreturn]] void fail_limit(std::string message);  // kLimit

inline constexpr int kMaxValueDepth = 200;

/// What one rendering may still spend. Steps stand for time (one per evaluated node, one per kBytesPerStep
/// bytes moved), live bytes for memory.
class Budget {
 public:
  static constexpr size_t kBytesPerStep = 32;
  Budget(uint64_t steps, size_t max_text, size_t max_live)
      : steps_left_(steps), max_text_(max_text), max_live_(max_live) {}

  void step(uint64_t count = 1) {
    if (count > steps_left_) fail_limit("the step limit was reached");
    steps_left_ -= count;
  }
  void step_bytes(size_t bytes) { step(1 + bytes / kBytesPerStep); }
  /// A text of this many bytes is about to exist.
  void check_text(size_t bytes) const {
    if (bytes > max_text_) fail_limit("a text is longer than the output limit");
  }
  void charge(size_t bytes) {
    if (bytes > max_live_ - live_) fail_limit("the memory limit was reached");
    live_ += bytes;
  }
  void release(size_t bytes) { live_ -= bytes; }
  size_t max_text() const { return max_text_; }
  size_t live() const { return live_; }

 private:
  uint64_t steps_left_;
  size_t max_text_;
  size_t max_live_;
  size_t live_ = 0;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kBigInt,  // an integer beyond 64 bits from JSON: prints and compares, does not calculate
  kString,
  kList,  // and tuples, ranges, views, generators: see Flavor
  kDict,
  kNamespace,
  kMacro,
  kFunction,
  kMethod,
  kLoop,
};

struct Object {
  explicit Object(Budget* budget_in, size_t bytes) : budget(budget_in) { recharge(bytes); }
  virtual ~Object() { budget->release(charged); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  void recharge(size_t bytes) {
    budget->charge(bytes);
    charged += bytes;
  }
  Budget* budget;
  size_t charged = 0;
  uint32_t refs = 0;
  int depth = 0;  // 1 + the deepest child; 0 without children
};

template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) { retain(); }
  Ref(const Ref& other) : object_(other.object_) { retain(); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr && --object_->refs == 0) delete object_;
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  void retain() {
    if (object_ != nullptr) ++object_->refs;
  }
  T* object_ = nullptr;
};

struct StringObject;
struct ListObject;
struct DictObject;
struct NamespaceObject;
struct MacroObject;
struct MethodObject;
struct LoopObject;

class Value {
 public:
  Value() = default;  // undefined
  static Value undefined(int name_id) { return Value(Kind::kUndefined, name_id, false); }
  static Value none() { return Value(Kind::kNone, 0, false); }
  static Value boolean(bool b) { return Value(Kind::kBool, b ? 1 : 0, false); }
  /// `caller`: the digits count as a caller's text when printed.
  static Value integer(int64_t i, bool caller) { return Value(Kind::kInt, i, caller); }
  static Value real(double d) {
    Value v(Kind::kFloat, 0, true);
    v.real_ = d;
    return v;
  }
  static Value function(int id) { return Value(Kind::kFunction, id, false); }
  static Value object(Kind kind, Object* o) {
    Value v(kind, 0, false);
    v.object_ = Ref<Object>(o);
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  int64_t as_int() const { return int_; }  // kInt, kBool, kFunction's id, kUndefined's name
  double as_double() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(int_); }
  bool from_caller() const { return caller_; }
  const StringObject& string() const;
  ListObject& list() const;
  const DictObject& dict() const;
  NamespaceObject& name_space() const;
  const MacroObject& macro() const;
  const MethodObject& method() const;
  LoopObject& loop() const;
  /// The decimal digits of a kBigInt.
  std::string_view digits() const;
  Object* object() const { return object_.get(); }
  int depth() const { return object_ ? object_->depth : 0; }

 private:
  Value(Kind kind, int64_t i, bool caller) : kind_(kind), caller_(caller), int_(i) {}
  Kind kind_ = Kind::kUndefined;
  bool caller_ = false;
  union {
    int64_t int_ = 0;
    double real_;
  };
  Ref<Object> object_;
};

using Values = std::vector<Value>;

struct StringObject : Object {
  StringObject(Budget* b, MarkedText t)
      : Object(b, sizeof(StringObject) + t.size() + t.runs().size() * sizeof(MarkedText::Run)),
        text(std::move(t)) {}
  const MarkedText text;
  mutable int64_t code_points = -1;  // counted on demand
};

enum class Flavor : uint8_t { kList, kTuple, kRange, kView, kGenerator };

struct ListObject : Object {
  ListObject(Budget* b, Flavor f, Values v);
  const Flavor flavor;
  Values items;
  bool consumed = false;  // a generator gives its items once
};

struct DictObject : Object {
  explicit DictObject(Budget* b) : Object(b, sizeof(DictObject)) {}
  /// While building only: a key that is there already keeps its place and takes the new value. Fails on a key
  /// that Python cannot hash.
  void put(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  std::vector<std::pair<Value, Value>> items;

 private:
  void build_index() const;
  mutable std::unordered_map<std::string_view, size_t> index_;  // string keys, once there are more than a few
};

struct NamespaceObject : Object {
  explicit NamespaceObject(Budget* b) : Object(b, sizeof(NamespaceObject)) {}
  std::vector<std::pair<std::string, Value>> attributes;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

inline const StringObject& Value::string() const { return static_cast<const StringObject&>(*object_); }
inline ListObject& Value::list() const { return static_cast<ListObject&>(*object_); }
inline const DictObject& Value::dict() const { return static_cast<const DictObject&>(*object_); }
inline NamespaceObject& Value::name_space() const { return static_cast<NamespaceObject&>(*object_); }

Value make_string(Budget* budget, MarkedText text);
Value make_string(Budget* budget, std::string_view text, bool trusted);
Value make_list(Budget* budget, Values items, Flavor flavor = Flavor::kList);
Value make_big_int(Budget* budget, std::string_view digits);

/// `object` gets a child: its depth grows; fails beyond kMaxValueDepth.
void adopt(Object* object, const Value& child);

/// "str", "list", "NoneType", … as Python names the type in its messages.
const char* type_name(const Value& value);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget* budget);
/// -1, 0, 1; fails for values that Python does not order.
int compare(const Value& a, const Value& b, Budget* budget);
/// Fails on what Python cannot hash.
void check_hashable(const Value& value);

/// Items of anything that can be iterated (a string's code points, a dict's keys); undefined gives none, a
/// generator is used up. `what` is named in the failure.
Values iterate(const Value& value, Budget* budget);
bool is_iterable(const Value& value);

}  // namespace firesteel::jinja
