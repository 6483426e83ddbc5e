// Byte-pair merging over a fixed vocabulary: one piece of text to token ids.
//
// Immutable after build; encode_piece() from any thread (a small cache of recent pieces is kept per thread).
// The token bytes lie in one block, in order of ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace firesteel {

/// The bytes of every id: block[offset[i], offset[i + 1]).
struct TokenBytes {
  std::string block;
  std::vector<uint32_t> offset;  // ids + 1 entries

  size_t count() const { return offset.empty() ? 0 : offset.size() - 1; }
  std::string_view of(uint32_t id) const {
    return std::string_view(block).substr(offset[id], offset[id + 1] - offset[id]);
  }
};

/// One merge rule, all three as ids. Its rank is its place in the list.
struct BpeMerge {
  int32_t left, right, result;
};

class BpeModel {
 public:
  static constexpr int32_t kNone = -1;

  struct Options {
    bool ignore_merges = false;  // a piece that is a token is that token, without merging
  };

  /// `mergeable[id]` says which ids may come out of a piece: they have bytes, and no two have the same bytes.
  /// Every single byte must be one of them. kInvalidFile.
  static Result<BpeModel> build(TokenBytes tokens, const std::vector<bool>& mergeable, Options options);

  /// The rules, by rank; called once, before the first piece. A later rule for the same pair replaces an
  /// earlier one.
  Status set_merges(const std::vector<BpeMerge>& merges);

  /// Id of the mergeable token with exactly these bytes, or kNone.
  int32_t find(std::string_view bytes) const;
  int32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }
  const TokenBytes& tokens() const { return tokens_; }

  /// Appends the ids of one piece, which is not empty and shorter than 1 GiB. O(n log n).
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint32_t tag;  // upper half of the hash; meaningful when id is not kNone
    int32_t id;
  };
  struct PairSlot {
    uint64_t key;  // left << 32 | right; ~0 when empty
    uint32_t rank;
    int32_t result;
  };
  struct Rule {
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNoRank = ~0u;
  class Cache;

  Rule rule(int32_t left, int32_t right) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;
  Status index_tokens(const std::vector<bool>& mergeable);

  TokenBytes tokens_;
  Options options_;
  int32_t byte_ids_[256];
  std::vector<Slot> slots_;
  std::vector<PairSlot> pairs_;
  std::vector<Rule> byte_pairs_;  // 256 x 256: the rule of two single bytes
  uint64_t serial_ = 0;           // tells this model's cache entries from another's
};

}  // namespace firesteel
