// The added tokens of a tokenizer: finds their spellings in marked text. Immutable after build, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/marked_text.h"

namespace firesteel {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool lstrip = false;      // takes the blanks before it along
  bool rstrip = false;      // takes the blanks behind it along
  bool normalized = false;  // matched after the others, in what they left
};

class AddedTokens {
 public:
  AddedTokens(AddedTokens&&) noexcept = default;

  /// kInvalidFile: an empty, overlong or repeated spelling.
  static Result<AddedTokens> build(std::vector<AddedToken> tokens);

  /// A stretch [begin, end) of the text: one added token, or text (id -1).
  struct Segment {
    size_t begin, end;
    int32_t id;
  };
  /// Cuts `bytes` into segments, in order and tiling it. `runs` tell which bytes are trusted; a spelling
  /// counts only when all of it is. Leftmost, and longest among those that begin at one place.
  std::vector<Segment> split(std::string_view bytes, const std::vector<MarkedText::Run>& runs) const;

  /// Id of an exact spelling, or -1.
  int32_t find(std::string_view spelling) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  AddedTokens() = default;

  /// A byte trie; node 0 is the root.
  struct Trie {
    struct Node {
      int32_t token = -1;  // index into tokens_ of the spelling that ends here
      std::vector<std::pair<unsigned char, uint32_t>> next;
    };
    std::vector<Node> nodes{1};
    bool starts[256] = {};
    uint32_t child(uint32_t node, unsigned char byte) const;
    void add(std::string_view spelling, int32_t token);
  };
  std::vector<Segment> pass(const Trie& trie, std::string_view bytes,
                            const std::vector<MarkedText::Run>& runs,
                            const std::vector<Segment>& segments) const;
  void scan(const Trie& trie, std::string_view bytes, const std::vector<MarkedText::Run>& runs, Segment text,
            std::vector<Segment>& out) const;

  std::vector<AddedToken> tokens_;
  Trie plain_, normalized_;
  std::unordered_map<std::string_view, int32_t> by_spelling_;  // views into tokens_, which never changes
};

}  // namespace firesteel
