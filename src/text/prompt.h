// From a normalized conversation to the prompt: the checkpoint's template, the thinking switch and level, an
// open last message. Decides from the rendered text, never from flags, whether the reply starts inside a
// think block.
//
// Pure functions, any thread. The caller owns all arguments and results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/marked_text.h"
#include "text/messages.h"

namespace firesteel {

enum class Effort { kLow, kHigh, kMax };
const char* effort_name(Effort effort);  // "low", "high", "max": the words that templates know

/// What the request says about thinking.
struct Thinking {
  bool enabled = true;
  Effort effort = Effort::kMax;
  int64_t budget = 0;           // reply tokens after which the block is closed; 0: none
  bool clear_thinking = false;  // drop reasoning before the last user message
};

/// Applies the body's `reasoning_effort`, `reasoning`, `thinking`, `thinking_budget` (and its two other
/// spellings) and `chat_template_kwargs` over the server's defaults in `out`. nullopt is success. `notes`, if
/// not null, gets one line for each value that was left at its default.
std::optional<Refusal> read_thinking(const nlohmann::ordered_json& body, Thinking* out,
                                     std::vector<std::string>* notes = nullptr);

/// One word of the effort scale ("none", "minimal", "low", "medium", "high", "xhigh", "max"); nullopt for any
/// other value. `enabled` is false for "none", whose level is the default.
struct EffortWord {
  bool enabled = true;
  Effort effort = Effort::kMax;
};
std::optional<EffortWord> effort_from_word(std::string_view word, Effort default_effort);

struct PromptOptions {
  Thinking thinking;
  bool add_generation_prompt = true;    // ignored (off) with continue_final_message
  bool continue_final_message = false;  // the last message must be the assistant's
  /// Plain template rendering: special spellings in a caller's text become control tokens, as in the
  /// reference.
  bool trust_caller_markup = false;
  /// Further variables for the template: the request's chat_template_kwargs. Never overrides messages, tools
  /// and the switches above.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
};

struct Prompt {
  MarkedText text;
  bool in_think = false;  // the reply continues an open think block
};

/// kTemplate, kLimit: from the template. kInvalidArgument: nothing to continue.
Result<Prompt> build_prompt(const ChatTemplate& chat_template, const Conversation& conversation,
                            const PromptOptions& options, const TemplateLimits& limits = {});

/// What the template can show, found by rendering small conversations once, at load.
struct PromptTraits {
  bool late_system = false;  // a system message after the first turn
  bool images = false;       // an image part becomes a placeholder
  bool opens_think = false;  // the generation prompt ends in an open think block
};
PromptTraits probe_template(const ChatTemplate& chat_template);

/// True when the last `<think>` or `</think>` of the open turn, counting the template's own bytes only, is an
/// opening one.
bool ends_in_think(const MarkedText& text);

}  // namespace firesteel
