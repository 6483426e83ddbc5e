// Tokens to the tree of ast.h. Nesting is limited, so no source can overflow the stack here or when it is
// rendered.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace firesteel::jinja {

/// Throws SyntaxError.
Template parse_template(std::string_view source);

}  // namespace firesteel::jinja
