// Reads the text of tokenizer.json: the vocabulary and the merges straight into flat lists (they are nearly
// all of a 20 MB file), everything else into a small JSON tree. Knows the shape of the file, not the meaning.
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace firesteel {

struct TokenizerJson {
  /// A string of the file: block[begin, end).
  struct Text {
    uint32_t begin, end;
  };
  struct VocabEntry {
    Text token;
    int32_t id;
  };
  struct Merge {
    Text left, right;
  };

  std::string block;
  std::vector<VocabEntry> vocab;
  std::vector<Merge> merges;
  nlohmann::ordered_json rest;  // an object: the file without model.vocab and model.merges

  std::string_view text(Text t) const { return std::string_view(block).substr(t.begin, t.end - t.begin); }
};

/// Ids above this are refused: tables are sized by the largest id.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

/// kInvalidFile for what is no JSON or has another shape. Errors do not name the file.
Result<TokenizerJson> read_tokenizer_json(std::string_view text);

}  // namespace firesteel
