// The parser's state and its expression part, shared by parser.cc (statements) and parser_expr.cc.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace firesteel::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Template run();

 private:
  /// Counts nesting for as long as it lives.
  class Nest {
   public:
    explicit Nest(Parser* p) : p_(p) {
      if (++p_->depth_ > kMaxSourceDepth) p_->error("nested too deeply");
    }
    ~Nest() { --p_->depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    Parser* p_;
  };

  [[noreturn]] void error(const std::string& message) const;
  const Token& current() const { return tokens_[at_]; }
  const Token& look(size_t ahead = 1) const;
  Token next();
  bool at_op(std::string_view op) const {
    return current().kind == TokenKind::kOperator && current().text == op;
  }
  bool at_name(std::string_view name) const {
    return current().kind == TokenKind::kName && current().text == name;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  void expect(TokenKind kind, const char* what);
  std::string expect_identifier();
  static std::string describe(const Token& token);
  int intern(const std::string& name);

  // Statements.
  Block parse_block(std::initializer_list<std::string_view> ends, std::string* end_name);
  Block parse_body(std::initializer_list<std::string_view> ends, std::string* end_name);
  Block parse_body(std::string_view end);
  std::unique_ptr<Stmt> parse_statement();
  std::unique_ptr<Stmt> parse_if();
  std::unique_ptr<Stmt> parse_for();
  std::unique_ptr<Stmt> parse_set();
  std::unique_ptr<Stmt> parse_macro();
  std::unique_ptr<Stmt> parse_call_block();
  std::unique_ptr<Stmt> parse_filter_block();
  std::unique_ptr<Stmt> parse_with();
  void parse_signature(MacroNode* macro);
  void parse_macro_body(MacroNode* macro, std::string_view end);
  Target parse_target(bool allow_namespace, bool ends_at_in);
  Target to_target(const Expr& e) const;

  // Expressions.
  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> children = {});
  void measure(Expr* e) const;
  ExprPtr parse_tuple(bool simple, bool with_condition, bool ends_at_in, bool parenthesized);
  bool at_tuple_end(bool ends_at_in) const;
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr e);
  ExprPtr parse_filters(ExprPtr e);
  ExprPtr parse_filter(ExprPtr e);  // at the filter's name
  ExprPtr parse_test(ExprPtr e);
  ExprPtr parse_subscript(ExprPtr e);
  ExprPtr parse_index();
  ExprPtr parse_call(ExprPtr e);
  std::unique_ptr<CallArgs> parse_arguments();
  ExprPtr string_constant(std::string text, int line);
  ExprPtr name(const std::string& text, int line);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // enclosing loops that break and continue may leave
  Template out_;
  std::unordered_map<std::string, int> name_ids_;
  std::vector<MacroNode*> macros_;  // enclosing ones
};

}  // namespace firesteel::jinja
