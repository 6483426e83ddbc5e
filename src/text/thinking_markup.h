// The marks of thinking in a rendered prompt: found among the template's own bytes only, so that no caller's
// text can stand in for them. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/marked_text.h"

namespace firesteel {

/// Offset of the first or last occurrence of `what` (not empty) whose bytes are all the template's own, or
/// npos.
size_t find_trusted(const MarkedText& text, std::string_view what, size_t from);
size_t rfind_trusted(const MarkedText& text, std::string_view what);

/// The turn at the end of the prompt, from the last `<|assistant|>` on (the whole text when there is none).
struct OpenTurn {
  bool has_think_tag = false;
  bool think_open = false;  // its last think tag is an opening one
};
OpenTurn open_turn(const MarkedText& text);

/// Without "<|system|>Reasoning Effort: …" at the head; unchanged when it is not there.
MarkedText without_effort_line(const MarkedText& text);

/// Ends a generation prompt in a closed think block: "<think></think>" behind the role, however much of it is
/// there.
void close_think(MarkedText* text);

}  // namespace firesteel
