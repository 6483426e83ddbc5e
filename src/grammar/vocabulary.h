// The tokens of a tokenizer as a trie over their bytes, for walking a grammar through all of them at once.
//
// Built once per tokenizer, then immutable: any number of threads.
//
// Tokens with no bytes, special tokens and tokens that no UTF-8 text can contain (bytes F8 to FF) are never
// allowed by a grammar that describes text. A grammar can still name a special token: marker(id) is a byte
// string that stands for it alone (it starts with FF, which no character class produces).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace firesteel::grammar {

class TableStore;

class Vocabulary {
 public:
  static constexpr uint32_t kNone = ~0u;
  static constexpr size_t kMaxTokenBytes = 512;  // longer tokens are never allowed

  /// `tokens[id]` are the bytes of each token. `special` ids have no bytes of their own; `end_ids` close a
  /// reply and are allowed exactly where a grammar may end. kInvalidArgument: an id out of range, no tokens.
  static Result<std::shared_ptr<const Vocabulary>> create(std::span<const std::string_view> tokens,
                                                          std::span<const int32_t> special,
                                                          std::span<const int32_t> end_ids);
  ~Vocabulary();

  static std::string marker(int32_t special_id);

  int32_t size() const { return static_cast<int32_t>(spans_.size()); }
  /// Words of 32 bits in a mask.
  size_t mask_words() const { return (spans_.size() + 31) / 32; }
  /// What accepting the token means to a grammar: its bytes, a special token's marker, "" for the others.
  std::string_view bytes(int32_t id) const {
    const Span& s = spans_[static_cast<size_t>(id)];
    return std::string_view(text_).substr(s.offset, s.length);
  }
  bool is_end(int32_t id) const;
  std::span<const int32_t> end_ids() const { return end_ids_; }

  // The trie, in depth-first order: a node's subtree is the nodes from it up to skip(node). The root is no
  // node; its children have depth 1.
  uint32_t node_count() const { return static_cast<uint32_t>(byte_.size()); }
  uint8_t byte(uint32_t node) const { return byte_[node]; }
  uint32_t depth(uint32_t node) const { return depth_[node]; }
  uint32_t skip(uint32_t node) const { return skip_[node]; }
  bool has_children(uint32_t node) const { return skip_[node] > node + 1; }
  /// Tokens whose bytes end at the node.
  std::span<const int32_t> tokens_at(uint32_t node) const {
    return std::span(order_).subspan(first_token_[node], first_token_[node + 1] - first_token_[node]);
  }
  /// The root's child for a byte, or kNone.
  uint32_t root_child(uint8_t byte) const { return root_child_[byte]; }
  uint32_t max_depth() const { return max_depth_; }

  /// Masks computed for this vocabulary, shared by all grammars (grammar/tables.h).
  TableStore& store() const { return *store_; }

 private:
  struct Span {
    uint32_t offset = 0, length = 0;
  };
  Vocabulary();
  void build_trie();
  std::string text_;
  std::vector<Span> spans_;
  std::vector<int32_t> end_ids_;
  std::vector<uint8_t> byte_;
  std::vector<uint16_t> depth_;
  std::vector<uint32_t> skip_, first_token_;
  std::vector<int32_t> order_;
  uint32_t root_child_[256];
  uint32_t max_depth_ = 0;
  std::unique_ptr<TableStore> store_;
};

}  // namespace firesteel::grammar
