// From what a request asks for to a compiled grammar, and the cache in front of it.
//
// compile() takes up to a second of CPU and belongs on a worker thread, never on the engine's. GrammarCache
// is thread safe; a text that is being compiled is waited for, not compiled twice. Failures are kept too, so
// that a hostile text costs its second once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/budget.h"
#include "grammar/tables.h"
#include "grammar/tool_calls.h"
#include "grammar/vocabulary.h"

namespace firesteel::grammar {

struct GrammarSource {
  enum class Kind {
    kJsonObject,  // any JSON object; no text
    kJsonSchema,  // the schema as JSON text
    kRegex,       // a pattern that the whole reply matches
    kChoice,      // a JSON array of strings
    kEbnf,        // grammar/ebnf.h
    kToolCalls    // a request's `tools` as JSON text, with `tools`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  bool strict = false;  // of a schema: refuse what cannot be enforced
  ToolMarkup markup;    // of tool calls
  ToolCallOptions tools;

  /// Equal for sources that give equal grammars.
  std::string key() const;
};

struct Compiled {
  std::shared_ptr<const CompiledGrammar> grammar;
  std::vector<std::string>
      unsupported;  // keywords that are not enforced, for the header x-schema-unsupported
};

/// kInvalidArgument: malformed, or nothing satisfies it. kUnsupported: a keyword that cannot be enforced
/// under strict, or a pattern beyond regular languages. kLimit: over the budget.
Result<Compiled> compile(const GrammarSource& source, std::shared_ptr<const Vocabulary> vocabulary,
                         const CompileLimits& limits = {});

class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, size_t max_bytes, CompileLimits limits = {});
  ~GrammarCache();
  Result<Compiled> get(const GrammarSource& source);

  struct Stats {
    uint64_t hits = 0, misses = 0;
    size_t bytes = 0, entries = 0;
  };
  Stats stats() const;

 private:
  struct Entry;
  void evict();
  std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t max_bytes_;
  const CompileLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
  std::list<std::string> order_;  // least recently used first
  Stats stats_;
};

}  // namespace firesteel::grammar
