// Byte-level BPE from a checkpoint's tokenizer.json. Immutable after load: any number of threads may encode
// and decode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/marked_text.h"

namespace firesteel {

class Tokenizer {
 public:
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  static Result<Tokenizer> load(const std::string& path);
  /// `path` is named in errors. Every structural fault is kInvalidFile; nothing in the text can crash or
  /// hang.
  static Result<Tokenizer> parse(std::string_view json_text, const std::string& path);

  /// Ids of `text`. An added token matches only where all its bytes are trusted. Bytes that are no valid
  /// UTF-8 are encoded byte by byte (they exist only in caller text that was not JSON). kLimit when the regex
  /// limits are hit.
  Result<std::vector<int32_t>> encode(const MarkedText& text) const;
  /// All added tokens match (the library's plain behaviour; `--prompt`, /tokenize).
  Result<std::vector<int32_t>> encode(std::string_view text) const;

  /// Raw bytes of one token: added tokens give their spelling, ids without a token give "".
  std::string_view token_bytes(int32_t id) const;
  bool is_added(int32_t id) const;
  /// Id of an added token's exact spelling, or -1.
  int32_t added_id(std::string_view spelling) const;
  int32_t id_count() const;  // one past the largest id

  /// Bytes of all ids joined, invalid UTF-8 replaced by U+FFFD as the reference library does.
  std::string decode(const std::vector<int32_t>& ids) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of token bytes into valid UTF-8: holds back an incomplete tail, replaces what can never
/// complete by U+FFFD (one per maximal invalid prefix, as Python's errors="replace" and the tokenizers
/// library do). Single thread.
class Utf8Stream {
 public:
  /// Appends bytes; returns the text that is now certain.
  std::string push(std::string_view bytes);
  /// The end: what was held back becomes U+FFFD.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace firesteel
