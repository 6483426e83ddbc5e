#include "grammar/compiler.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace firesteel::grammar {

namespace {

using Json = nlohmann::ordered_json;

Result<uint32_t> choice_rule(const Json& texts, GrammarBuilder* builder) {
  if (!texts.is_array() || texts.empty())
    return Error{ErrorCode::kInvalidArgument, "a choice must be a list of at least one string"};
  const uint32_t rule = builder->add_rule();
  for (const Json& text : texts) {
    if (!text.is_string()) return Error{ErrorCode::kInvalidArgument, "a choice must be a list of strings"};
    builder->nfa().bytes(builder->start(rule), text.get_ref<const std::string&>(), builder->end(rule));
  }
  return rule;
}

Result<uint32_t> root_rule(const GrammarSource& source, const Json& document, GrammarBuilder* builder,
                           ExprPool* pool, std::vector<std::string>* unsupported) {
  switch (source.kind) {
    case GrammarSource::Kind::kJsonObject:
    case GrammarSource::Kind::kJsonSchema: {
      JsonSchemaCompiler compiler(builder, pool, {source.strict});
      if (source.kind == GrammarSource::Kind::kJsonObject) return compiler.any_object();
      auto rule = compiler.json_rule(document);
      *unsupported = compiler.unsupported();
      return rule;
    }
    case GrammarSource::Kind::kRegex: {
      ASSIGN_OR_RETURN(const ExprId expr, parse_regex(source.text, RegexMatch::kFull, pool));
      const uint32_t rule = builder->add_rule();
      Lowering(*pool, Encoding::kUtf8, builder, true).lower(expr, builder->start(rule), builder->end(rule));
      return rule;
    }
    case GrammarSource::Kind::kChoice:
      return choice_rule(document, builder);
    case GrammarSource::Kind::kEbnf:
      return parse_ebnf(source.text, builder, pool);
    case GrammarSource::Kind::kToolCalls:
      return tool_call_rule(document, source.markup, source.tools, builder, pool, unsupported);
  }
  return Error{ErrorCode::kInternal, "unknown kind of grammar"};
}

}  // namespace

std::string GrammarSource::key() const {
  std::string out;
  for (const int64_t v :
       {static_cast<int64_t>(kind), static_cast<int64_t>(strict), static_cast<int64_t>(tools.required),
        static_cast<int64_t>(tools.parallel), static_cast<int64_t>(tools.all_strict),
        static_cast<int64_t>(markup.call_open), static_cast<int64_t>(markup.call_close),
        static_cast<int64_t>(markup.key_open), static_cast<int64_t>(markup.key_close),
        static_cast<int64_t>(markup.value_open), static_cast<int64_t>(markup.value_close)})
    out += std::to_string(v) + ",";
  return out + text;
}

Result<Compiled> compile(const GrammarSource& source, std::shared_ptr<const Vocabulary> vocabulary,
                         const CompileLimits& limits) {
  if (source.text.size() > limits.source_bytes)
    return Error{ErrorCode::kLimit,
                 "the grammar is longer than " + std::to_string(limits.source_bytes) + " bytes"};
  CompileBudget budget(limits);
  GrammarBuilder builder(&budget);
  ExprPool pool;
  Compiled out;
  Json document;
  if (source.kind == GrammarSource::Kind::kJsonSchema || source.kind == GrammarSource::Kind::kChoice ||
      source.kind == GrammarSource::Kind::kToolCalls) {
    ASSIGN_OR_RETURN(document, parse_json(source.text));
  }
  if (const size_t bad = find_invalid_utf8(source.text); bad != std::string::npos)
    return Error{ErrorCode::kInvalidArgument,
                 "the grammar is not valid UTF-8 at byte " + std::to_string(bad)};
  ASSIGN_OR_RETURN(const uint32_t root, root_rule(source, document, &builder, &pool, &out.unsupported));
  ASSIGN_OR_RETURN(auto grammar, builder.finish(root));
  ASSIGN_OR_RETURN(out.grammar, CompiledGrammar::create(std::move(grammar), std::move(vocabulary), &budget));
  return out;
}

struct GrammarCache::Entry {
  std::optional<Result<Compiled>> result;  // none: being compiled
  size_t bytes = 0;
  std::list<std::string>::iterator place;
};

GrammarCache::GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, size_t max_bytes,
                           CompileLimits limits)
    : vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes), limits_(limits) {}
GrammarCache::~GrammarCache() = default;

Result<Compiled> GrammarCache::get(const GrammarSource& source) {
  const std::string key = source.key();
  std::unique_lock lock(mutex_);
  if (const auto it = entries_.find(key); it != entries_.end()) {
    ++stats_.hits;
    const std::shared_ptr<Entry> entry = it->second;
    if (entry->result) order_.splice(order_.end(), order_, entry->place);
    done_.wait(lock, [&] { return entry->result.has_value(); });
    return *entry->result;
  }
  ++stats_.misses;
  const auto entry = std::make_shared<Entry>();
  entries_[key] = entry;
  lock.unlock();
  Result<Compiled> result = compile(source, vocabulary_, limits_);
  lock.lock();
  entry->bytes = 2 * key.size() + 256 + (result.ok() ? (*result).grammar->bytes() : 0);
  entry->result = std::move(result);
  entry->place = order_.insert(order_.end(), key);
  stats_.bytes += entry->bytes;
  evict();
  done_.notify_all();
  return *entry->result;
}

/// Drops finished entries until the rest fits; what is in use lives on in its users.
void GrammarCache::evict() {
  while (stats_.bytes > max_bytes_ && !order_.empty()) {
    const auto it = entries_.find(order_.front());
    stats_.bytes -= it->second->bytes;
    entries_.erase(it);
    order_.pop_front();
  }
}

GrammarCache::Stats GrammarCache::stats() const {
  const std::lock_guard lock(mutex_);
  Stats out = stats_;
  out.entries = entries_.size();
  return out;
}

}  // namespace firesteel::grammar
