// Expressions, from the loosest binding to the tightest: condition, or, and, not, comparison, + -, ~, * / //
// %, **, sign, then a primary with its calls, subscripts, filters and tests.
#include <algorithm>

#include "text/jinja/parser_impl.h"

namespace firesteel::jinja {

void Parser::measure(Expr* e) const {
  int deepest = 0;
  const auto see = [&](const ExprPtr& child) {
    if (child) deepest = std::max(deepest, child->depth);
  };
  for (const ExprPtr& child : e->children) see(child);
  if (e->args) {
    for (const ExprPtr& a : e->args->positional) see(a);
    for (const auto& a : e->args->keywords) see(a.second);
    see(e->args->star);
    see(e->args->star_star);
  }
  e->depth = deepest + 1;
  if (e->depth > kMaxTreeDepth) error("an expression is too long or nested too deeply");
}

ExprPtr Parser::make(ExprKind kind, int line, std::vector<ExprPtr> children) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  e->children = std::move(children);
  measure(e.get());
  return e;
}

namespace {
template <typename... E>
std::vector<ExprPtr> children(E... e) {
  std::vector<ExprPtr> out;
  (out.push_back(std::move(e)), ...);
  return out;
}
}  // namespace

ExprPtr Parser::string_constant(std::string text, int line) {
  ExprPtr e = make(ExprKind::kString, line);
  e->text = std::move(text);
  e->constant = out_.constants++;
  return e;
}

ExprPtr Parser::name(const std::string& text, int line) {
  ExprPtr e = make(ExprKind::kName, line);
  e->text = text;
  e->name_id = intern(text);
  for (MacroNode* m : macros_) {
    m->uses_varargs |= text == "varargs";
    m->uses_kwargs |= text == "kwargs";
    m->uses_caller |= text == "caller";
  }
  return e;
}

bool Parser::at_tuple_end(bool ends_at_in) const {
  return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || at_op(")") ||
         (ends_at_in && at_name("in"));
}

ExprPtr Parser::parse_tuple(bool simple, bool with_condition, bool ends_at_in, bool parenthesized) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_op(",");
    if (at_tuple_end(ends_at_in)) break;
    items.push_back(simple ? parse_primary() : parse_expression(with_condition));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parenthesized) error("expected an expression, got " + describe(current()));
  }
  return make(ExprKind::kTuple, line, std::move(items));
}

ExprPtr Parser::parse_expression(bool with_condition) {
  const Nest nest(this);
  return with_condition ? parse_condition() : parse_or();
}

ExprPtr Parser::parse_condition() {
  const Nest nest(this);
  int line = current().line;
  ExprPtr e = parse_or();
  while (skip_name("if")) {
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) otherwise = parse_condition();
    e = make(ExprKind::kCondition, line, children(std::move(test), std::move(e), std::move(otherwise)));
    line = current().line;
  }
  return e;
}

ExprPtr Parser::parse_or() {
  const int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) {
    ExprPtr right = parse_and();
    left = make(ExprKind::kOr, line, children(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::parse_and() {
  const int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) {
    ExprPtr right = parse_not();
    left = make(ExprKind::kAnd, line, children(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::parse_not() {
  const int line = current().line;
  if (skip_name("not")) {
    const Nest nest(this);
    return make(ExprKind::kNot, line, children(parse_not()));
  }
  return parse_compare();
}

ExprPtr Parser::parse_compare() {
  const int line = current().line;
  std::vector<ExprPtr> terms;
  std::vector<Op> operators;
  terms.push_back(parse_sum());
  for (;;) {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                        {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return at_op(o.first); });
    if (op != std::end(kOps)) {
      next();
      operators.push_back(op->second);
    } else if (skip_name("in")) {
      operators.push_back(Op::kIn);
    } else if (at_name("not") && look().kind == TokenKind::kName && look().text == "in") {
      next();
      next();
      operators.push_back(Op::kNotIn);
    } else {
      break;
    }
    terms.push_back(parse_sum());
  }
  if (operators.empty()) return std::move(terms[0]);
  ExprPtr e = make(ExprKind::kCompare, line, std::move(terms));
  e->operators = std::move(operators);
  return e;
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    const Token op = next();
    ExprPtr right = parse_concat();
    left = make(ExprKind::kArithmetic, op.line, children(std::move(left), std::move(right)));
    left->operators = {op.text == "+" ? Op::kAdd : Op::kSub};
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  const int line = current().line;
  std::vector<ExprPtr> terms;
  terms.push_back(parse_product());
  while (skip_op("~")) terms.push_back(parse_product());
  if (terms.size() == 1) return std::move(terms[0]);
  return make(ExprKind::kConcat, line, std::move(terms));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token op = next();
    ExprPtr right = parse_power();
    left = make(ExprKind::kArithmetic, op.line, children(std::move(left), std::move(right)));
    left->operators = {op.text == "*"    ? Op::kMul
                       : op.text == "/"  ? Op::kDiv
                       : op.text == "//" ? Op::kFloorDiv
                                         : Op::kMod};
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (at_op("**")) {
    const Token op = next();
    ExprPtr right = parse_unary(true);
    left = make(ExprKind::kArithmetic, op.line, children(std::move(left), std::move(right)));
    left->operators = {Op::kPow};
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  const Nest nest(this);
  const int line = current().line;
  ExprPtr e;
  if (skip_op("-")) {
    e = make(ExprKind::kNegate, line, children(parse_unary(false)));
  } else if (skip_op("+")) {
    e = make(ExprKind::kPlus, line, children(parse_unary(false)));
  } else {
    e = parse_primary();
  }
  e = parse_postfix(std::move(e));
  return with_filters ? parse_filters(std::move(e)) : std::move(e);
}

ExprPtr Parser::parse_primary() {
  const Nest nest(this);
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        ExprPtr e = make(ExprKind::kBool, token.line);
        e->integer = token.text == "true" || token.text == "True" ? 1 : 0;
        return e;
      }
      if (token.text == "none" || token.text == "None") return make(ExprKind::kNone, token.line);
      return name(token.text, token.line);
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      return string_constant(std::move(text), token.line);
    }
    case TokenKind::kInteger: {
      ExprPtr e = make(ExprKind::kInteger, token.line);
      e->integer = next().integer;
      return e;
    }
    case TokenKind::kFloat: {
      ExprPtr e = make(ExprKind::kFloat, token.line);
      e->real = next().real;
      return e;
    }
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr e = parse_tuple(false, true, false, true);
    expect_op(")");
    return e;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  error("unexpected " + describe(token));
}

ExprPtr Parser::parse_list() {
  const int line = current().line;
  expect_op("[");
  std::vector<ExprPtr> items;
  while (!at_op("]")) {
    if (!items.empty()) expect_op(",");
    if (at_op("]")) break;
    items.push_back(parse_expression());
  }
  expect_op("]");
  return make(ExprKind::kList, line, std::move(items));
}

ExprPtr Parser::parse_dict() {
  const int line = current().line;
  expect_op("{");
  std::vector<ExprPtr> items;
  while (!at_op("}")) {
    if (!items.empty()) expect_op(",");
    if (at_op("}")) break;
    items.push_back(parse_expression());
    expect_op(":");
    items.push_back(parse_expression());
  }
  expect_op("}");
  return make(ExprKind::kDict, line, std::move(items));
}

ExprPtr Parser::parse_postfix(ExprPtr e) {
  for (;;) {
    if (at_op(".") || at_op("[")) {
      e = parse_subscript(std::move(e));
    } else if (at_op("(")) {
      e = parse_call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr e) {
  for (;;) {
    if (skip_op("|")) {
      e = parse_filter(std::move(e));
    } else if (at_name("is")) {
      e = parse_test(std::move(e));
    } else if (at_op("(")) {
      e = parse_call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr Parser::parse_filter(ExprPtr e) {
  const int line = current().line;
  std::string filter = expect_identifier();
  while (skip_op(".")) filter.append(".").append(expect_identifier());
  std::vector<ExprPtr> operand;
  operand.push_back(std::move(e));
  ExprPtr f = make(ExprKind::kFilter, line, std::move(operand));
  f->text = std::move(filter);
  if (at_op("(")) f->args = parse_arguments();
  measure(f.get());
  return f;
}

ExprPtr Parser::parse_test(ExprPtr e) {
  const int line = next().line;  // "is"
  const bool negated = skip_name("not");
  std::string test = expect_identifier();
  while (skip_op(".")) test.append(".").append(expect_identifier());
  ExprPtr t = make(ExprKind::kTest, line, children(std::move(e)));
  t->text = std::move(test);
  const Token& c = current();
  const bool starts_operand = c.kind == TokenKind::kName || c.kind == TokenKind::kString ||
                              c.kind == TokenKind::kInteger || c.kind == TokenKind::kFloat || at_op("[") ||
                              at_op("{");
  if (at_op("(")) {
    t->args = parse_arguments();
  } else if (starts_operand && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) error("tests cannot be chained with 'is'");
    t->args = std::make_unique<CallArgs>();
    t->args->positional.push_back(parse_postfix(parse_primary()));
  }
  measure(t.get());
  return negated ? make(ExprKind::kNot, line, children(std::move(t))) : std::move(t);
}

ExprPtr Parser::parse_subscript(ExprPtr e) {
  const int line = current().line;
  if (skip_op(".")) {
    const Token attribute = next();
    if (attribute.kind == TokenKind::kName) {
      ExprPtr a = make(ExprKind::kAttribute, line, children(std::move(e)));
      a->text = attribute.text;
      return a;
    }
    if (attribute.kind != TokenKind::kInteger) error("expected a name or a number after '.'");
    ExprPtr index = make(ExprKind::kInteger, line);
    index->integer = attribute.integer;
    return make(ExprKind::kItem, line, children(std::move(e), std::move(index)));
  }
  expect_op("[");
  std::vector<ExprPtr> indices;
  while (!at_op("]")) {
    if (!indices.empty()) expect_op(",");
    indices.push_back(parse_index());
  }
  expect_op("]");
  if (indices.size() == 1) return make(ExprKind::kItem, line, children(std::move(e), std::move(indices[0])));
  return make(ExprKind::kItem, line,
              children(std::move(e), make(ExprKind::kTuple, line, std::move(indices))));
}

ExprPtr Parser::parse_index() {
  const int line = current().line;
  ExprPtr start, stop, step;
  if (!at_op(":")) {
    start = parse_expression();
    if (!at_op(":")) return start;
  }
  expect_op(":");
  const auto at_end = [&] { return at_op("]") || at_op(","); };
  if (!at_op(":") && !at_end()) stop = parse_expression();
  if (skip_op(":") && !at_end()) step = parse_expression();
  return make(ExprKind::kSlice, line, children(std::move(start), std::move(stop), std::move(step)));
}

std::unique_ptr<CallArgs> Parser::parse_arguments() {
  const Nest nest(this);
  expect_op("(");
  auto args = std::make_unique<CallArgs>();
  bool first = true;
  const auto require = [&](bool ok) {
    if (!ok) error("invalid syntax in the arguments of a call");
  };
  while (!at_op(")")) {
    if (!first) expect_op(",");
    if (at_op(")")) break;
    first = false;
    if (skip_op("*")) {
      require(!args->star && !args->star_star);
      args->star = parse_expression();
    } else if (skip_op("**")) {
      require(!args->star_star);
      args->star_star = parse_expression();
    } else if (current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
               look().text == "=") {
      require(!args->star_star);
      const std::string key = next().text;
      next();
      for (const auto& k : args->keywords) require(k.first != key);
      args->keywords.emplace_back(key, parse_expression());
    } else {
      require(!args->star && !args->star_star && args->keywords.empty());
      args->positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return args;
}

ExprPtr Parser::parse_call(ExprPtr e) {
  ExprPtr call = make(ExprKind::kCall, current().line, children(std::move(e)));
  call->args = parse_arguments();
  measure(call.get());
  return call;
}

}  // namespace firesteel::jinja
