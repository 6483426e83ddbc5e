// One rendering: scopes, statements and expressions. Made for a single run() on a single thread; the template
// and the variables it reads must outlive it. Throws Failure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "text/chat_template.h"
#include "text/jinja/ast.h"
#include "text/jinja/strings.h"
#include "text/jinja/value.h"

namespace firesteel::jinja {

struct Args {
  Values positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

struct Scope : Object {
  Scope(Budget* b, Ref<Scope> p) : Object(b, sizeof(Scope)), parent(std::move(p)) {}
  Ref<Scope> parent;  // null: the template's top level
  std::vector<std::pair<int, Value>> variables;
  bool captured = false;  // a macro refers to it: the rendering keeps it to its end
};

struct MacroObject : Object {
  MacroObject(Budget* b, const MacroNode* n, Ref<Scope> s)
      : Object(b, sizeof(MacroObject)), node(n), scope(std::move(s)) {}
  const MacroNode* node;
  Ref<Scope> scope;
};

struct MethodObject : Object {
  MethodObject(Budget* b, Value s, int m) : Object(b, sizeof(MethodObject)), self(std::move(s)), method(m) {
    adopt(this, self);
  }
  Value self;
  int method;
};

struct LoopObject : Object {
  LoopObject(Budget* b, Values v);
  Values items;
  size_t index = 0;
  int level;       // 0 for an outermost loop
  Values changed;  // arguments of the last loop.changed(…), if it was called
  bool has_changed = false;
};

class Interpreter {
 public:
  Interpreter(const Template& tree, const nlohmann::ordered_json& variables, const TemplateLimits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  MarkedText run();
  /// The line of the node that was being evaluated, for messages.
  int line() const { return line_; }

  // For the built-in filters, tests, functions and methods.
  Budget* budget() { return &budget_; }
  Value call(const Value& callee, const Args& args);
  Value call_filter(std::string_view name, const Value& value, const Args& args);
  bool call_test(std::string_view name, const Value& value, const Args& args);
  /// x.name and x[key] with Jinja's fallbacks from one to the other; undefined when there is no such thing.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value string(std::string_view text, bool trusted) { return make_string(&budget_, text, trusted); }
  Value list(Values items, Flavor flavor = Flavor::kList) {
    return make_list(&budget_, std::move(items), flavor);
  }
  Value new_namespace();
  /// Fails if `value` is undefined; `what` says what was tried.
  void require_defined(const Value& value, std::string_view what) const;

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Nest;

  // exec.cc
  Flow exec(const Block& block, TextBuilder* out);
  Flow exec(const Stmt& s, TextBuilder* out);
  Flow exec_if(const Stmt& s, TextBuilder* out);
  Flow exec_for(const Stmt& s, TextBuilder* out);
  Flow exec_set_block(const Stmt& s);
  Flow exec_call_block(const Stmt& s, TextBuilder* out);
  Flow exec_filter_block(const Stmt& s, TextBuilder* out);
  Flow exec_with(const Stmt& s, TextBuilder* out);
  Flow exec_scope(const Block& block, TextBuilder* out);
  Values loop_items(const Stmt& s);
  void assign(const Target& target, const Value& value);
  Value make_macro(const MacroNode* node);
  Value call_macro(const MacroObject& macro, const Args& args, const Value* caller);
  void bind(int name_id, Value value);
  Value lookup(int name_id);
  Value from_context(int name_id);
  Value convert(const nlohmann::ordered_json& json, int depth);

  // eval.cc
  Value eval(const Expr& e);
  Value eval_inner(const Expr& e);
  Value eval_constant(const Expr& e);
  Value eval_collection(const Expr& e);
  Value eval_dict(const Expr& e);
  Value eval_item(const Expr& e);
  Value eval_slice(const Value& object, const Expr& slice);
  Value eval_call(const Expr& e, const Value* caller);
  Value eval_filter(const Expr& e, const Value* operand);
  Value eval_test(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_concat(const Expr& e);
  Value eval_sign(const Expr& e);
  Args eval_args(const CallArgs* args);
  bool contains(const Value& container, const Value& needle);

  Budget budget_;  // first: everything below is charged to it
  const Template& tree_;
  const nlohmann::ordered_json& variables_;
  const int max_macros_;
  const int max_nesting_;
  int macros_ = 0;
  int nesting_ = 0;
  int line_ = 0;
  Values constants_;
  struct Global {
    Value value;
    bool is_set = false;
    bool is_resolved = false;  // context holds what the variables or the built-in names give
    Value context;
  };
  std::vector<Global> globals_;  // by name id
  Ref<Scope> scope_;
  std::vector<Ref<NamespaceObject>>
      namespaces_;  // emptied at the end: they alone can form cycles, with scopes
  std::vector<Ref<Scope>> captured_;
};

/// Counts nested evaluation for as long as it lives.
class Interpreter::Nest {
 public:
  explicit Nest(Interpreter* i) : i_(i) {
    if (++i_->nesting_ > i_->max_nesting_) {
      --i_->nesting_;
      fail_limit("the template is nested too deeply");
    }
  }
  ~Nest() { --i_->nesting_; }
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;

 private:
  Interpreter* i_;
};

inline const MacroObject& Value::macro() const { return static_cast<const MacroObject&>(*object_); }
inline const MethodObject& Value::method() const { return static_cast<const MethodObject&>(*object_); }
inline LoopObject& Value::loop() const { return static_cast<LoopObject&>(*object_); }

}  // namespace firesteel::jinja
