// The EBNF of `guided_grammar`, in the notation that grammar engines for language models share:
//
//   root ::= "yes" | "no" reason?     # rules by name, alternatives, comments
//   reason ::= [a-z ,]{1,80} (. | "\n")*
//
// Quoted literals and classes take \n \t \r \\ \" \' \] \- \^ \xHH \uHHHH \UHHHHHHHH; `.` is any character; *
// + ? {n} {n,} {n,m} repeat; the start is `root`. Left recursion is allowed. Look-ahead is refused
// (kUnsupported). Free function, the caller's builder and pool.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expr.h"

namespace firesteel::grammar {

/// The rule `root`. kInvalidArgument with the line for a malformed text, an undefined or doubly defined rule.
Result<uint32_t> parse_ebnf(std::string_view text, GrammarBuilder* builder, ExprPool* pool);

}  // namespace firesteel::grammar
