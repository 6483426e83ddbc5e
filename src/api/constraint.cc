#include "api/constraint.h"

#include <algorithm>

#include "base/clock.h"
#include "base/json.h"
#include "base/metrics.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace firesteel::api {
namespace {

using grammar::GrammarSource;

constexpr size_t kGrammarCacheBytes = 256u << 20;

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(const grammar::Compiled& compiled, std::shared_ptr<Histogram> fill_seconds)
      : matcher_(compiled.grammar), fill_seconds_(std::move(fill_seconds)) {}
  void fill_mask(std::span<uint32_t> mask) override {
    const int64_t started = now_ns();
    // The model may have more ids than the tokenizer has tokens: those never fit.
    const size_t words = std::min(mask.size(), matcher_.grammar().vocabulary().mask_words());
    matcher_.fill_mask(mask.first(words));
    std::fill(mask.begin() + static_cast<ptrdiff_t>(words), mask.end(), 0u);
    fill_seconds_->observe(static_cast<double>(now_ns() - started) * 1e-9);
  }
  bool accept(int32_t token) override { return matcher_.accept(token); }

 private:
  grammar::Matcher matcher_;
  const std::shared_ptr<Histogram>
      fill_seconds_;  // no lock, no allocation: it is called in the middle of a round
};

/// Collects the constraints that a body names; more than one is a fault.
class FormatReader {
 public:
  FormatReader(FieldReader& in, std::optional<AnswerFormat>* out) : in_(in), out_(out) {}

  void response_format() {
    const Json* format = in_.find("response_format");
    if (format == nullptr) return;
    const Json* type = find_field(*format, "type");
    const std::string word = type != nullptr && type->is_string() ? type->get<std::string>() : "";
    if (word == "json_object") {
      add("response_format", GrammarSource::Kind::kJsonObject, "");
    } else if (word == "json_schema") {
      // The schema's own object, or the flat form of the Responses API.
      const Json* nested = find_field(*format, "json_schema");
      const Json& holder = nested != nullptr ? *nested : *format;
      const Json* schema = find_field(holder, "schema");
      const Json* strict = find_field(holder, "strict");
      if (schema == nullptr || !(schema->is_object() || schema->is_boolean())) {
        return in_.fail_value("response_format", "response_format.json_schema.schema must be a JSON schema");
      }
      if (strict != nullptr && !strict->is_boolean()) {
        return in_.fail_value("response_format",
                              "response_format.json_schema.strict must be true, false or null");
      }
      add("response_format", GrammarSource::Kind::kJsonSchema, dump_json(*schema),
          strict != nullptr && strict->get<bool>());
    } else if (word != "text") {
      in_.fail_value("response_format", "response_format.type must be text, json_object or json_schema");
    }
  }

  /// `name` is the member of `holder` that is read, `param` what errors call it.
  void guided(const Json& holder, const char* name, const std::string& param, GrammarSource::Kind kind) {
    const Json* v = find_field(holder, name);
    if (v == nullptr) return;
    switch (kind) {
      case GrammarSource::Kind::kJsonObject:
        if (!v->is_boolean()) return in_.fail_value(param, param + " must be true or false");
        if (v->get<bool>()) add(param, kind, "");
        return;
      case GrammarSource::Kind::kJsonSchema:
        if (v->is_object() || v->is_boolean()) return add(param, kind, dump_json(*v));
        if (!v->is_string())
          return in_.fail_value(param, param + " must be a JSON schema, as an object or as text");
        return add(param, kind, v->get<std::string>());
      case GrammarSource::Kind::kChoice: {
        const bool strings = v->is_array() && !v->empty() &&
                             std::all_of(v->begin(), v->end(), [](const Json& c) { return c.is_string(); });
        if (!strings) return in_.fail_value(param, param + " must be a list of at least one string");
        return add(param, kind, dump_json(*v));
      }
      default:
        if (!v->is_string() || v->get_ref<const std::string&>().empty()) {
          return in_.fail_value(param, param + " must be a text");
        }
        return add(param, kind, v->get<std::string>());
    }
  }

  void structured_outputs() {
    const Json* v = in_.find("structured_outputs");
    if (v == nullptr) return;
    if (!v->is_object())
      return in_.fail_value("structured_outputs", "structured_outputs must be an object or null");
    if (find_field(*v, "structural_tag") != nullptr) {
      return in_.fail(unsupported_parameter("structured_outputs.structural_tag",
                                            "structural_tag is not supported: use tools, json or grammar"));
    }
    all_guided(*v, "", "structured_outputs.");
  }

  /// json, json_object, regex, choice and grammar with a prefix to their names.
  void all_guided(const Json& holder, const std::string& prefix, const std::string& path) {
    const auto one = [&](const char* word, GrammarSource::Kind kind) {
      guided(holder, (prefix + word).c_str(), path + prefix + word, kind);
    };
    one("json", GrammarSource::Kind::kJsonSchema);
    one("json_object", GrammarSource::Kind::kJsonObject);
    one("regex", GrammarSource::Kind::kRegex);
    one("choice", GrammarSource::Kind::kChoice);
    one("grammar", GrammarSource::Kind::kEbnf);
  }

 private:
  void add(const std::string& param, GrammarSource::Kind kind, std::string text, bool strict = false) {
    if (out_->has_value()) {
      return in_.fail_value(param,
                            param + " and " + (*out_)->param + " both constrain the reply: at most one may");
    }
    AnswerFormat format;
    format.source.kind = kind;
    format.source.text = std::move(text);
    format.source.strict = strict;
    format.param = param;
    *out_ = std::move(format);
  }

  FieldReader& in_;
  std::optional<AnswerFormat>* const out_;
};

}  // namespace

void read_answer_format(FieldReader& in, std::optional<AnswerFormat>* out) {
  FormatReader reader(in, out);
  reader.response_format();
  reader.all_guided(in.object(), "guided_", "");
  reader.structured_outputs();
}

MarkupIds MarkupIds::of(const Tokenizer& tokenizer) {
  MarkupIds out;
  out.think_end = tokenizer.added_id("</think>");
  const auto before = tokenizer.encode(std::string_view("\n"));
  const auto after = tokenizer.encode(std::string_view("\n\n"));
  if (out.think_end >= 0 && before.ok() && after.ok()) {
    out.think_close = *before;
    out.think_close.push_back(out.think_end);
    out.think_close.insert(out.think_close.end(), after->begin(), after->end());
  }
  out.calls = {tokenizer.added_id("<tool_call>"), tokenizer.added_id("</tool_call>"),
               tokenizer.added_id("<arg_key>"),   tokenizer.added_id("</arg_key>"),
               tokenizer.added_id("<arg_value>"), tokenizer.added_id("</arg_value>")};
  return out;
}

AnswerFormats::AnswerFormats(std::shared_ptr<const grammar::Vocabulary> vocabulary)
    : cache_(std::move(vocabulary), kGrammarCacheBytes) {}

std::unique_ptr<AnswerFormats> AnswerFormats::create(const Tokenizer& tokenizer,
                                                     const std::vector<int32_t>& end_ids) {
  std::vector<std::string_view> tokens;
  std::vector<int32_t> special, ends;
  for (int32_t id = 0; id < tokenizer.id_count(); ++id) {
    tokens.push_back(tokenizer.token_bytes(id));
    if (tokenizer.is_added(id)) special.push_back(id);
  }
  for (const int32_t id : end_ids)
    if (id >= 0 && id < tokenizer.id_count()) ends.push_back(id);
  auto vocabulary = grammar::Vocabulary::create(tokens, special, ends);
  if (!vocabulary.ok()) return nullptr;
  return std::unique_ptr<AnswerFormats>(new AnswerFormats(std::move(vocabulary).value()));
}

std::variant<grammar::Compiled, ApiError> AnswerFormats::compile(const AnswerFormat& format) {
  Result<grammar::Compiled> compiled = cache_.get(format.source);
  if (compiled.ok()) return std::move(compiled).value();
  return ApiError{400, "invalid_request_error", "invalid_grammar", format.param, compiled.error().message};
}

std::shared_ptr<TokenConstraint> make_constraint(const grammar::Compiled& compiled,
                                                 std::shared_ptr<Histogram> fill_seconds) {
  return std::make_shared<GrammarConstraint>(compiled, std::move(fill_seconds));
}

}  // namespace firesteel::api
