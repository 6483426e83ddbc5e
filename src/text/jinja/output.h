// Values as text: Python's str() and repr(), and json.dumps.
#pragma once

#include <string>

#include "base/json.h"
#include "text/jinja/strings.h"
#include "text/jinja/value.h"

namespace firesteel::jinja {

/// str(value). A string keeps its marks and an integer of the template's own counts as its text; whatever
/// else is written counts as a caller's, since it may hold a caller's text.
void print(const Value& value, TextBuilder* out);
Value to_text(const Value& value, Budget* budget);

/// repr(value).
std::string repr(const Value& value, Budget* budget);

/// json.dumps(value, …): a caller's text as a whole. Fails on what is not JSON.
Value to_json(const Value& value, const JsonStyle& style, Budget* budget);

}  // namespace firesteel::jinja
