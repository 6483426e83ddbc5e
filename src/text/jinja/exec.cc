// Statements and scopes. A `for` body, macro, `with` and block set have scopes of their own; `if` has none.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interp.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {
constexpr size_t kBaseMemory = 16u << 20;  // on top of what the output limit allows
constexpr int kNodesPerMacro = 20;         // nested nodes that one level of macros may use on average
}  // namespace

LoopObject::LoopObject(Budget* b, Values v)
    : Object(b, sizeof(LoopObject) + v.size() * sizeof(Value)), items(std::move(v)) {
  for (const Value& item : items) adopt(this, item);
}

Interpreter::Interpreter(const Template& tree, const nlohmann::ordered_json& variables,
                         const TemplateLimits& limits)
    : budget_(limits.steps, limits.output_bytes, kBaseMemory + 4 * limits.output_bytes),
      tree_(tree),
      variables_(variables),
      max_macros_(limits.depth),
      max_nesting_(limits.depth * kNodesPerMacro),
      constants_(static_cast<size_t>(tree.constants)),
      globals_(tree.names.size()) {}

Interpreter::~Interpreter() {
  for (const Ref<NamespaceObject>& n : namespaces_) n->attributes.clear();
  for (const Ref<Scope>& s : captured_) s->variables.clear();
}

MarkedText Interpreter::run() {
  TextBuilder out(&budget_);
  exec(tree_.body, &out);
  return out.take();
}

Value Interpreter::new_namespace() {
  const Ref<NamespaceObject> n(new NamespaceObject(&budget_));
  namespaces_.push_back(n);
  return Value::object(Kind::kNamespace, n.get());
}

void Interpreter::require_defined(const Value& value, std::string_view what) const {
  if (!value.is_undefined()) return;
  const int64_t id = value.as_int();
  const std::string name =
      id > 0 ? "'" + tree_.names[static_cast<size_t>(id - 1)] + "' is undefined" : "undefined value";
  fail(name + " (" + std::string(what) + ")");
}

// Names.

void Interpreter::bind(int name_id, Value value) {
  if (!scope_) {
    Global& g = globals_[static_cast<size_t>(name_id)];
    g.value = std::move(value);
    g.is_set = true;
    return;
  }
  for (auto& [id, v] : scope_->variables) {
    if (id != name_id) continue;
    v = std::move(value);
    return;
  }
  if (scope_->variables.size() == scope_->variables.capacity()) {
    const size_t room = std::max<size_t>(4, 2 * scope_->variables.size());
    scope_->recharge((room - scope_->variables.size()) * sizeof(scope_->variables[0]));
    scope_->variables.reserve(room);
  }
  scope_->variables.emplace_back(name_id, std::move(value));
}

Value Interpreter::lookup(int name_id) {
  for (const Scope* s = scope_.get(); s != nullptr; s = s->parent.get())
    for (const auto& [id, value] : s->variables)
      if (id == name_id) return value;
  Global& g = globals_[static_cast<size_t>(name_id)];
  if (g.is_set) return g.value;
  if (!g.is_resolved) {
    g.context = from_context(name_id);
    g.is_resolved = true;
  }
  return g.context;
}

Value Interpreter::from_context(int name_id) {
  const std::string& name = tree_.names[static_cast<size_t>(name_id)];
  if (variables_.is_object()) {
    const auto it = variables_.find(name);
    if (it != variables_.end()) return convert(*it, 0);
  }
  const int function = find_function(name);
  return function >= 0 ? Value::function(function) : Value::undefined(name_id + 1);
}

Value Interpreter::convert(const nlohmann::ordered_json& json, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (depth > kMaxValueDepth) fail_limit("values are nested too deeply");
  budget_.step();
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>(), true);
    case Type::number_unsigned: {
      const auto u = json.get<uint64_t>();
      if (u <= static_cast<uint64_t>(INT64_MAX)) return Value::integer(static_cast<int64_t>(u), true);
      return make_big_int(&budget_, std::to_string(u));
    }
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return string(json.get_ref<const std::string&>(), false);
    case Type::binary:
      return is_big_integer(json) ? make_big_int(&budget_, big_integer_digits(json)) : Value::none();
    case Type::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, depth + 1));
      return list(std::move(items));
    }
    case Type::object: {
      const Ref<DictObject> dict(new DictObject(&budget_));
      dict->items.reserve(json.size());
      for (const auto& kv : json.get_ref<const nlohmann::ordered_json::object_t&>())
        dict->put(string(kv.first, false), convert(kv.second, depth + 1));
      return Value::object(Kind::kDict, dict.get());
    }
    default:
      return Value::none();
  }
}

void Interpreter::assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case Target::Kind::kName:
      return bind(target.name_id, value);
    case Target::Kind::kNamespace: {
      const Value n = lookup(target.name_id);
      if (!n.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
      return n.name_space().set(target.attribute, value);
    }
    case Target::Kind::kTuple: {
      const Values items = iterate(value, &budget_);
      if (items.size() != target.items.size())
        fail("cannot unpack " + std::to_string(items.size()) + " values into " +
             std::to_string(target.items.size()) + " names");
      for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i]);
    }
  }
}

// Statements.

Interpreter::Flow Interpreter::exec(const Block& block, TextBuilder* out) {
  for (const auto& s : block) {
    const Flow flow = exec(*s, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec(const Stmt& s, TextBuilder* out) {
  const Nest nest(this);
  budget_.step();
  line_ = s.line;
  switch (s.kind) {
    case StmtKind::kText:
      out->add(s.text, true);
      return Flow::kNormal;
    case StmtKind::kOutput:
      for (const ExprPtr& e : s.exprs) print(eval(*e), out);
      return Flow::kNormal;
    case StmtKind::kIf:
      return exec_if(s, out);
    case StmtKind::kFor:
      return exec_for(s, out);
    case StmtKind::kSet:
      assign(s.target, eval(*s.exprs[0]));
      return Flow::kNormal;
    case StmtKind::kSetBlock:
      return exec_set_block(s);
    case StmtKind::kMacro:
      bind(s.macro->name_id, make_macro(s.macro.get()));
      return Flow::kNormal;
    case StmtKind::kCallBlock:
      return exec_call_block(s, out);
    case StmtKind::kFilterBlock:
      return exec_filter_block(s, out);
    case StmtKind::kWith:
      return exec_with(s, out);
    case StmtKind::kScope:
      return exec_scope(s.blocks[0], out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_if(const Stmt& s, TextBuilder* out) {
  for (size_t i = 0; i < s.blocks.size(); ++i)
    if (i >= s.exprs.size() || truth(eval(*s.exprs[i]))) return exec(s.blocks[i], out);
  return Flow::kNormal;
}

namespace {
/// Puts a scope in place for as long as it lives.
class Enter {
 public:
  Enter(Ref<Scope>* current, Ref<Scope> scope) : current_(current), saved_(*current) {
    *current_ = std::move(scope);
  }
  ~Enter() { *current_ = std::move(saved_); }
  Enter(const Enter&) = delete;
  Enter& operator=(const Enter&) = delete;

 private:
  Ref<Scope>* current_;
  Ref<Scope> saved_;
};

class Count {
 public:
  explicit Count(int* counter) : counter_(counter) { ++*counter_; }
  ~Count() { --*counter_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  int* counter_;
};

/// A loop object lets go of what loop.changed() gave it, which may be itself.
class ForgetChanged {
 public:
  explicit ForgetChanged(Ref<LoopObject> loop) : loop_(std::move(loop)) {}
  ~ForgetChanged() { loop_->changed.clear(); }
  ForgetChanged(const ForgetChanged&) = delete;
  ForgetChanged& operator=(const ForgetChanged&) = delete;

 private:
  Ref<LoopObject> loop_;
};
}  // namespace

Values Interpreter::loop_items(const Stmt& s) {
  const Value sequence = eval(*s.exprs[0]);
  Values items = iterate(sequence, &budget_);
  if (!s.exprs[1]) return items;
  Values kept;
  for (const Value& item : items) {
    const Enter enter(&scope_, Ref<Scope>(new Scope(&budget_, scope_)));
    assign(s.target, item);
    if (truth(eval(*s.exprs[1]))) kept.push_back(item);
  }
  return kept;
}

Interpreter::Flow Interpreter::exec_for(const Stmt& s, TextBuilder* out) {
  Values items = loop_items(s);
  if (items.empty()) return s.blocks.size() > 1 ? exec_scope(s.blocks[1], out) : Flow::kNormal;
  const Ref<LoopObject> loop(new LoopObject(&budget_, std::move(items)));
  const ForgetChanged forget(loop);
  const Value loop_value = Value::object(Kind::kLoop, loop.get());
  Ref<Scope> scope;
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    // A fresh scope for every pass; the last one's memory serves again unless a macro holds on to it.
    if (scope && !scope->captured) {
      scope->variables.clear();
    } else {
      scope = Ref<Scope>(new Scope(&budget_, scope_));
    }
    const Enter enter(&scope_, scope);
    bind(tree_.loop_name, loop_value);
    assign(s.target, loop->items[loop->index]);
    if (exec(s.blocks[0], out) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_scope(const Block& block, TextBuilder* out) {
  const Enter enter(&scope_, Ref<Scope>(new Scope(&budget_, scope_)));
  return exec(block, out);
}

Interpreter::Flow Interpreter::exec_set_block(const Stmt& s) {
  TextBuilder text(&budget_);
  const Flow flow = exec_scope(s.blocks[0], &text);
  if (flow != Flow::kNormal) return flow;
  Value value = text.value();
  if (s.exprs[0]) value = eval_filter(*s.exprs[0], &value);
  assign(s.target, value);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_filter_block(const Stmt& s, TextBuilder* out) {
  TextBuilder text(&budget_);
  const Flow flow = exec_scope(s.blocks[0], &text);
  const Value value = text.value();
  if (flow != Flow::kNormal) return flow;
  print(eval_filter(*s.exprs[0], &value), out);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_call_block(const Stmt& s, TextBuilder* out) {
  const Value caller = make_macro(s.macro.get());
  print(eval_call(*s.exprs[0], &caller), out);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_with(const Stmt& s, TextBuilder* out) {
  Values values;  // all are evaluated outside
  for (const ExprPtr& e : s.exprs) values.push_back(eval(*e));
  const Enter enter(&scope_, Ref<Scope>(new Scope(&budget_, scope_)));
  for (size_t i = 0; i < values.size(); ++i) assign(s.targets[i], values[i]);
  return exec(s.blocks[0], out);
}

// Macros.

Value Interpreter::make_macro(const MacroNode* node) {
  for (Scope* s = scope_.get(); s != nullptr && !s->captured; s = s->parent.get()) {
    s->captured = true;
    captured_.push_back(Ref<Scope>(s));
  }
  return Value::object(Kind::kMacro, new MacroObject(&budget_, node, scope_));
}

Value Interpreter::call_macro(const MacroObject& macro, const Args& args, const Value* caller) {
  const Count count(&macros_);
  if (macros_ > max_macros_) fail_limit("macros call each other too deeply");
  const MacroNode& node = *macro.node;
  const Ref<Scope> scope(new Scope(&budget_, macro.scope));
  const size_t n = node.parameters.size();
  std::vector<const Value*> given(n, nullptr);
  Values varargs;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < n) {
      given[i] = &args.positional[i];
    } else {
      varargs.push_back(args.positional[i]);
    }
  }
  const Ref<DictObject> kwargs(new DictObject(&budget_));
  for (const auto& [key, value] : args.keywords) {
    size_t i = 0;
    while (i < n && node.parameter_names[i] != key) ++i;
    if (i < n) {
      if (given[i] != nullptr) fail("macro '" + node.name + "' got two values for '" + key + "'");
      given[i] = &value;
    } else if (key == "caller" && caller == nullptr && node.uses_caller) {
      caller = &value;
    } else {
      kwargs->put(string(key, true), value);
    }
  }
  if (!varargs.empty() && !node.uses_varargs)
    fail("macro '" + node.name + "' takes not more than " + std::to_string(n) + " argument(s)");
  if (!kwargs->items.empty() && !node.uses_kwargs)
    fail("macro '" + node.name + "' takes no keyword argument '" +
         kwargs->items[0].first.string().text.bytes() + "'");
  if (caller != nullptr && !node.uses_caller) fail("macro '" + node.name + "' takes no caller");

  const Enter enter(&scope_, scope);
  const size_t first_default = n - node.defaults.size();
  for (size_t i = 0; i < n; ++i) {
    Value value = Value::undefined(node.parameters[i] + 1);
    if (given[i] != nullptr) {
      value = *given[i];
    } else if (i >= first_default) {
      value = eval(*node.defaults[i - first_default]);
    }
    bind(node.parameters[i], std::move(value));
  }
  if (node.uses_varargs) bind(tree_.varargs_name, list(varargs, Flavor::kTuple));
  if (node.uses_kwargs) bind(tree_.kwargs_name, Value::object(Kind::kDict, kwargs.get()));
  if (node.uses_caller)
    bind(tree_.caller_name, caller != nullptr ? *caller : Value::undefined(tree_.caller_name + 1));
  TextBuilder out(&budget_);
  exec(node.body, &out);
  return out.value();
}

}  // namespace firesteel::jinja
