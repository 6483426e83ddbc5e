// Text that remembers where it came from: the template's own bytes, or a caller's.
//
// An added token (<|user|>, <think>, …) is matched in the tokenizer only where all its bytes are the
// template's own, so that no caller can forge a turn. Marks survive every string operation of the template
// interpreter. Plain value.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace firesteel {

class MarkedText {
 public:
  MarkedText() = default;
  static MarkedText trusted(std::string_view s) { return make(s, true); }
  static MarkedText from_caller(std::string_view s) { return make(s, false); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// True when every byte of [begin, end) is the template's own.
  bool all_trusted(size_t begin, size_t end) const;

  void append(std::string_view s, bool trusted);
  void append(const MarkedText& other);
  /// Bytes [begin, end) of `other`, which is not this text; begin <= end <= other.size().
  void append(const MarkedText& other, size_t begin, size_t end);
  MarkedText substr(size_t begin, size_t count) const;

  /// Maximal runs [begin, end) of one provenance, in order, covering all bytes.
  struct Run {
    size_t begin, end;
    bool trusted;
  };
  const std::vector<Run>& runs() const { return runs_; }
  bool operator==(const MarkedText& other) const { return bytes_ == other.bytes_; }  // bytes only

 private:
  static MarkedText make(std::string_view s, bool trusted) {
    MarkedText t;
    t.append(s, trusted);
    return t;
  }
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace firesteel
