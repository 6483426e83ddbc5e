// Request: one admitted GenerationRequest inside the engine.
//
// Made by submit() on the caller's thread (so that a round allocates nothing), owned by the engine from then
// on, used and freed by the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/engine.h"

namespace firesteel {

struct Request {
  uint64_t id = 0;  // arrival order; the smaller, the older
  GenerationRequest spec;
  uint64_t seed = 0;
  std::shared_ptr<Generation> generation;
  std::function<void()> notify;
  Request* next = nullptr;      // inbox link
  bool known_to_ranks = false;  // an earlier record carried it
  RuleState rules;
  bool constraint_broken = false;  // a token that was drawn did not fit: nothing does any more

  /// Makes what follows from spec.
  void prepare() {
    generation = std::make_shared<Generation>(spec);
    rules = RuleState(spec.rules, spec.prompt, spec.max_tokens);
  }
  /// Rows of the prompt have their next token's log-probability taken.
  bool scores_prompt() const { return spec.prompt_logprobs && generated() == 0; }

  int32_t prompt_tokens() const { return static_cast<int32_t>(spec.prompt.size()); }
  int32_t generated() const { return static_cast<int32_t>(generation->tokens().size()); }
  /// Tokens known so far, prompt and reply; the next token drawn has this absolute position.
  int32_t known() const { return prompt_tokens() + generated(); }
  /// Rows that the whole request can come to need (the last token is never fed).
  int32_t total_rows() const { return prompt_tokens() + spec.max_tokens - 1; }
  int32_t token(int32_t position) const {
    const int32_t n = prompt_tokens();
    return position < n ? spec.prompt[static_cast<size_t>(position)]
                        : generation->tokens()[static_cast<size_t>(position - n)];
  }
};

}  // namespace firesteel
