// The parts of a loaded Tokenizer; shared by the files that implement it.
#pragma once

#include <string>

#include "base/result.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"

namespace firesteel {

struct Tokenizer::Impl {
  AddedTokens added;
  PreTokenizer pre;
  BpeModel bpe;
  std::vector<bool> is_added;  // by id

  Result<std::vector<int32_t>> encode(std::string_view bytes, const std::vector<MarkedText::Run>& runs) const;
  /// Text without added tokens.
  Status encode_text(std::string_view text, std::vector<uint32_t>& ends, std::vector<int32_t>& ids) const;
};

/// Bytes that a token of the vocabulary stands for: each character of the byte-level alphabet is one byte.
/// False when `symbols` has a character outside that alphabet; such a token never comes out of text.
bool bytes_of_symbols(std::string_view symbols, std::string& bytes);

}  // namespace firesteel
