// One reply, from token ids to what a client sees: UTF-8 put together, reasoning and answer told apart, tool
// calls taken out, stop strings found. The API layer pushes tokens and writes the pieces out.
//
// The pieces, joined per kind and with the calls at their place, depend on the reply's text and how it ended
// alone, never on how tokens sliced it or when they came: streamed and whole replies are equal. A piece never
// ends inside a UTF-8 character. One stream per reply and choice; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace firesteel {

struct ReplyOptions {
  /// Text as it is: no think markers, no calls, nothing trimmed (/v1/completions). Stop strings still count.
  bool raw = false;
  /// The prompt ends in an open think block (Prompt::in_think).
  bool in_think = false;
  /// The reply continues a text of the prompt (continue_final_message): blanks at its start belong to it.
  bool continues_text = false;
  std::vector<std::string> stop;  // none empty; matched in the visible answer
  bool stop_in_reasoning = false;
  bool include_stop = false;     // the matched string stays in the text
  std::vector<int32_t> end_ids;  // never shown; the first one ends the text
  bool ignore_eos = false;       // end ids are text like any other
  /// The offered tools. Null (none offered, or tool_choice "none"): call markup stays text.
  std::shared_ptr<const ToolSet> tools;
  bool parallel_tool_calls = true;  // false: calls after the first are dropped
  /// Calls of the answer also come as they are written (kCallBegun, kCallArguments). One that is cut or turns
  /// out to be text is then seen in part.
  bool follow_calls = false;
};

struct ReplyPiece {
  enum class Kind { kReasoning, kContent, kCall, kCallBegun, kCallArguments };
  Kind kind = Kind::kContent;
  std::string text;       // kReasoning, kContent, kCallArguments: not empty; kCallBegun: the tool's name
  ToolCall call{};        // kCall
  bool followed = false;  // kCall: kCallBegun announced it, and its arguments have all come
};

/// How the tokens ended. A stop string is not among these: the stream finds it itself (stopped()).
enum class ReplyEnding {
  kEnd,     // the model ended its turn
  kLength,  // cut by a limit
};

class ReplyStream {
 public:
  ReplyStream(const Tokenizer& tokenizer, ReplyOptions options);  // the tokenizer must outlive it
  ~ReplyStream();
  ReplyStream(ReplyStream&&) noexcept;

  /// The next token. Appends what became certain. Ignored once stopped() or ended().
  void push(int32_t token, std::vector<ReplyPiece>& out);
  /// No more tokens: what was held back is decided and comes out. Call once.
  void finish(ReplyEnding ending, std::vector<ReplyPiece>& out);

  /// A stop string matched: generation can end; later tokens do not belong to the reply.
  bool stopped() const { return matched_stop().has_value(); }
  const std::optional<std::string>& matched_stop() const;
  /// An end id was pushed.
  bool ended() const;
  /// Something that may become a call is being written and nothing of it is visible: time for heartbeats.
  bool inside_call() const;
  /// Calls that came out so far. After finish(): the finish reason is "length" when the ending was kLength,
  /// else "tool_calls" when this is not 0, else "stop".
  int calls() const;
  /// Tokens through the one that closed the think block (all, while it is open); 0 when the reply began
  /// outside one.
  int64_t reasoning_tokens() const;
  /// The state in which the next token will be read: reasoning or answer (for per-token log-probabilities).
  bool in_think() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel
