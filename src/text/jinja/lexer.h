// Template source to tokens, with Jinja's rules for white space around tags (trim_blocks and lstrip_blocks
// on). One lexer reads one source; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace firesteel::jinja {

/// Thrown by lexer and parser, caught by ChatTemplate::parse.
struct SyntaxError {
  int line;
  std::string message;
};

enum class TokenKind : uint8_t {
  kText,  // template data
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,  // value, escapes undone
  kInteger,
  kFloat,
  kOperator,  // text: one of + - / // * % ** ~ [ ] ( ) { } == != > >= < <= = . : | , ;
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  int64_t integer = 0;
  double real = 0;
};

/// All tokens of `source`, a kEnd last. Throws SyntaxError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace firesteel::jinja
