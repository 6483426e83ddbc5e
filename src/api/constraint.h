// What must hold the answer of a reply: the structured-output fields, and calls that are forced or strict
// (spec/api.md 7.2 and 8). Read from a body, compiled once on a worker thread, then one constraint for each
// choice.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/errors.h"
#include "api/field_reader.h"
#include "decode/token_constraint.h"
#include "grammar/compiler.h"

namespace firesteel {
class Histogram;
class Tokenizer;
}  // namespace firesteel

namespace firesteel::api {

struct AnswerFormat {
  grammar::GrammarSource source;
  std::string param;  // the field it came from
};

/// Reads response_format, guided_* and structured_outputs; at most one of them may constrain.
void read_answer_format(FieldReader& in, std::optional<AnswerFormat>* out);

/// Ids that matter to constraints and think blocks, found once in a tokenizer.
struct MarkupIds {
  int32_t think_end = -1;
  std::vector<int32_t> think_close;  // newline, think_end, blank line; empty without a think_end
  grammar::ToolMarkup calls;
  static MarkupIds of(const Tokenizer& tokenizer);
};

/// Compiles answer formats for one tokenizer; thread safe.
class AnswerFormats {
 public:
  /// `end_ids` end a reply. Null when the tokenizer has no tokens that a grammar could use.
  static std::unique_ptr<AnswerFormats> create(const Tokenizer& tokenizer,
                                               const std::vector<int32_t>& end_ids);

  /// Up to a second of CPU the first time. 400 `invalid_grammar` with the compiler's reason.
  std::variant<grammar::Compiled, ApiError> compile(const AnswerFormat& format);

 private:
  explicit AnswerFormats(std::shared_ptr<const grammar::Vocabulary> vocabulary);
  grammar::GrammarCache cache_;
};

/// A fresh constraint of one reply. `fill_seconds` observes every mask.
std::shared_ptr<TokenConstraint> make_constraint(const grammar::Compiled& compiled,
                                                 std::shared_ptr<Histogram> fill_seconds);

}  // namespace firesteel::api
