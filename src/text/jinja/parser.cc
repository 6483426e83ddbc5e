#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/parser_impl.h"

namespace firesteel::jinja {

Template parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

void Parser::error(const std::string& message) const { throw SyntaxError{current().line, message}; }

const Token& Parser::look(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

Token Parser::next() {
  const Token t = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return t;
}

bool Parser::skip_op(std::string_view op) {
  if (!at_op(op)) return false;
  next();
  return true;
}
bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}
void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) error("expected '" + std::string(op) + "', got " + describe(current()));
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) error("expected '" + std::string(name) + "', got " + describe(current()));
}
void Parser::expect(TokenKind kind, const char* what) {
  if (current().kind != kind) error(std::string("expected ") + what + ", got " + describe(current()));
  next();
}
std::string Parser::expect_identifier() {
  if (current().kind != TokenKind::kName) error("expected a name, got " + describe(current()));
  return next().text;
}

std::string Parser::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "template text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "the end of the statement";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "the end of the print statement";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text.substr(0, 40) + "'";
  }
}

int Parser::intern(const std::string& name) {
  const auto [it, is_new] = name_ids_.emplace(name, static_cast<int>(out_.names.size()));
  if (is_new) out_.names.push_back(name);
  return it->second;
}

Template Parser::run() {
  out_.loop_name = intern("loop");
  out_.varargs_name = intern("varargs");
  out_.kwargs_name = intern("kwargs");
  out_.caller_name = intern("caller");
  out_.body = parse_block({}, nullptr);
  if (current().kind != TokenKind::kEnd) error("unexpected " + describe(current()));
  return std::move(out_);
}

Block Parser::parse_block(std::initializer_list<std::string_view> ends, std::string* end_name) {
  const Nest nest(this);
  Block block;
  for (;;) {
    const Token token = current();
    switch (token.kind) {
      case TokenKind::kEnd:
        if (end_name != nullptr)
          error("unexpected end of template, looking for '" + std::string(*ends.begin()) + "'");
        return block;
      case TokenKind::kText: {
        auto s = std::make_unique<Stmt>();
        s->line = token.line;
        s->text = next().text;
        block.push_back(std::move(s));
        break;
      }
      case TokenKind::kVariableBegin: {
        next();
        auto s = std::make_unique<Stmt>();
        s->kind = StmtKind::kOutput;
        s->line = token.line;
        s->exprs.push_back(parse_tuple(false, true, false, false));
        expect(TokenKind::kVariableEnd, "'}}'");
        block.push_back(std::move(s));
        break;
      }
      case TokenKind::kBlockBegin: {
        next();
        for (const std::string_view end : ends) {
          if (!at_name(end)) continue;
          *end_name = next().text;
          return block;
        }
        block.push_back(parse_statement());
        expect(TokenKind::kBlockEnd, "'%}'");
        break;
      }
      default:
        error("unexpected " + describe(token));
    }
  }
}

Block Parser::parse_body(std::initializer_list<std::string_view> ends, std::string* end_name) {
  skip_op(":");
  expect(TokenKind::kBlockEnd, "'%}'");
  return parse_block(ends, end_name);
}

Block Parser::parse_body(std::string_view end) {
  std::string found;
  return parse_body({end}, &found);
}

std::unique_ptr<Stmt> Parser::parse_statement() {
  const Token tag = current();
  if (tag.kind != TokenKind::kName) error("expected the name of a tag, got " + describe(tag));
  next();
  const std::string& t = tag.text;
  std::unique_ptr<Stmt> s;
  if (t == "if") {
    s = parse_if();
  } else if (t == "for") {
    s = parse_for();
  } else if (t == "set") {
    s = parse_set();
  } else if (t == "macro") {
    s = parse_macro();
  } else if (t == "call") {
    s = parse_call_block();
  } else if (t == "filter") {
    s = parse_filter_block();
  } else if (t == "with") {
    s = parse_with();
  } else if (t == "generation") {
    s = std::make_unique<Stmt>();
    s->kind = StmtKind::kScope;
    s->blocks.push_back(parse_body("endgeneration"));
  } else if (t == "print") {
    s = std::make_unique<Stmt>();
    s->kind = StmtKind::kOutput;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!s->exprs.empty()) expect_op(",");
      s->exprs.push_back(parse_expression());
    }
  } else if (t == "break" || t == "continue") {
    if (loops_ == 0) error("'" + t + "' outside of a loop");
    s = std::make_unique<Stmt>();
    s->kind = t == "break" ? StmtKind::kBreak : StmtKind::kContinue;
  } else {
    throw SyntaxError{tag.line, "unknown or unsupported tag '" + t.substr(0, 40) + "'"};
  }
  s->line = tag.line;
  return s;
}

std::unique_ptr<Stmt> Parser::parse_if() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kIf;
  for (;;) {
    s->exprs.push_back(parse_tuple(false, false, false, false));
    std::string end;
    s->blocks.push_back(parse_body({"endif", "elif", "else"}, &end));
    if (end == "elif") continue;
    if (end == "else") s->blocks.push_back(parse_body("endif"));
    return s;
  }
}

std::unique_ptr<Stmt> Parser::parse_for() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kFor;
  s->target = parse_target(false, true);
  expect_name("in");
  s->exprs.push_back(parse_tuple(false, false, false, false));
  s->exprs.push_back(skip_name("if") ? parse_expression() : nullptr);
  if (at_name("recursive")) error("recursive loops are not supported");
  std::string end;
  ++loops_;
  s->blocks.push_back(parse_body({"endfor", "else"}, &end));
  --loops_;
  if (end == "else") s->blocks.push_back(parse_body("endfor"));
  return s;
}

std::unique_ptr<Stmt> Parser::parse_set() {
  auto s = std::make_unique<Stmt>();
  s->target = parse_target(true, false);
  if (skip_op("=")) {
    s->kind = StmtKind::kSet;
    s->exprs.push_back(parse_tuple(false, true, false, false));
    return s;
  }
  s->kind = StmtKind::kSetBlock;
  ExprPtr filter;
  while (skip_op("|")) filter = parse_filter(std::move(filter));
  s->exprs.push_back(std::move(filter));
  s->blocks.push_back(parse_body("endset"));
  return s;
}

void Parser::parse_signature(MacroNode* macro) {
  expect_op("(");
  while (!at_op(")")) {
    if (!macro->parameters.empty()) expect_op(",");
    const std::string parameter = expect_identifier();
    macro->parameters.push_back(intern(parameter));
    macro->parameter_names.push_back(parameter);
    if (skip_op("=")) {
      macro->defaults.push_back(parse_expression());
    } else if (!macro->defaults.empty()) {
      error("a parameter without default follows one with a default");
    }
  }
  expect_op(")");
}

void Parser::parse_macro_body(MacroNode* macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(macro);
  macro->body = parse_body(end);
  macros_.pop_back();
  loops_ = loops;
}

std::unique_ptr<Stmt> Parser::parse_macro() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kMacro;
  s->macro = std::make_unique<MacroNode>();
  s->macro->name = expect_identifier();
  s->macro->name_id = intern(s->macro->name);
  parse_signature(s->macro.get());
  parse_macro_body(s->macro.get(), "endmacro");
  return s;
}

std::unique_ptr<Stmt> Parser::parse_call_block() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kCallBlock;
  s->macro = std::make_unique<MacroNode>();
  s->macro->name = "caller";
  if (at_op("(")) parse_signature(s->macro.get());
  s->exprs.push_back(parse_expression());
  if (s->exprs[0]->kind != ExprKind::kCall) error("expected a call");
  parse_macro_body(s->macro.get(), "endcall");
  return s;
}

std::unique_ptr<Stmt> Parser::parse_filter_block() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kFilterBlock;
  ExprPtr filter = parse_filter(nullptr);
  while (skip_op("|")) filter = parse_filter(std::move(filter));
  s->exprs.push_back(std::move(filter));
  s->blocks.push_back(parse_body("endfilter"));
  return s;
}

std::unique_ptr<Stmt> Parser::parse_with() {
  auto s = std::make_unique<Stmt>();
  s->kind = StmtKind::kWith;
  while (current().kind != TokenKind::kBlockEnd && !at_op(":")) {
    if (!s->targets.empty()) expect_op(",");
    s->targets.push_back(to_target(*parse_primary()));
    expect_op("=");
    s->exprs.push_back(parse_expression());
  }
  s->blocks.push_back(parse_body("endwith"));
  return s;
}

Target Parser::to_target(const Expr& e) const {
  Target t;
  if (e.kind == ExprKind::kName) {
    t.name_id = e.name_id;
    return t;
  }
  if (e.kind != ExprKind::kTuple) error("cannot assign to this expression");
  t.kind = Target::Kind::kTuple;
  for (const ExprPtr& item : e.children) t.items.push_back(to_target(*item));
  return t;
}

Target Parser::parse_target(bool allow_namespace, bool ends_at_in) {
  if (allow_namespace && current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
      look().text == ".") {
    Target t;
    t.kind = Target::Kind::kNamespace;
    t.name_id = intern(next().text);
    next();
    t.attribute = expect_identifier();
    return t;
  }
  return to_target(*parse_tuple(true, true, ends_at_in, false));
}

}  // namespace firesteel::jinja
